"""Keeps logs as files in the data directory, each appended in place: the storage of logs unless another is set."""

import os

from django.conf import settings
from django.core.files.storage import FileSystemStorage
from django.utils.functional import cached_property


class LogFiles(FileSystemStorage):
    """Below DATA_DIR/logs; readable by the user of the server and by its group."""

    @cached_property
    def base_location(self) -> str:
        return str(settings.DATA_DIR / "logs")

    def append(self, name: str, offset: int, data: bytes) -> int:
        """Writes bytes at an offset of a file and gives its size. What is there is kept; nothing is written beyond the
        end. OSError where the disk refuses."""
        path = self.path(name)
        if not data and not os.path.exists(path):
            return 0
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            size = os.fstat(handle).st_size
            if offset > size or offset + len(data) <= size:
                return size
            fresh = data[size - offset :]
            while fresh:
                written = os.pwrite(handle, fresh, size)
                fresh, size = fresh[written:], size + written
            return size
        finally:
            os.close(handle)

    def read(self, name: str, offset: int, limit: int) -> tuple[bytes, int]:
        """(up to `limit` bytes from an offset, size of the file)."""
        try:
            with open(self.path(name), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(min(offset, size))
                return file.read(limit), size
        except FileNotFoundError:
            return b"", 0
