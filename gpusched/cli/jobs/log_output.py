"""Print the output of one job: all of it, its tail, or as it grows."""

import sys
from typing import TYPE_CHECKING

from gpusched.cli.terminal import messages, progress
from gpusched.protocol.rest.jobs import Log

if TYPE_CHECKING:
    from gpusched.client import Client, Job


def print_growing(
    client: "Client", job: "Job", *, attempt: int | None = None, rank: int = 0, offset: int = 0, offset_attempt: int = 1
) -> "Job":
    """Print output as it grows, until the job (or the requested attempt) has ended; return the job as last read.
    `offset`: where to begin in the attempt `offset_attempt`; a later one is printed from its beginning."""
    for item in client.follow(job.id, attempt=attempt, rank=rank, offset=offset):
        if isinstance(item, Log):
            # Bytes, not text: a piece may end in the middle of a character.
            _write(item.data)
            continue
        if offset and attempt is None and item.attempt > offset_attempt:
            return print_growing(client, job, rank=rank)
        _note_change(job, item)
        job, offset = item, 0
    return job


def _note_change(before: "Job", job: "Job") -> None:
    if job.attempt > max(before.attempt, 1):
        messages.note(f"job {job.id}: attempt {job.attempt}")
    reason = f": {job.reason.sentence}" if job.reason and job.reason.sentence else ""
    nodes = f" on {', '.join(job.nodes)}" if job.nodes and job.state == "running" else ""
    messages.note(
        f"job {job.id} is {job.state}{nodes}{reason}" if not job.is_final else f"job {job.id} {job.state}{reason}"
    )


_TAIL_BYTES = 1 << 20


def print_log(
    client: "Client", job_id: int, *, attempt: int | None, rank: int, tail: int | None, is_following: bool
) -> None:
    """Write output to stdout as raw bytes. If there is none, a note on stderr explains it."""
    offset, attempt_seen = 0, None
    if tail is not None:
        piece = client.logs(job_id, attempt=attempt, rank=rank, offset=-_TAIL_BYTES)
        offset = piece.offset + _start_of_last_lines(piece.data, tail)
        attempt_seen = piece.attempt or None
    if is_following:
        job, of = client.get(job_id), attempt_seen or 1
        print_growing(client, job, attempt=attempt, rank=rank, offset=offset, offset_attempt=of)
        return
    last = _copy(client, job_id, attempt or attempt_seen, rank, offset)
    size = last.size if last.is_complete else _copy_late(client, job_id, rank, last)
    if size == 0:
        _explain_no_output(client, job_id)


def _copy(client: "Client", job_id: int, attempt: int | None, rank: int, offset: int) -> Log:
    """Copy everything from `offset` on that is there; return the last piece."""
    piece = client.logs(job_id, attempt=attempt, rank=rank, offset=offset)
    # On a terminal the output itself shows the progress.
    total = 0 if sys.stdout.isatty() else piece.size - offset
    with progress.bar(f"log of job {job_id}", total, minimum=progress.MIN_BYTES) as is_at:
        while True:
            _write(piece.data)
            is_at(piece.next_offset - offset)
            if not piece.data or piece.next_offset >= piece.size:
                return piece
            # Stay with this attempt even if a new one starts meanwhile.
            attempt = piece.attempt or attempt
            piece = client.logs(job_id, attempt=attempt, rank=rank, offset=piece.next_offset)


def _copy_late(client: "Client", job_id: int, rank: int, last: Log) -> int:
    """Copy what still arrives of an attempt that is over, as a long log does for a minute. Return its size."""
    job = client.get(job_id)
    if last.attempt == 0 or (job.attempt == last.attempt and not job.is_final and not job.is_waiting):
        return last.size  # it runs, or has not started
    size = last.size
    for item in client.follow(job_id, attempt=last.attempt, rank=rank, offset=last.next_offset):
        if isinstance(item, Log):
            _write(item.data)
            size = item.next_offset
    if not client.logs(job_id, attempt=last.attempt, rank=rank, offset=size, limit=1).is_complete:
        messages.note(f"job {job_id}: the rest of its output has not arrived from its node")
    return size


def _write(data: bytes) -> None:
    """Write output as it is, at once."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _start_of_last_lines(data: bytes, lines: int) -> int:
    """Return the offset of the last `lines` lines; a last line without its newline counts."""
    position = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        position = data.rfind(b"\n", 0, position)
        if position < 0:
            return 0
    return position + 1


def _explain_no_output(client: "Client", job_id: int) -> None:
    job = client.get(job_id)
    reason = f": {job.reason.sentence}" if job.reason and job.reason.sentence else ""
    of_array = "; see --element N of this array" if job.array else ""
    messages.note(f"job {job_id} has no output; it is {job.state}{reason}{of_array}")
