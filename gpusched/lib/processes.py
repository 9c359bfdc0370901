"""Child processes that never outlive their parent, not even when it is killed with SIGKILL."""

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
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


def _bind(parents: list[int]) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parents and os.getppid() != parents[-1]:
        os._exit(1)
    parents.clear()
