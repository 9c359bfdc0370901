"""The parts of a rank's log that are sent: all of it, or, above its limit, its head, the number of cut bytes, and its
tail.

For one limit the sent text never changes and only grows, so sending can continue from any byte after any restart. The
job writes to its file as fast as it likes; the disk of the cut part is freed while the job runs."""

import ctypes
import os
from collections.abc import Sequence
from typing import NamedTuple

# The tail of a log says why a job failed; triage reads as much of it, too.
TAIL_BYTES = 64 * 1024
# The lowest limit. Shorter logs are sent in full whatever is set.
MIN_BYTES = 1 << 20
PUNCH_BYTES = 16 << 20
_PAGE = 4096
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)


class Part(NamedTuple):
    """`size` sent bytes: those at `start` of the file, or, if not empty, `text`."""

    start: int
    size: int
    text: bytes = b""


def parts(size: int, limit: int | None, *, is_final: bool) -> list[Part]:
    """Return the parts to send of a file of `size` bytes, in order. `is_final`: the file does not grow any more."""
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


def total(parts: Sequence[Part]) -> int:
    """Return the number of sent bytes."""
    return sum(part.size for part in parts)


def read(path: str, of: Sequence[Part], offset: int, max_bytes: int) -> bytes:
    """Return up to `max_bytes` of the sent text from an offset. OSError as for any file."""
    data = b""
    for part in of:
        if offset < part.size and len(data) < max_bytes:
            data += _read(path, part, offset, max_bytes - len(data))
        offset = max(0, offset - part.size)
    return data


def _read(path: str, part: Part, offset: int, max_bytes: int) -> bytes:
    size = min(max_bytes, part.size - offset)
    if part.text:
        return part.text[offset : offset + size]
    # A job of the agent's own user may have put a pipe here, which has no writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        file.seek(part.start + offset)
        return file.read(size)


def free_disk(path: str, size: int, limit: int, freed: int) -> int:
    """Free the disk of the part that is never sent, if it is large enough, and return the freed end. `freed`: the
    previous result. On a file system without this feature the part stays until the rank is dropped."""
    start = max(freed, -(-limit // _PAGE) * _PAGE)
    end = (size - TAIL_BYTES) // _PAGE * _PAGE
    if end - start < PUNCH_BYTES:
        return freed
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return freed
    try:
        _libc.fallocate(handle, _KEEP_SIZE | _PUNCH_HOLE, start, end - start)
    finally:
        os.close(handle)
    return end
