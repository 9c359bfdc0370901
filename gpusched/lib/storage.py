"""The storage of logs and large tasks: its directory, and its failures, such as a full disk or an object store that
does not answer."""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from django.conf import settings
from django.core.files.storage import FileSystemStorage

from gpusched.lib.api.problems import Problem

logger = logging.getLogger(__name__)


@contextmanager
def storage_errors() -> Iterator[None]:
    """Raise a 503 in place of what a storage raises, as each has errors of its own. A missing file stays one."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        logger.exception("the storage of logs and large tasks failed")
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
