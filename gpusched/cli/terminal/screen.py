"""Shows a view over the whole terminal and draws it again and again, until q or Ctrl-C."""

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from gpusched.cli.terminal import output
from gpusched.cli.terminal.output import Cell, Column, Format

T = TypeVar("T")
# Columns and lines of the terminal → the lines to show, none longer than it is wide.
Frame = Callable[[int, int], Sequence[str]]
SECONDS = 2.0


def is_there() -> bool:
    """Whether there is somebody to look at it."""
    return sys.stdout.isatty()


def show(frame: Frame) -> None:
    """Draws until the reader has seen enough. What `frame` raises ends it, with the terminal as it was."""
    with suppress(KeyboardInterrupt), _terminated_in_order(), _whole_terminal(), _keys() as is_over:
        while True:
            size = shutil.get_terminal_size()
            lines = frame(size.columns, size.lines)[: size.lines]
            # Drawn over what is there: to clear it first would flicker.
            sys.stdout.write("\x1b[H" + "\x1b[K\n".join(lines) + "\x1b[K\x1b[J")
            sys.stdout.flush()
            if is_over(SECONDS):
                return


def items(
    fetch: Callable[[], Sequence[T]],
    columns: Sequence[Column[T]],
    form: Format,
    name: Callable[[T], Cell],
    *,
    is_watching: bool,
) -> None:
    """A list, printed once; with `is_watching` over and over: drawn on a terminal, elsewhere one after the other."""
    if is_watching and is_there() and form in (Format.TABLE, Format.WIDE):
        show(lambda width, height: output.table(fetch(), columns, form, room=width, is_clipped=True))
        return
    output.items(fetch(), columns, form, name)
    with suppress(KeyboardInterrupt):
        while is_watching:
            time.sleep(SECONDS)
            output.items(fetch(), columns, form, name)


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """SIGTERM ends it, too, with the terminal as it was."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _whole_terminal() -> Iterator[None]:
    """The other screen of the terminal, so that what was there before is there afterwards; no cursor."""
    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        yield
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Gives a function that waits so many seconds and says whether q was pressed."""
    if not sys.stdin.isatty():
        yield _only_wait
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin, termios.TCSADRAIN)
        yield _is_quit_within
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _only_wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _is_quit_within(seconds: float) -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    # Any other key draws at once. All that were pressed: what a buffer keeps back is not seen by select.
    keys = os.read(sys.stdin.fileno(), 1024) if ready else b"-"
    return not keys or b"q" in keys.lower()
