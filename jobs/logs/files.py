"""Store logs as files in a directory, appended in place: the default storage of logs."""

import contextlib
import os

from django.conf import settings
from django.utils.functional import cached_property

from gpusched.lib.storage import SharedFiles


class LogFiles(SharedFiles):
    """Files below `logs` of FILES_DIR or DATA_DIR, readable by the server's user and group."""

    folder = "logs"

    @cached_property
    def base_location(self) -> str:
        return str((settings.FILES_DIR or settings.DATA_DIR) / "logs")

    def append(self, name: str, offset: int, data: bytes) -> int:
        """Write bytes at an offset of a file and return its size. Keep stored bytes; write nothing that would leave a
        gap. Raise OSError if the disk refuses."""
        self.require_folder()
        path = self.path(name)
        if not data and not os.path.exists(path):
            return 0
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            size = os.fstat(handle).st_size
            if offset > size or offset + len(data) <= size:
                return size
            unwritten = data[size - offset :]
            while unwritten:
                written = os.pwrite(handle, unwritten, size)
                unwritten, size = unwritten[written:], size + written
            return size
        finally:
            os.close(handle)

    def delete(self, name: str) -> None:
        """Delete a file, and the directories of its job and of a thousand jobs once they are empty."""
        self.require_folder()
        super().delete(name)
        of_job = os.path.dirname(self.path(name))
        with contextlib.suppress(OSError):  # not empty, or gone
            os.rmdir(of_job)
            os.rmdir(os.path.dirname(of_job))

    def read(self, name: str, offset: int, limit: int) -> tuple[bytes, int]:
        """Return (up to `limit` bytes from an offset, size of the file)."""
        self.require_folder()
        try:
            with open(self.path(name), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(min(offset, size))
                return file.read(limit), size
        except FileNotFoundError:
            return b"", 0
