"""Keep compressed recordings of the latest scheduling cycles, so that each can be replayed days later."""

import time
import zlib
from datetime import datetime

from django.conf import settings

from gpusched.lib.api.problems import Problem, not_found
from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import execute, rows
from gpusched.protocol.reasons import Pending
from gpusched.protocol.states import WAITING
from scheduling.cycle import recording
from scheduling.cycle.recording import RecordedCycle
from scheduling.engine.whatif.replay import Recording

# Recording takes at most this part of a worker's time: on a busy cluster of 200 nodes that is about one cycle a second.
TIME_SHARE = 0.02
_MIB = 1 << 20
# Reasons of pending jobs that are in no plan.
_WITHOUT_CYCLE = (Pending.SCHEDULER_BEHIND, Pending.DEPENDENCY, Pending.MAX_PARALLEL)

_pauses_until: Cache[None, float] = Cache()


def store(cycle_id: int, decided: Recording, committed_at: datetime) -> bool:
    """Store the recording of a cycle, unless recordings are off or have used up their share of time."""
    began = time.monotonic()
    if not settings.ENV.cycle_recordings_mb or began < _pauses_until.last(None, 0.0):
        return False
    content = zlib.compress(recording.encode(decided))
    execute(
        """INSERT INTO scheduling_recordedcycle (cycle_id, decided_at, committed_at, size_bytes, content)
           VALUES (%s, to_timestamp(%s), %s, %s, %s)""",
        [cycle_id, decided.now, committed_at, len(content), content],
    )
    ended = time.monotonic()
    _pauses_until.put(None, ended + (ended - began) / TIME_SHARE)
    return True


def load(cycle_id: int) -> RecordedCycle:
    """Return a recording. Raise Problem 404 if the cycle was not recorded or its recording is deleted, and 409 if a
    version of gpusched with another format recorded it."""
    content = rows("SELECT content FROM scheduling_recordedcycle WHERE cycle_id = %s", [cycle_id])
    if not content:
        raise not_found(
            f"recording of cycle {cycle_id}",
            "`gpusched cycles` lists recorded cycles; GPUSCHED_CYCLE_RECORDINGS_MB limits how many are kept",
        )
    try:
        return recording.decode(zlib.decompress(content[0][0]))
    except ValueError as error:
        raise Problem(409, "other_format", f"cycle {cycle_id}: {error}", next_step="replay a later cycle") from error


def trim() -> int:
    """Delete the oldest recordings beyond GPUSCHED_CYCLE_RECORDINGS_MB. Return how many."""
    return execute(
        """DELETE FROM scheduling_recordedcycle WHERE cycle_id <= (
               SELECT max(cycle_id) FROM (
                   SELECT cycle_id, sum(size_bytes) OVER (ORDER BY cycle_id DESC) AS total
                     FROM scheduling_recordedcycle) newer
                WHERE total > %s)""",
        [settings.ENV.cycle_recordings_mb * _MIB],
    )


def deciding(job_id: int) -> int | None:
    """Return the id of the recorded cycle that placed the latest attempt of a job or, while the job waits, of the
    latest recorded cycle that left it waiting. None: that cycle was not recorded, or no cycle considers the job now:
    it is held, waits for other jobs, or joined the queue since."""
    jobs = rows(
        """SELECT j.state, j.submitted_at, a.scheduled_at,
                  j.state = 'pending' AND j.open_dependencies = 0 AND j.reason <> ALL(%s)
             FROM jobs_all j LEFT JOIN jobs_attempts a ON a.job_id = j.id AND a.number = j.attempt WHERE j.id = %s""",
        [[str(reason) for reason in _WITHOUT_CYCLE], job_id],
    )
    if not jobs:  # deleted a moment ago
        return None
    [(state, submitted_at, placed_at, is_planned)] = jobs
    if state not in WAITING:
        sql, params = "decided_at <= %s AND committed_at >= %s ORDER BY decided_at DESC", [placed_at, placed_at]
    elif is_planned:
        sql, params = "decided_at >= %s ORDER BY decided_at DESC", [submitted_at]
    else:
        return None
    cycles = rows(f"SELECT cycle_id FROM scheduling_recordedcycle WHERE {sql} LIMIT 1", params)
    return cycles[0][0] if cycles else None
