"""Run scheduling cycles. Only the worker that leads does (scheduling/worker/leadership.py)."""

import gc
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

from django.db import transaction
from django.utils import timezone

from gpusched import tracing
from gpusched.lib.cache import Cache
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
# A cycle without changes is stored this often, as a heartbeat.
IDLE_ROW_SECONDS = 60.0
# Reasons whose evidence alone changed are rewritten this often: with 10,000 pending jobs that is a large write.
EVIDENCE_SECONDS = 5.0


# Nodes are silent, and GPUs lost, for many seconds before anything follows: cycles on events check no more often.
SWEEP_SECONDS = 0.5


# After a cycle the worker pauses this many times as long as the cycle took, but at most this long: under a stream of
# submits, several share a cycle, and the submits get the CPU.
PACE_FACTOR, MAX_PACE_SECONDS = 3.0, 0.05


# The times of this worker's last sweep and occasional writes (`idle row`, `evidence`), and until when it pauses
# (`pause`).
_times: Cache[str, float] = Cache(max_entries=4)


def run_paced(trigger: str) -> None:
    """Run a cycle after the pause that follows the last one. Its snapshot includes what was announced meanwhile."""
    time.sleep(max(0.0, _times.last("pause", 0.0) - time.monotonic()))
    began = time.monotonic()
    try:
        run(trigger)
    finally:
        ended = time.monotonic()
        _times.put("pause", ended + min(PACE_FACTOR * (ended - began), MAX_PACE_SECONDS))


def run(trigger: str) -> Committed:
    gc.disable()  # a snapshot has many objects and no garbage: scanning them may cost as much as the plan
    try:
        with tracing.span("cycle", {"gpusched.trigger": trigger}):
            committed, decision = _run(trigger)
    finally:
        gc.enable()
    if decision is not None:
        _store_recording(decision)
    return committed


class _Decision(NamedTuple):
    """A stored cycle, and its recording."""

    cycle_id: int
    recording: Recording
    committed_at: datetime


def _store_recording(decision: _Decision) -> None:
    """Store the recording. The cycle is committed, so an error here must not fail the task."""
    try:
        recorded_cycles.store(*decision)
    except Exception:
        logger.exception("cycle %s was not recorded", decision.cycle_id)


def _run(trigger: str) -> tuple[Committed, _Decision | None]:
    started_at, clock = timezone.now(), _Clock()
    with clock.phase("sweep"):
        if trigger != "event" or time.monotonic() - _times.last("sweep", 0.0) > SWEEP_SECONDS:
            mark_silent_nodes_lost()
            stop_on_lost_devices()
            _times.put("sweep", time.monotonic())
        end_finished_arrays()
    with clock.phase("snapshot"):
        snapshot, basis = load()
        basis.evidence_is_due = time.monotonic() - _times.last("evidence", 0.0) > EVIDENCE_SECONDS
    with clock.phase("plan"):
        decided = plan(snapshot, basis.policy, basis.now)
    with clock.phase("commit"):
        committed = commit(decided, snapshot, basis)
        announce_changes(basis.arrays)
    figures = {
        "pending": len(snapshot.jobs),
        "placed": committed.placed,
        "preempted": committed.preempted,
        "stale": committed.stale,
    }
    tracing.describe({f"gpusched.{name}": value for name, value in figures.items()})
    if basis.evidence_is_due:
        _times.put("evidence", time.monotonic())
    phases = {phase.removesuffix("_ms"): [ms / 1000] for phase, ms in clock.ms.items()}
    observe("gpu_scheduler_scheduling_latency_seconds", phases)
    with transaction.atomic():
        execute(_BEAT, [sum(clock.ms.values()), worker_name()])
        cycle_id = _record(trigger, started_at, clock, snapshot, decided, committed)
    if cycle_id is None or not snapshot.jobs:
        return committed, None
    # `now` is the time of the snapshot, which follows the sweep.
    elapsed_ms = sum(clock.ms.values()) - clock.ms["sweep_ms"]
    committed_at = datetime.fromtimestamp(basis.now + elapsed_ms / 1000, UTC)
    return committed, _Decision(cycle_id, Recording(basis.now, basis.policy, snapshot, decided), committed_at)


def worker_name() -> str:
    """Return the worker's name. Not a constant: another process loads this module than runs cycles."""
    return f"{socket.gethostname()}:{os.getpid()}"


_BEAT = """
    INSERT INTO scheduling_beat (id, at, ms, worker) VALUES (1, clock_timestamp(), %s, %s)
        ON CONFLICT (id) DO UPDATE SET at = excluded.at, ms = excluded.ms, worker = excluded.worker
"""


class _Clock:
    """Measure the milliseconds of each phase, and trace it as a span."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        with tracing.span(f"cycle.{name}"):
            yield
        self.ms[f"{name}_ms"] = round((time.perf_counter() - began) * 1000, 3)


def _record(
    trigger: str, started_at: datetime, clock: _Clock, snapshot: Snapshot, decided: Plan, committed: Committed
) -> int | None:
    """Write the row of a cycle that did something, and now and then one of a cycle that did nothing. Return its id."""
    reserved = decided.reservation
    # The next cycle reads from here which job keeps its promise.
    reserved_job_id = public_id(reserved.job_id) if reserved else None
    is_promise_new = reserved_job_id != snapshot.reserved_job_id
    did_something = (
        committed.placed or committed.preempted or committed.stale or committed.reasons_written or is_promise_new
    )
    if not did_something and time.monotonic() - _times.last("idle row", 0.0) < IDLE_ROW_SECONDS:
        return None
    _times.put("idle row", time.monotonic())
    row = Cycle.objects.create(
        started_at=started_at,
        trigger=trigger,
        worker=worker_name(),
        pending=len(snapshot.jobs),
        placed=committed.placed,
        preempted=committed.preempted,
        stale=committed.stale,
        reasons_written=committed.reasons_written,
        reserved_job_id=reserved_job_id,
        reserved_at=datetime.fromtimestamp(reserved.at, UTC) if reserved else None,
        **clock.ms,
    )
    return row.id
