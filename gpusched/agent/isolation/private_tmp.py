"""A rank's own /tmp and /var/tmp, by a mount namespace that it alone is in. Standard library only, for it runs in the
child between fork and exec."""

import ctypes
import errno
import os
import tempfile

PLACES = ("/tmp", "/var/tmp")  # noqa: S108 - which are hidden from the rank, not used  # nosec B108
_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_libc = ctypes.CDLL(None, use_errno=True)


def enter(own: str) -> None:
    """From now on this process, and what it starts, has the directory `own` as each of PLACES; what is mounted on the
    machine later is seen, too. Root only. OSError (EIO) if that cannot be; then nothing may be started."""
    if _libc.unshare(_CLONE_NEWNS):
        raise _error("unshare")
    _mount("none", "/", _MS_REC | _MS_SLAVE)
    # By a handle: it may itself be below the first place that is hidden.
    handle = os.open(own, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for place in PLACES:
        if os.path.isdir(place) and not os.path.islink(place):
            _mount(f"/proc/self/fd/{handle}", place, _MS_BIND)
    os.close(handle)


def is_possible() -> bool:
    """Tries it in a child of its own: sandboxes and old kernels refuse it. Only root may."""
    if os.geteuid():
        return False
    with tempfile.TemporaryDirectory() as own:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                enter(own)
                code = 0
            finally:
                os._exit(code)
        return os.waitpid(pid, 0)[1] == 0


def hides(directory: str) -> bool:
    """Whether what is in `directory` would be out of sight."""
    real = os.path.realpath(directory)
    return any(real == place or real.startswith(f"{place}/") for place in map(os.path.realpath, PLACES))


def _mount(source: str, target: str, flags: int) -> None:
    if _libc.mount(source.encode(), target.encode(), None, flags, None):
        raise _error(target)


def _error(what: str) -> OSError:
    # Whatever the kernel says is no fault of the job, so it is told as one of the machine's.
    return OSError(errno.EIO, f"no private tmp, {what}: {os.strerror(ctypes.get_errno())}")
