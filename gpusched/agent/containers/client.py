"""A rank that runs in a container, as its supervisor sees it: signalled and removed through the runtime, whose daemon
may be nobody's child. Standard library only."""

import os
import signal
import time
from typing import Any

# A runtime that does not answer must not keep a supervisor, or the agent, for ever.
CALL_SECONDS = 20.0
REMOVE_SECONDS = 60.0
# For who asks again later, and has others to look at.
SHORT_SECONDS = 3.0
DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
_POLL_SECONDS = 0.02


def send(spec: dict[str, Any], number: int) -> bool:
    """Signals the first process of the container of this spec.json; False if there is none (yet or any more)."""
    if "container" not in spec:
        return False
    return call(spec, "kill", "--signal", signal.Signals(number).name.removeprefix("SIG"), name_of(spec))[0] == 0


def remove(spec: dict[str, Any], seconds: float = REMOVE_SECONDS) -> bool:
    """Kills and removes the container, if there is one; False if the runtime does not say within `seconds` that none is
    left: then it may still compute."""
    until = time.monotonic() + seconds
    patience = CALL_SECONDS if seconds else SHORT_SECONDS
    while "container" in spec and not is_gone(spec, patience):
        call(spec, "kill", "--signal", "KILL", name_of(spec), seconds=patience)
        if call(spec, "rm", "--force", name_of(spec), seconds=patience)[0] != 0:
            if time.monotonic() > until:
                return False
            time.sleep(1.0)
    return True


def is_gone(spec: dict[str, Any], seconds: float = CALL_SECONDS) -> bool:
    """Whether the runtime says that there is no such container; False also if it says nothing."""
    words = ("ps", "--all", "--format", "{{.Names}}", "--filter", f"name={name_of(spec)}")
    code, listed = call(spec, *words, seconds=seconds)
    return code == 0 and name_of(spec) not in listed.split()


def name_of(spec: dict[str, Any]) -> str:
    """How its container is called."""
    return str(spec["container"]["name"])


def call(spec: dict[str, Any], *arguments: str, seconds: float = CALL_SECONDS) -> tuple[int | None, str]:
    """(exit code, output) of the runtime; no code if it cannot be started or takes too long."""
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
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setsigmask=[],
                setsigdef=DEFAULT_SIGNALS,
            )
        except (OSError, ValueError):
            return None, ""
        finally:
            os.close(writer)
        code = _await(pid, seconds)
        # What it left running may still hold the pipe.
        os.set_blocking(reader, False)
        return code, (output.read(65536) or b"").decode(errors="replace")


def _await(pid: int, seconds: float) -> int | None:
    until = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(_POLL_SECONDS)
