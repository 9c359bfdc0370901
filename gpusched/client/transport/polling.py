"""The pace of repeated reads: pauses, limits, and which change of a job counts."""

import math
from dataclasses import replace
from typing import TypeVar

from gpusched.client.transport.call import Call
from gpusched.protocol.rest.jobs import JobData

T = TypeVar("T")

PIECE_BYTES = 1 << 20
# A wait of hours for a job must survive a restart or an upgrade of the server.
RETRY_SECONDS = 120.0
QUICK_SECONDS, SLOW_SECONDS = 0.1, 1.0
READ_JOB_SECONDS = 2.0
# The last bytes can reach the server after the end does; a lost node never sends them.
LATE_BYTES_SECONDS = 10.0
# Below the timeout of a request.
LONG_POLL_SECONDS = 20
# A server may take this long to answer, even just before the timeout, or after a long poll up to it.
_SPARE_SECONDS = 2.0


def longer(pause: float) -> float:
    """Return the pause after this one, in seconds."""
    return min(pause * 1.5, SLOW_SECONDS)


def within(call: Call[T], seconds: float) -> Call[T]:
    """Return the call with a shorter timeout, so that it and its retries end soon after a deadline in `seconds`."""
    return call if seconds == math.inf else replace(call, max_seconds=seconds + _SPARE_SECONDS)


def has_changed(previous: JobData, latest: JobData) -> bool:
    """Return whether the job has another state, attempt or reason."""
    return _status(previous) != _status(latest)


def _status(job: JobData) -> tuple[object, ...]:
    return job.state, job.attempt, job.reason and job.reason.code
