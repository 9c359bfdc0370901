"""Handle the signals that `run` receives for its job, beside the reading of the output, which continues."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from signal import Signals
from types import FrameType
from typing import TYPE_CHECKING

from gpusched.cli.terminal import messages
from gpusched.protocol.signals import NAMES

if TYPE_CHECKING:
    from gpusched.client import Client


ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


PASSED_ON = frozenset({signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT})


class Signalled(KeyboardInterrupt):
    """The second signal that asks the command to end. `number`: of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class SignalQueue:
    """The received signals. `waiting`: unhandled ones, in order, for another thread to read. `ending`: the first that
    asked the command to end."""

    def __init__(self) -> None:
        # A SimpleQueue is reentrant: a signal handler can put into it at any point.
        self.waiting: SimpleQueue[signal.Signals] = SimpleQueue()
        self.ending: signal.Signals | None = None

    def receive(self, number: int, _: FrameType | None) -> None:
        if number in ENDING:
            if self.ending is not None:
                raise Signalled(number)
            self.ending = signal.Signals(number)
        self.waiting.put(signal.Signals(number))


@contextmanager
def catch_signals() -> Iterator[SignalQueue]:
    """Catch all signals of ENDING and PASSED_ON, so that none ends the command except the second one of ENDING, which
    raises Signalled. An ignored signal stays ignored (nohup)."""
    received = SignalQueue()
    previous = {
        number: signal.getsignal(number)
        for number in ENDING | PASSED_ON
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        for number in previous:
            signal.signal(number, received.receive)
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


_RETRY_SECONDS = 2.0
_MAX_SECONDS = 120.0


class Relay:
    """Acts on received signals. The job's id may come later: signals wait for it, so that none leaves a job behind that
    the user does not know of."""

    def __init__(self, client: "Client", received: SignalQueue) -> None:
        self._client, self._received = client, received
        self._job_id = 0
        self._has_job, self._is_cancelled = threading.Event(), threading.Event()
        # A daemon thread does not keep the command from exiting.
        threading.Thread(target=self._work, daemon=True).start()

    def set_job(self, job_id: int) -> None:
        self._job_id = job_id
        self._has_job.set()

    def wait_cancelled(self) -> None:
        """Return when the server has accepted the cancellation, or after a limited time."""
        self._is_cancelled.wait(_MAX_SECONDS)

    def _work(self) -> None:
        while True:
            number = self._received.waiting.get()
            if number in ENDING and not self._has_job.is_set():
                messages.note("\nthe job is cancelled as soon as its id is known; Ctrl-C again exits at once")
            self._has_job.wait()
            if number in ENDING:
                self._cancel()
                self._is_cancelled.set()
            else:
                self._pass_on(number)

    def _cancel(self) -> None:
        from gpusched.client import Conflict, GpuschedError, RateLimited, ServerError, Unreachable

        messages.note(f"\ncancelling job {self._job_id}; Ctrl-C again exits at once")
        while True:
            try:
                self._client.cancel(self._job_id)
            except (Unreachable, RateLimited, ServerError) as error:
                messages.note(f"not cancelled yet: {error}")
                time.sleep(_RETRY_SECONDS)
                continue
            except Conflict:
                messages.note(f"job {self._job_id} had ended already")
            except GpuschedError as error:
                messages.failure(error)
            return

    def _pass_on(self, number: Signals) -> None:
        from gpusched.client import GpuschedError

        name = next(allowed for allowed in NAMES if allowed == number.name.removeprefix("SIG"))
        try:
            messages.note(f"\n{self._client.send_signal(self._job_id, name).message}")
        except GpuschedError as error:
            messages.note(f"\n{name} could not be passed on: {error}")
