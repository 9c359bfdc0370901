"""A rank's private /tmp and /var/tmp in its own mount namespace. Standard library only, because it runs in the child
between fork and exec."""

import ctypes
import errno
import os

PLACES = ("/tmp", "/var/tmp")  # noqa: S108 - hidden from the rank, not used  # nosec B108
_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_libc = ctypes.CDLL(None, use_errno=True)


def enter(directory: str) -> None:
    """Mount `directory` as each of PLACES for this process and its children. Later mounts of the machine stay visible.
    Root only. OSError (EIO) if it fails; then nothing may be started."""
    if _libc.unshare(_CLONE_NEWNS):
        raise _error("unshare")
    _mount("none", "/", _MS_REC | _MS_SLAVE)
    # By a handle: the directory may itself be below the first hidden place.
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for place in PLACES:
        if os.path.isdir(place) and not os.path.islink(place):
            _mount(f"/proc/self/fd/{handle}", place, _MS_BIND)
    os.close(handle)


def hides(directory: str) -> bool:
    """Return True if the content of `directory` would be hidden."""
    real = os.path.realpath(directory)
    return any(real == place or real.startswith(f"{place}/") for place in map(os.path.realpath, PLACES))


def _mount(source: str, target: str, flags: int) -> None:
    if _libc.mount(source.encode(), target.encode(), None, flags, None):
        raise _error(target)


def _error(operation: str) -> OSError:
    # The kernel's refusal is never the job's fault, so report EIO: a fault of the machine.
    return OSError(errno.EIO, f"no private tmp, {operation}: {os.strerror(ctypes.get_errno())}")
