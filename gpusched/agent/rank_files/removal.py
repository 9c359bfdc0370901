"""Removes a directory that a job could fill as it liked: however deep, whatever its modes, nothing that is mounted in
it. Standard library only, for supervisors use it, too."""

import contextlib
import os
from itertools import count

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_ONLY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(path: str) -> bool:
    """True if nothing is left of it. Never raises OSError, follows no link and enters no mount. What cannot be removed
    (a mount, another user's file) stays, and all else goes."""
    try:
        os.rmdir(path)  # most jobs leave nothing
        return True
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        with contextlib.suppress(OSError):
            os.unlink(path)
    except OSError:
        with contextlib.suppress(OSError):
            _empty(path)
        with contextlib.suppress(OSError):
            os.rmdir(path)
    return not os.path.lexists(path)


def open_up(path: str) -> None:
    """Give the owner all rights to a directory; leave everything else as it is. FileNotFoundError without it."""
    above, name = os.path.split(path)
    os.lstat(path)
    handle = os.open(above or ".", _DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            _open_up(handle, name)
    finally:
        os.close(handle)


def _empty(path: str) -> None:
    above, name = os.path.split(path)
    handle = os.open(above or ".", _DIRECTORY)
    try:
        top = _open(handle, name)
    finally:
        os.close(handle)
    try:
        _flatten(top)
    finally:
        os.close(top)


def _flatten(top: int) -> None:
    """Each directory is moved up to the top before it is entered. So no path gets long, two handles suffice for any
    depth, and no mount is entered, not even of a directory of the same file system: the kernel does not move one."""
    mark, number = f".{os.urandom(8).hex()}.", count()
    waiting = _strip(top, top, mark, number)
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(OSError):
            handle = _open(top, name)
            try:
                waiting += _strip(handle, top, mark, number)
            finally:
                os.close(handle)
            os.rmdir(name, dir_fd=top)


def _strip(handle: int, top: int, mark: str, number: "count[int]") -> list[str]:
    """Removes the files of one directory and moves those below it to the top; gives what these are called there."""
    moved = []
    with os.scandir(handle) as entries:
        for entry in entries:
            if handle == top and entry.name.startswith(mark):
                continue  # moved by us, and seen in passing
            with contextlib.suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=handle)
                    continue
                name = f"{mark}{next(number)}"
                try:
                    os.rename(entry.name, name, src_dir_fd=handle, dst_dir_fd=top)
                except PermissionError:  # it is to be written in, for its `..` changes
                    _open_up(handle, entry.name)
                    os.rename(entry.name, name, src_dir_fd=handle, dst_dir_fd=top)
                moved.append(name)
    return moved


def _open(above: int, name: str) -> int:
    """A directory that may be read and written by its owner, whatever its mode was. OSError if it is a mount."""
    handle = os.open(name, _NAME_ONLY, dir_fd=above)
    try:
        if _mount(handle) != _mount(above):
            raise OSError(f"{name} is a mount")
    finally:
        os.close(handle)
    with contextlib.suppress(OSError):
        _open_up(above, name)
    return os.open(name, _DIRECTORY, dir_fd=above)


def _open_up(above: int, name: str) -> None:
    """Gives the owner all rights to a directory, by a handle: the name may mean another by now."""
    handle = os.open(name, _NAME_ONLY, dir_fd=above)
    try:
        if _mount(handle) == _mount(above) and os.fstat(handle).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
    finally:
        os.close(handle)


def _mount(handle: int) -> str:
    """Of which mount a handle is: even two of one file system differ."""
    with open(f"/proc/self/fdinfo/{handle}") as file:
        return next((line for line in file if line.startswith("mnt_id:")), "")
