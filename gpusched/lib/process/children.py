"""Processes of the server: children that never outlive their parent, and a heap without long pauses."""

import ctypes
import gc
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
MIDDLE_PER_FULL_COLLECTION = 100
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(with_signal: int = signal.SIGTERM) -> Callable[[], None]:
    """A preexec_fn: the kernel sends `with_signal` to the child when its parent is gone (Linux). The parent may be
    gone already by the time that this runs, which the second look finds out."""
    parent = os.getpid()

    def in_child() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, with_signal)
        if os.getppid() != parent:
            os.kill(os.getpid(), with_signal)

    return in_child


def forks_die_with_parent() -> None:
    """The same for every child that this process, or one of those children, forks from now on (multiprocessing)."""
    parents: list[int] = []
    os.register_at_fork(
        before=lambda: parents.append(os.getpid()),
        after_in_parent=lambda: parents.clear(),
        after_in_child=lambda: _bind(parents),
    )


def settle_heap() -> None:
    """What is loaded by now stays until the end of the process: the garbage collector never looks at it again.

    Looking through all modules of the server takes a tenth of a second, in which no request is answered, no page told,
    no job started; each of them would wait for it now and then. Forked children share its memory, too.

    What comes later and stays long, connections above all, is looked through a tenth as often as by default: with 500
    pages that takes a tenth of a second, too, and finds nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], MIDDLE_PER_FULL_COLLECTION)


def _bind(parents: list[int]) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parents and os.getppid() != parents[-1]:
        os._exit(1)
    parents.clear()
