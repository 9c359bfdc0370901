"""Inputs and results of tasks that are too large for their row: files behind Django's storage API, alias `tasks`.

A file is written before the row that names it, and deleted after it. So a crash can leave a file without a row, which
`sweep` deletes, but never a row without its file."""

import logging
import os
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import IO, Any

from django.conf import settings
from django.core.files.base import ContentFile, File
from django.core.files.storage import Storage, storages
from django.utils.functional import cached_property

from gpusched.lib.db.sql import query
from gpusched.lib.storage import SharedFiles

logger = logging.getLogger(__name__)
# The most bytes of an input or a result in its row.
INLINE_BYTES = 256 << 10
PIECE_BYTES = 1 << 20
# A file without a row may belong to a submit in progress for this long.
_UNNAMED_HOURS = 1
_FOLDER, _HOUR = "tasks", "%Y%m%d%H"
_UNUSED = """
    SELECT f.name FROM unnest(%s::text[]) AS f (name)
     WHERE NOT EXISTS (SELECT 1 FROM serving_inferencerequest r WHERE r.payload_file = f.name AND r.payload_file <> '')
       AND NOT EXISTS (SELECT 1 FROM serving_inferencerequest r WHERE r.result_file = f.name AND r.result_file <> '')
"""


class TaskFiles(SharedFiles):
    """Files below `tasks` of FILES_DIR or DATA_DIR."""

    folder = _FOLDER

    @cached_property
    def base_location(self) -> str:
        return str(settings.FILES_DIR or settings.DATA_DIR)

    def open(self, name: str, mode: str = "rb") -> "File[Any]":
        self.require_folder()
        return super().open(name, mode)

    def save(self, name: str | None, content: "IO[Any]", max_length: int | None = None) -> str:
        self.require_folder()
        return super().save(name, content, max_length)

    def sync(self, name: str) -> None:
        """Wait until a file is on the disk, since its task is durable then."""
        path = self.path(name)
        for synced in (path, os.path.dirname(path)):
            handle = os.open(synced, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def max_bytes() -> int:
    """Return the most bytes of an input or a result."""
    return int(settings.ENV.task_max_mb) << 20


def store(data: bytes) -> str:
    """Write a file and return its name. Raises OSError."""
    name = f"{_FOLDER}/{datetime.now(UTC):{_HOUR}}/{uuid.uuid4().hex}"
    storage = _storage()
    saved = storage.save(name, ContentFile(data))
    if isinstance(storage, TaskFiles):
        storage.sync(saved)
    return saved


def read(name: str) -> bytes:
    """Return the content of a file. Raises OSError."""
    with _storage().open(name) as file:
        return bytes(file.read())


def pieces(name: str) -> Iterator[bytes]:
    """Yield the content of a file in pieces. Raises OSError."""
    with _storage().open(name) as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def delete(names: Iterable[str]) -> None:
    """Delete files; harmless for those that do not exist. A file that cannot be deleted now is left to `sweep`."""
    for name in names:
        try:
            _storage().delete(name)
        except Exception as error:  # noqa: BLE001 each storage raises its own
            logger.warning("the file %s is deleted later: %r", name, error)


def sweep(now: datetime | None = None) -> int:
    """Delete files that no task names, of folders that get no more files. Return how many."""
    latest = f"{(now or datetime.now(UTC)) - timedelta(hours=_UNNAMED_HOURS + 1):{_HOUR}}"
    number = 0
    for hour in _listed(_FOLDER)[0]:
        if hour > latest:
            continue
        folder = f"{_FOLDER}/{hour}"
        names = [f"{folder}/{name}" for name in _listed(folder)[1]]
        unused = [row["name"] for row in query(_UNUSED, [names])]
        delete(unused)
        number += len(unused)
        if len(unused) == len(names):
            delete([folder])
    return number


def _listed(folder: str) -> tuple[list[str], list[str]]:
    """Return the folders and files of a folder."""
    try:
        return _storage().listdir(folder)
    except FileNotFoundError:
        return [], []


def _storage() -> Storage:
    return storages["tasks"]
