"""The container client of a supervisor: it signals and removes a rank's container through the runtime, because the
container's processes may not be the supervisor's children. Standard library only."""

import os
import signal
import time
from typing import Any

# A runtime that hangs must not block a supervisor or the agent for ever.
CALL_SECONDS = 20.0
REMOVE_SECONDS = 60.0
# For callers that retry later and have other containers to check.
SHORT_SECONDS = 3.0
DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
_POLL_SECONDS = 0.02


def send(spec: dict[str, Any], number: int) -> bool:
    """Signal the first process of this spec.json's container. Return False if there is none."""
    if "container" not in spec:
        return False
    return call(spec, "kill", "--signal", signal.Signals(number).name.removeprefix("SIG"), name_of(spec))[0] == 0


def remove(spec: dict[str, Any], seconds: float = REMOVE_SECONDS) -> bool:
    """Kill and remove the container, if there is one. Return False if the runtime does not confirm the removal within
    `seconds`: the container may still compute."""
    until = time.monotonic() + seconds
    call_seconds = CALL_SECONDS if seconds else SHORT_SECONDS
    while "container" in spec and not is_gone(spec, call_seconds):
        call(spec, "kill", "--signal", "KILL", name_of(spec), seconds=call_seconds)
        if call(spec, "rm", "--force", name_of(spec), seconds=call_seconds)[0] != 0:
            if time.monotonic() > until:
                return False
            time.sleep(1.0)
    return True


def is_gone(spec: dict[str, Any], seconds: float = CALL_SECONDS) -> bool:
    """Return True if the runtime confirms that there is no such container; False also if it does not answer."""
    arguments = ("ps", "--all", "--format", "{{.Names}}", "--filter", f"name={name_of(spec)}")
    code, listed = call(spec, *arguments, seconds=seconds)
    return code == 0 and name_of(spec) not in listed.split()


def is_daemon_gone(spec: dict[str, Any]) -> bool:
    """Return True if docker's daemon accepts no connections; False if it is only slow, and for a runtime without
    one."""
    code, output = call(spec, "version", with_errors=True)
    return code not in (0, None) and "Cannot connect to the Docker daemon" in output


def name_of(spec: dict[str, Any]) -> str:
    """Return the name of the container."""
    return str(spec["container"]["name"])


def call(
    spec: dict[str, Any], *arguments: str, seconds: float = CALL_SECONDS, with_errors: bool = False
) -> tuple[int | None, str]:
    """Return (exit code, output) of the runtime. The code is None if the runtime cannot be started or takes too
    long."""
    argv = [*spec["container"]["command"], *arguments]
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with open(reader, "rb") as output:
        try:
            pid = os.posix_spawnp(
                argv[0],
                argv,
                spec["environment"],
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, writer, 1),
                    (os.POSIX_SPAWN_DUP2, writer, 2)
                    if with_errors
                    else (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setsigmask=[],
                setsigdef=DEFAULT_SIGNALS,
            )
        except (OSError, ValueError):
            return None, ""
        finally:
            os.close(writer)
        code = _await(pid, seconds)
        # A process that the runtime left behind may still hold the pipe.
        os.set_blocking(reader, False)
        return code, (output.read(65536) or b"").decode(errors="replace")


def _await(pid: int, seconds: float) -> int | None:
    until = time.monotonic() + seconds
    while True:
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
        if ended_pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(_POLL_SECONDS)
