"""Show a view on the whole terminal and redraw it until q or Ctrl-C."""

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
# Columns and lines of the terminal → the lines to show, none longer than the terminal is wide.
Frame = Callable[[int, int], Sequence[str]]
SECONDS = 2.0


def is_terminal() -> bool:
    """Return True if stdout is a terminal on which a screen can be drawn."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def show(frame: Frame) -> None:
    """Draw until the user quits. An error of `frame` ends it; the terminal is restored."""
    with suppress(KeyboardInterrupt), _terminated_in_order(), _whole_terminal() as has_quit:
        while True:
            size = shutil.get_terminal_size()
            lines = frame(size.columns, size.lines)[: size.lines]
            # Draw over the previous frame: clearing it first would flicker.
            sys.stdout.write("\x1b[H" + "\x1b[K\n".join(lines) + "\x1b[K\x1b[J")
            sys.stdout.flush()
            if has_quit(SECONDS):
                return


def items(
    fetch: Callable[[], Sequence[T]],
    columns: Sequence[Column[T]],
    form: Format,
    name: Callable[[T], Cell],
    *,
    is_watching: bool,
) -> None:
    """Print a list once; with `is_watching` repeatedly: redrawn on a terminal, elsewhere one after the other."""
    if is_watching and is_terminal() and form in (Format.TABLE, Format.WIDE):
        show(lambda width, height: output.table(fetch(), columns, form, width_limit=width, is_clipped=True))
        return
    output.items(fetch(), columns, form, name)
    with suppress(KeyboardInterrupt):
        while is_watching:
            time.sleep(SECONDS)
            output.items(fetch(), columns, form, name)


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """Restore the terminal on SIGTERM, too."""
    previous = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def _whole_terminal() -> Iterator[Callable[[float], bool]]:
    """Take the terminal, except while Ctrl-Z stops the command: its alternate screen without a cursor, and keys that
    arrive at once. Yield a function that waits the given seconds and returns True if q was pressed."""
    import termios
    import tty

    attributes = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None

    def take() -> None:
        # Not by sys.stdout: the handler below can interrupt its writing.
        os.write(1, b"\x1b[?1049h\x1b[?25l")
        if attributes is not None:
            tty.setcbreak(sys.stdin, termios.TCSADRAIN)

    def give_back() -> None:
        if attributes is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, attributes)
        os.write(1, b"\x1b[?25h\x1b[?1049l")

    def stop(number: int, _: object) -> None:
        give_back()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # returns when the command continues
        signal.signal(number, stop)
        take()

    previous = signal.signal(signal.SIGTSTP, stop)
    try:
        take()
        yield _only_wait if attributes is None else _is_quit_within
    finally:
        give_back()
        signal.signal(signal.SIGTSTP, previous)


def _only_wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _is_quit_within(seconds: float) -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    # Any other key redraws at once. Read all pressed keys: select does not see what stays in a buffer.
    keys = os.read(sys.stdin.fileno(), 1024) if ready else b"-"
    return not keys or b"q" in keys.lower()
