"""Printing the output of one job, whole, from its tail, or as it grows."""

import sys
from typing import TYPE_CHECKING

from gpusched.cli.jobs.log_follow import Reader
from gpusched.cli.terminal import messages, progress

if TYPE_CHECKING:
    from gpusched.client import Client

_TAIL_BYTES = 1 << 20


def print_log(
    client: "Client", job_id: int, *, attempt: int | None, rank: int, tail: int | None, is_following: bool
) -> None:
    """Writes output to stdout as the bytes that they are. Without any, a note on stderr says why."""
    offset = 0
    if tail is not None:
        piece = client.logs(job_id, attempt=attempt, rank=rank, offset=-_TAIL_BYTES)
        offset = piece.offset + _start_of_last_lines(piece.data, tail)
        attempt_seen = piece.attempt or None
    else:
        attempt_seen = None
    if is_following:
        job = client.get(job_id)
        Reader(client, job, attempt=attempt, rank=rank, offset=offset).read()
        return
    if _copy(client, job_id, attempt or attempt_seen, rank, offset) == 0:
        _explain_silence(client, job_id)


def _copy(client: "Client", job_id: int, attempt: int | None, rank: int, offset: int) -> int:
    """Copies all that there is from `offset` on; gives the size of the whole log."""
    piece = client.logs(job_id, attempt=attempt, rank=rank, offset=offset)
    # On a terminal the output itself shows how far it is.
    total = 0 if sys.stdout.isatty() else piece.size - offset
    with progress.bar(f"log of job {job_id}", total, least=progress.MIN_BYTES) as is_at:
        while True:
            sys.stdout.buffer.write(piece.data)
            sys.stdout.buffer.flush()
            is_at(piece.next_offset - offset)
            if not piece.data or piece.next_offset >= piece.size:
                return piece.size
            # From here on the same attempt, also when a new one starts meanwhile.
            attempt = piece.attempt or attempt
            piece = client.logs(job_id, attempt=attempt, rank=rank, offset=piece.next_offset)


def _start_of_last_lines(data: bytes, lines: int) -> int:
    """Where the last `lines` lines begin; a last line without its newline counts."""
    position = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        position = data.rfind(b"\n", 0, position)
        if position < 0:
            return 0
    return position + 1


def _explain_silence(client: "Client", job_id: int) -> None:
    job = client.get(job_id)
    why = f": {job.reason.sentence}" if job.reason and job.reason.sentence else ""
    of_array = "; see --element N of this array" if job.array else ""
    messages.note(f"job {job_id} has no output; it is {job.state}{why}{of_array}")
