"""A bar on stderr for what takes long: only on a terminal that can draw it, and not against NO_COLOR."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Less than this is over before somebody has read the bar.
MIN_THINGS, MIN_BYTES = 3, 4 << 20


@contextmanager
def bar(what: str, total: int, *, least: int) -> Iterator[Callable[[int], None]]:
    """Gives a function that says how much is done. Nothing is drawn for a `total` below `least`, or for nobody."""
    if total < least or not _is_wanted():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    # What is told meanwhile goes above the bar; at the end it is gone.
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


def _is_wanted() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
