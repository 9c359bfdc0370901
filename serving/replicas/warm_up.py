"""Run an endpoint's warm-up command in the job of a replica, before the replica's own program.

It runs where the replica runs: on its node, with its mounts, in its image. A shell runs both, so that no node needs a
newer agent."""

import shlex
from collections.abc import Sequence

import msgspec

from gpusched.protocol.job_request import JobRequest

_SCRIPT = """timeout -k 5 {seconds} {command} </dev/null || \
echo "gpusched: the warm-up command ended with status $?; the replica starts without it" >&2
exec "$0" "$@"
"""


def with_warm_up(request: JobRequest, command: Sequence[str], seconds: int) -> JobRequest:
    """Return the job request of a replica that runs `command` first, for at most these seconds. The replica's program
    then replaces the shell, however the command ended."""
    script = _SCRIPT.format(seconds=seconds, command=shlex.join(command))
    return msgspec.structs.replace(request, command=["sh", "-c", script, *request.command])
