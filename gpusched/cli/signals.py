"""Turns the signals that ask a command to end into an exception, so that it can end what it began elsewhere first."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Signalled(KeyboardInterrupt):
    """`number`: of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def signals_raised() -> Iterator[None]:
    """While it lasts SIGINT, SIGTERM and SIGHUP raise Signalled; one that is ignored stays so (nohup)."""
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        for number in before:
            signal.signal(number, _raise)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, _: FrameType | None) -> None:
    raise Signalled(number)
