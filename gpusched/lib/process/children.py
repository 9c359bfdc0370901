"""Set up the server's processes: children that never outlive their parent, and a heap without long pauses."""

import ctypes
import gc
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
MIDDLE_PER_FULL_COLLECTION = 100
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(with_signal: int = signal.SIGTERM) -> Callable[[], None]:
    """Return a preexec_fn: the kernel sends `with_signal` to the child when its parent ends (Linux). The parent may
    have ended before this runs, hence the second check."""
    parent = os.getpid()

    def in_child() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, with_signal)
        if os.getppid() != parent:
            os.kill(os.getpid(), with_signal)

    return in_child


def forks_die_with_parent() -> None:
    """Kill every child that this process or its children fork from now on when its parent ends (multiprocessing)."""
    parents: list[int] = []
    os.register_at_fork(
        before=lambda: parents.append(os.getpid()),
        after_in_parent=lambda: parents.clear(),
        after_in_child=lambda: _bind(parents),
    )


def settle_heap() -> None:
    """Exclude all objects loaded by now from garbage collection: they stay until the end of the process.

    Scanning all modules of the server takes 0.1 s, during which no request, page or job proceeds. Forked children also
    share this memory.

    Scan later long-lived objects, above all connections, a tenth as often as by default: with 500 pages that also takes
    0.1 s and frees nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], MIDDLE_PER_FULL_COLLECTION)


def _bind(parents: list[int]) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parents and os.getppid() != parents[-1]:
        os._exit(1)
    parents.clear()
