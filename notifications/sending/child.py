"""Run a sending process (process.py): hand messages to it, and end it when one takes too long."""

import os
import subprocess
import sys
import threading
from contextlib import suppress

import msgspec

from gpusched.installation import SERVER_ROOT
from notifications.sending.message import Message, Result

# Of the environment: no settings and secrets of the server, no proxies, which would connect for it.
_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "LD_LIBRARY_PATH")
MESSAGE_SECONDS = 20.0
START_SECONDS = 60.0


class Stopped(Exception):
    """The sender stops. Whether the message was sent is unknown."""


class SendingProcess:
    """A sending process, for one thread. It starts with the first message, and again after one that ended it."""

    def __init__(self, allowed_networks: str) -> None:
        self._allowed_networks = allowed_networks
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()

    def send(self, message: Message) -> Result:
        """Send a message within MESSAGE_SECONDS, and return how that went. Raises Stopped, but no error of the send.

        If the process ends meanwhile, another one tries once more: that it was killed is no fault of the receiver."""
        return self._try(message) or self._try(message) or Result(is_sent=False, error="the sending process ended")

    def _try(self, message: Message) -> Result | None:
        """Return how the send went, or None if the process ended by itself."""
        if self._stopped.is_set():
            raise Stopped
        is_new = self._process is None
        is_over = threading.Event()
        child = self._process = self._process or self._start()
        if self._stopped.is_set():  # since this call began
            child.kill()

        def give_up() -> None:
            is_over.set()
            child.kill()

        timer = threading.Timer(MESSAGE_SECONDS + (START_SECONDS if is_new else 0.0), give_up)
        timer.start()
        try:
            assert child.stdin and child.stdout
            child.stdin.write(msgspec.json.encode(message) + b"\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except OSError:
            line = b""
        finally:
            timer.cancel()
        if line and not is_over.is_set():
            return msgspec.json.decode(line, type=Result)
        self.end()
        if is_over.is_set():
            return Result(is_sent=False, error=f"it took longer than {MESSAGE_SECONDS:g} s")
        return None

    def stop(self) -> None:
        """Interrupt a send in the process's thread, and let none begin. `end` follows when the thread has ended."""
        self._stopped.set()
        if (child := self._process) is not None:
            child.kill()

    def end(self) -> None:
        """Kill the process and close its pipes."""
        if self._process is not None:
            self._process.kill()
            with suppress(OSError), self._process:  # closes the pipes and waits
                pass
            self._process = None

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        child = subprocess.Popen(
            [sys.executable, "-B", "-m", "notifications.sending.process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=SERVER_ROOT, env=environment,
        )  # fmt: skip
        assert child.stdin
        child.stdin.write(self._allowed_networks.encode() + b"\n")
        return child
