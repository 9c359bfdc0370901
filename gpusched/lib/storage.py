"""The storage of logs and large tasks: its directory, and its failures, such as a full disk or an object store that
does not answer."""

import errno
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from django.conf import settings
from django.core.files.storage import FileSystemStorage

from gpusched.lib.api.problems import Problem

logger = logging.getLogger(__name__)
# How long a request waits for a slot. A storage that has kept another one for as long hangs: then none waits.
SLOT_SECONDS = 2.0


class Slots:
    """Let the storage occupy at most half of the threads that work on requests. One that hangs, such as a directory of
    an NFS server that is gone, would otherwise occupy all of them within seconds: each agent repeats its log."""

    def __init__(self) -> None:
        self._began: dict[int, float] = {}  # by thread
        self._changed = threading.Condition()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Occupy a slot within this context; a thread that has one needs no other. OSError if there is none."""
        thread = threading.get_ident()
        if thread in self._began:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: self._is_free() or self._hangs(), SLOT_SECONDS)
            if not self._is_free():
                raise OSError(errno.ETIMEDOUT, f"the storage keeps {len(self._began)} requests waiting")
            self._began[thread] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._began[thread]
                self._changed.notify()

    def _is_free(self) -> bool:
        return len(self._began) < max(1, settings.ENV.web_threads // 2)

    def _hangs(self) -> bool:
        return min(self._began.values()) < time.monotonic() - SLOT_SECONDS


slots = Slots()


@contextmanager
def storage_errors() -> Iterator[None]:
    """Raise a 503 in place of what a storage raises, as each has errors of its own. A missing file stays one."""
    try:
        with slots.one():
            yield
    except FileNotFoundError:
        raise
    except Exception as error:
        # The text of an OSError says all: a disk that is full or hangs fails each request.
        is_plain = isinstance(error, OSError)
        logger.error("the storage of logs and large tasks failed: %s", error, exc_info=not is_plain)
        detail = "the storage of logs and large tasks does not answer, or is full"
        step = "try again; if it lasts, the server's log has the reason"
        raise Problem(503, "storage_unavailable", detail, next_step=step, retry_after=5) from error


class SharedFiles(FileSystemStorage):
    """Files in one folder of FILES_DIR or DATA_DIR. FILES_DIR may be a mount that goes away under the running server.
    Then its files are unavailable, not missing, and nothing is written below the mount."""

    folder: str

    @cached_property
    def _path(self) -> Path:
        """Return the folder. Each process makes it once: if it is gone later, its mount is."""
        path = Path(settings.FILES_DIR or settings.DATA_DIR) / self.folder
        if settings.FILES_DIR:
            path.mkdir(parents=True, exist_ok=True)
        return path

    def require_folder(self) -> None:
        """Raise OSError if the folder is gone."""
        if settings.FILES_DIR and not os.path.isdir(self._path):
            raise OSError(errno.ENODEV, "the directory is gone; is it mounted?", str(self._path))
