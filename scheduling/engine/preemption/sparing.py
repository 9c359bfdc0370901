"""Decides whether to wait for jobs that will probably end soon instead of stopping others. Uses predictions only here:
without any, no preemption changes."""

from collections.abc import Collection, Iterable

from scheduling.engine.board.board import Board
from scheduling.engine.board.shapes import Shape
from scheduling.engine.model import Job, RunningJob
from scheduling.engine.promise.backfill import JobEnd, first_fit

# After this long a waiting job no longer waits for predicted ends: predictions may be wrong again and again.
MAX_SPARED_SECONDS = 1800.0


def is_better_to_wait(
    board: Board,
    shape: Shape,
    job: Job,
    running: Iterable[RunningJob],
    closed: Collection[int],
    lost: float,
    now: float,
) -> bool:
    """Return whether the job probably fits before its GPUs would have waited for as many GPU-seconds as a preemption
    would lose. `closed`: nodes whose resources are promised to another job."""
    if now - max(job.queued_at, job.eligible_at) > MAX_SPARED_SECONDS:
        return False
    # Later ends cannot be soon enough, and each release costs time.
    latest = now + lost / max(job.request.gpu_count, 1)
    ends = [
        JobEnd(max(entry.predicted_end_at, now), entry.job_id, entry.ranks)
        for entry in running
        if entry.predicted_end_at is not None
        and entry.predicted_end_at < latest
        and not any(rank.node_id in closed for rank in entry.ranks)
    ]
    return bool(ends) and first_fit(board.overlay(), shape, sorted(ends)) is not None
