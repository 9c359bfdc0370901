"""Keeps signals from ending a command, for it to act on them: what it began elsewhere is not left behind unseen."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType

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
