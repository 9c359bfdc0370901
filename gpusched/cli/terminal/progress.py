"""A progress bar on stderr for long operations: only on a terminal that can draw it, and not with NO_COLOR."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Smaller operations end before a user could read the bar.
MIN_ITEMS, MIN_BYTES = 3, 4 << 20


@contextmanager
def bar(label: str, total: int, *, minimum: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that sets the completed amount. Draw nothing for a `total` below `minimum`, or without a
    terminal."""
    if total < minimum or not _is_drawable():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    class Terminal(Console):
        def show_cursor(self, show: bool = True) -> bool:
            return False  # never hidden: a shell would be without it after Ctrl-Z or SIGTERM

    # Notes appear above the bar; at the end it disappears.
    with Progress(console=Terminal(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda completed: progress.update(task, completed=completed)


def _is_drawable() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
