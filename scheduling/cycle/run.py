"""One scheduling cycle: one at a time over all workers, and no wake-up lost."""

import gc
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from django.utils import timezone

from gpusched import tracing
from gpusched.lib.db import locks
from gpusched.lib.db.locks import Lock
from gpusched.lib.db.sql import execute
from gpusched.lib.histograms import observe
from jobs.arrays.materialize import end_finished_arrays
from nodes.ranks.recovery import mark_silent_nodes_lost, stop_on_lost_devices
from scheduling.cycle import recorded_cycles
from scheduling.cycle.array_heads import announce_changes
from scheduling.cycle.commit import Committed, commit
from scheduling.cycle.snapshot import load
from scheduling.engine.model import Plan, Snapshot, public_id
from scheduling.engine.planner import plan
from scheduling.engine.whatif.replay import Recording
from scheduling.models import Cycle

logger = logging.getLogger(__name__)
# A cycle in which nothing happened is kept this often, as a sign of life.
IDLE_ROW_SECONDS = 60.0
# Reasons of which only the evidence changed are rewritten this often: with 10,000 waiting jobs that is a large write.
EVIDENCE_SECONDS = 5.0


# After a cycle the worker rests this many times as long as the cycle took, but never longer than this: under a stream
# of submits neighbours share a cycle, and the processor is for those who submit.
REST, MAX_REST_SECONDS = 3.0, 0.05


@dataclass
class _Memory:
    """When this worker last did what need not be done each time, and until when it rests."""

    idle_row_at: float = 0.0
    evidence_at: float = 0.0
    rest_until: float = 0.0


_memory = _Memory()


def run_paced(trigger: str) -> None:
    """What the worker calls: `run`, after a rest from the last one. What was announced meanwhile is in its snapshot."""
    time.sleep(max(0.0, _memory.rest_until - time.monotonic()))
    began = time.monotonic()
    try:
        run(trigger)
    finally:
        ended = time.monotonic()
        _memory.rest_until = ended + min(REST * (ended - began), MAX_REST_SECONDS)


def run(trigger: str) -> Committed | None:
    """Runs a cycle, or leaves it to the one that is about to start.

    "Another one runs, so return" would lose this wake-up: what it announced may have come after that cycle's snapshot.
    So one runs and one waits. Who finds somebody waiting may leave, because the waiting one has yet to load its
    snapshot and will see everything committed until now."""
    if not locks.try_acquire(Lock.CYCLE_WAITING):
        return None
    try:
        locks.acquire(Lock.CYCLE_RUNNING)
    finally:
        locks.release(Lock.CYCLE_WAITING)  # before the snapshot is loaded: later wake-ups must wait for their own
    gc.disable()  # a snapshot is many objects and no garbage: looking through them all may cost as much as the plan
    try:
        with tracing.span("cycle", {"gpusched.trigger": trigger}):
            done, decision = _run(trigger)
    finally:
        gc.enable()
        locks.release(Lock.CYCLE_RUNNING)
    if decision is not None:
        _keep(decision)  # after the lock is released: the next cycle need not wait for it
    return done


class _Decision(NamedTuple):
    """A cycle that has a row, and what to record of it."""

    cycle_id: int
    recording: Recording
    committed_at: datetime


def _keep(decision: _Decision) -> None:
    """The cycle is committed: an error here must not make the worker report that it failed."""
    try:
        recorded_cycles.store(*decision)
    except Exception:
        logger.exception("cycle %s was not recorded", decision.cycle_id)


def _run(trigger: str) -> tuple[Committed, _Decision | None]:
    started_at, clock = timezone.now(), _Clock()
    with clock.phase("sweep"):
        mark_silent_nodes_lost()
        stop_on_lost_devices()
        end_finished_arrays()
    with clock.phase("snapshot"):
        snapshot, seen = load()
        seen.evidence_is_due = time.monotonic() - _memory.evidence_at > EVIDENCE_SECONDS
    with clock.phase("plan"):
        decided = plan(snapshot, seen.policy, seen.now)
    with clock.phase("commit"):
        done = commit(decided, snapshot, seen)
        announce_changes(seen.arrays)
    figures = {"pending": len(snapshot.jobs), "placed": done.placed, "preempted": done.preempted, "stale": done.stale}
    tracing.describe({f"gpusched.{name}": value for name, value in figures.items()})
    if seen.evidence_is_due:
        _memory.evidence_at = time.monotonic()
    phases = {phase.removesuffix("_ms"): [ms / 1000] for phase, ms in clock.ms.items()}
    observe("gpu_scheduler_scheduling_latency_seconds", phases)
    execute(_BEAT, [sum(clock.ms.values()), _worker()])
    cycle_id = _record(trigger, started_at, clock, snapshot, decided, done)
    if cycle_id is None or not snapshot.jobs:
        return done, None
    # The sweep came before the snapshot, whose moment `now` is.
    elapsed_ms = sum(clock.ms.values()) - clock.ms["sweep_ms"]
    committed_at = datetime.fromtimestamp(seen.now + elapsed_ms / 1000, UTC)
    return done, _Decision(cycle_id, Recording(seen.now, seen.policy, snapshot, decided), committed_at)


def _worker() -> str:
    """Asked for each time: the process that loads this module is not the one that runs cycles."""
    return f"{socket.gethostname()}:{os.getpid()}"


_BEAT = """
    INSERT INTO scheduling_beat (id, at, ms, worker) VALUES (1, clock_timestamp(), %s, %s)
        ON CONFLICT (id) DO UPDATE SET at = excluded.at, ms = excluded.ms, worker = excluded.worker
"""


class _Clock:
    """Milliseconds of each phase, which is a span of its own."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        with tracing.span(f"cycle.{name}"):
            yield
        self.ms[f"{name}_ms"] = round((time.perf_counter() - began) * 1000, 3)


def _record(
    trigger: str, started_at: datetime, clock: _Clock, snapshot: Snapshot, decided: Plan, done: Committed
) -> int | None:
    """Write the row of a cycle that did something, and now and then one of a cycle that did nothing. Return its id."""
    reserved = decided.reservation
    # The next cycle reads from here which job keeps its turn.
    reserved_job_id = public_id(reserved.job_id) if reserved else None
    is_promise_new = reserved_job_id != snapshot.reserved_job_id
    did_something = done.placed or done.preempted or done.stale or done.reasons_written or is_promise_new
    if not did_something and time.monotonic() - _memory.idle_row_at < IDLE_ROW_SECONDS:
        return None
    _memory.idle_row_at = time.monotonic()
    row = Cycle.objects.create(
        started_at=started_at,
        trigger=trigger,
        worker=_worker(),
        pending=len(snapshot.jobs),
        placed=done.placed,
        preempted=done.preempted,
        stale=done.stale,
        reasons_written=done.reasons_written,
        reserved_job_id=reserved_job_id,
        reserved_at=datetime.fromtimestamp(reserved.at, UTC) if reserved else None,
        **clock.ms,
    )
    return row.id
