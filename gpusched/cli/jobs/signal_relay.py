"""Acts on the signals that `run` gets, for its job: beside the reading of the output, which goes on undisturbed."""

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
    """The command was asked to end for the second time. `number`: of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class SignalQueue:
    """The signals that came. `waiting`: those that nobody has acted on yet, in order, for another thread to read.
    `ending`: the first that asked the command to end."""

    def __init__(self) -> None:
        # Made for this: putting into it is safe in the middle of anything.
        self.waiting: SimpleQueue[signal.Signals] = SimpleQueue()
        self.ending: signal.Signals | None = None

    def hear(self, number: int, _: FrameType | None) -> None:
        if number in ENDING:
            if self.ending is not None:
                raise Signalled(number)
            self.ending = signal.Signals(number)
        self.waiting.put(signal.Signals(number))


@contextmanager
def catch_signals() -> Iterator[SignalQueue]:
    """While it lasts no signal of ENDING and PASSED_ON ends the command, but for the second one of ENDING, which raises
    Signalled. One that is ignored stays so (nohup)."""
    received = SignalQueue()
    before = {
        number: signal.getsignal(number)
        for number in ENDING | PASSED_ON
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        for number in before:
            signal.signal(number, received.hear)
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_AGAIN_SECONDS = 2.0
_MAX_SECONDS = 120.0


class Relay:
    """`received`: what came and will come. The job may be told later: a signal waits for that, so that none leaves a
    job that nobody knows of."""

    def __init__(self, client: "Client", received: SignalQueue) -> None:
        self._client, self._received = client, received
        self._job_id = 0
        self._is_known, self._is_told = threading.Event(), threading.Event()
        # It must not keep the command from ending.
        threading.Thread(target=self._work, daemon=True).start()

    def tell_job(self, job_id: int) -> None:
        self._job_id = job_id
        self._is_known.set()

    def wait_told(self) -> None:
        """Returns when the server knows that the job is to end, or has had the time to hear it."""
        self._is_told.wait(_MAX_SECONDS)

    def _work(self) -> None:
        while True:
            number = self._received.waiting.get()
            if number in ENDING and not self._is_known.is_set():
                messages.note("\nthe job is cancelled as soon as its id is known; Ctrl-C again leaves at once")
            self._is_known.wait()
            if number in ENDING:
                self._cancel()
                self._is_told.set()
            else:
                self._pass_on(number)

    def _cancel(self) -> None:
        from gpusched.client import Conflict, GpuschedError, Unreachable

        messages.note(f"\ncancelling job {self._job_id}; Ctrl-C again leaves at once")
        while True:
            try:
                self._client.cancel(self._job_id)
            except Unreachable as error:
                messages.note(f"not cancelled yet: {error}")
                time.sleep(_AGAIN_SECONDS)
                continue
            except Conflict:
                messages.note(f"job {self._job_id} had ended already")
            except GpuschedError as error:
                messages.failure(error)
            return

    def _pass_on(self, number: Signals) -> None:
        from gpusched.client import GpuschedError

        name = next(one for one in NAMES if one == number.name.removeprefix("SIG"))
        try:
            messages.note(f"\n{self._client.send_signal(self._job_id, name).message}")
        except GpuschedError as error:
            messages.note(f"\n{name} is not passed on: {error}")
