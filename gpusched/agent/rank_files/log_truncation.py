"""What is sent of a rank's log: all of it, or, where it passed its limit, its head, how much was cut, and its end.

What is sent never changes for one limit and only grows, so that sending goes on from any byte after any restart. The
job writes to its file as fast as it likes; what is cut is given back to the disk while the job runs."""

import ctypes
import os
from collections.abc import Sequence
from typing import NamedTuple

# The end of a log says why a job failed; triage reads as much of it, too.
TAIL_BYTES = 64 * 1024
# No limit is lower. Logs that stay below it are sent whole whatever is set.
MIN_BYTES = 1 << 20
PUNCH_BYTES = 16 << 20
_PAGE = 4096
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)


class Part(NamedTuple):
    """`size` bytes of what is sent: those at `start` of the file, or, if there is one, a text."""

    start: int
    size: int
    text: bytes = b""


def parts(size: int, limit: int | None, *, is_final: bool) -> list[Part]:
    """What is to be sent of a file of `size` bytes, in order. `is_final`: the file will not grow any more."""
    if limit is None or size <= limit:
        return [Part(0, size)]
    if size <= limit + TAIL_BYTES:
        return [Part(0, size if is_final else limit)]
    notice = f"\n[gpusched: this log has passed {limit >> 20} MiB; of what follows only the end is kept]\n".encode()
    head = [Part(0, limit), Part(0, len(notice), notice)]
    if not is_final:
        return head
    cut = f"[gpusched: {size - limit - TAIL_BYTES} bytes were cut here]\n".encode()
    return [*head, Part(0, len(cut), cut), Part(size - TAIL_BYTES, TAIL_BYTES)]


def total(of: Sequence[Part]) -> int:
    """How many bytes are sent."""
    return sum(part.size for part in of)


def read(path: str, of: Sequence[Part], offset: int, most: int) -> bytes:
    """Up to `most` of the bytes that are sent, from an offset into them. OSError as for any file."""
    found = b""
    for part in of:
        if offset < part.size and len(found) < most:
            found += _read(path, part, offset, most - len(found))
        offset = max(0, offset - part.size)
    return found


def _read(path: str, part: Part, offset: int, most: int) -> bytes:
    wanted = min(most, part.size - offset)
    if part.text:
        return part.text[offset : offset + wanted]
    with open(path, "rb") as file:
        file.seek(part.start + offset)
        return file.read(wanted)


def give_back(path: str, size: int, limit: int, given: int) -> int:
    """Gives the disk back what will never be sent, once it is worth the call, and says up to which byte. `given`: what
    was said before. A file system that cannot do so keeps it until the rank is forgotten."""
    start = max(given, -(-limit // _PAGE) * _PAGE)
    end = (size - TAIL_BYTES) // _PAGE * _PAGE
    if end - start < PUNCH_BYTES:
        return given
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return given
    try:
        _libc.fallocate(handle, _KEEP_SIZE | _PUNCH_HOLE, start, end - start)
    finally:
        os.close(handle)
    return end
