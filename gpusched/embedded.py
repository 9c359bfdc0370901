"""Embedded mode: a control plane of its own for a notebook, a script or a test, which ends with the process that
started it (gpusched/lib/process/embedded_machine.py supervises it)."""

import importlib.util
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from gpusched.client.errors import GpuschedError, Invalid
from gpusched.installation import SERVER_ROOT

if TYPE_CHECKING:
    from gpusched.client import Client

_START_SECONDS = 240.0
# Of a pretend node whose specification omits them.
_CPU_CORES_PER_GPU, _MEMORY_MB_PER_GPU = 8, 65_536
_STOP_SECONDS = 60.0


class Local:
    """An embedded control plane while a `with` block runs. `settings`: the server's, such as {"min_runtime_seconds":
    0}."""

    def __init__(self, gpus: str | Sequence[str], settings: Mapping[str, object]) -> None:
        self._fleet = [_specification(text) for text in ([gpus] if isinstance(gpus, str) else gpus)]
        self._settings = {f"GPUSCHED_{name.upper()}": str(value) for name, value in settings.items()}
        self._process: subprocess.Popen[str] | None = None
        self._owner = os.getpid()
        self._client: Client | None = None

    def __enter__(self) -> "Client":
        from gpusched.client import Client

        try:
            message = self._start()
        except BaseException:
            self._stop()
            raise
        self._client = Client(message["url"], message["token"], tenant="default")
        return self._client

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A process that the block forked leaves the block, too, but the control plane is not its own.
        if os.getpid() == self._owner:
            if self._client is not None:
                self._client.close()
            self._stop()

    def _start(self) -> dict[str, str]:
        _require_server()
        if self._process is not None:
            raise Invalid("this control plane has been started", next_step="call gpusched.local() again")
        self._owner = os.getpid()
        command = [sys.executable, "-m", "gpusched.lib.process.embedded_machine", str(self._owner), *self._fleet]
        # In a session of its own, a Ctrl-C in the terminal or a kill of the notebook's group does not reach it: it
        # would end without removing its files.
        self._process = subprocess.Popen(
            command, cwd=SERVER_ROOT, env={**_outside(), **self._settings}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], _START_SECONDS)
        line = self._process.stdout.readline() if readable else ""
        if not line:
            raise GpuschedError("the embedded control plane did not start", next_step="try `make up`, which shows why")
        message: dict[str, str] = json.loads(line)
        if "error" in message:
            raise GpuschedError(f"the embedded control plane did not start: {message['error']}")
        return message

    def _stop(self) -> None:
        """Stop the supervisor and wait until it has removed everything."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()


def _specification(text: str) -> str:
    """Return the specification of pretend nodes with the cores and the memory that it may omit. Raises Invalid."""
    parts = text.split(":")
    if len(parts) not in (4, 6) or not all(part.isdecimal() for part in (parts[0], *parts[2:])):
        raise Invalid(
            f"gpus={text!r} is not NODES:MODEL:GPU_MEMORY_MB:GPUS", next_step="use one like 1:A100:40960:8, or a list"
        )
    if len(parts) == 4:
        gpus = max(1, int(parts[3]))
        parts += [str(gpus * _CPU_CORES_PER_GPU), str(gpus * _MEMORY_MB_PER_GPU)]
    return ":".join(parts)


def _require_server() -> None:
    if importlib.util.find_spec("django") is None:
        raise GpuschedError(
            "embedded mode needs the server, which is not installed here",
            next_step="run: pip install 'gpusched[server]'",
        )


def _outside() -> dict[str, str]:
    """Return the environment without the variables of another gpusched."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GPUSCHED_", "DATABASE_URL", "DJANGO_", "Q_CLUSTER_NAME"))
    }
