"""Remove a directory that a job could fill freely: of any depth and modes, but nothing that is mounted in it. Standard
library only, because supervisors use it, too."""

import contextlib
import os
from itertools import count

from gpusched.agent.rank_files import raw_file

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_ONLY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(path: str) -> bool:
    """Remove the path; return True if nothing of it is left. Never raises OSError, follows no link and enters no mount.
    An entry that cannot be removed (a mount, another user's file) stays; all others go."""
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
    """Give the owner all rights to a directory; leave everything else as it is. Raises FileNotFoundError without it."""
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
    """Move each directory up to the top before entering it. So no path gets long, two handles suffice for any depth,
    and no mount is entered, not even of a directory of the same file system: the kernel does not move one."""
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
    """Remove the files of one directory and move its directories to the top; return their new names."""
    moved = []
    with os.scandir(handle) as entries:
        for entry in entries:
            if handle == top and entry.name.startswith(mark):
                continue  # moved here by us
            with contextlib.suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=handle)
                    continue
                name = f"{mark}{next(number)}"
                try:
                    os.rename(entry.name, name, src_dir_fd=handle, dst_dir_fd=top)
                except PermissionError:  # its `..` changes, so it must be writable
                    _open_up(handle, entry.name)
                    os.rename(entry.name, name, src_dir_fd=handle, dst_dir_fd=top)
                moved.append(name)
    return moved


def _open(above: int, name: str) -> int:
    """Return a handle of a directory after giving its owner all rights. OSError if it is a mount."""
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
    """Give the owner all rights to a directory, by a handle: the name may refer to another one by now."""
    handle = os.open(name, _NAME_ONLY, dir_fd=above)
    try:
        if _mount(handle) == _mount(above) and os.fstat(handle).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
    finally:
        os.close(handle)


def _mount(handle: int) -> str:
    """Return the mount of a handle: two mounts of one file system differ."""
    lines = raw_file.read(f"/proc/self/fdinfo/{handle}").decode().splitlines()
    return next((line for line in lines if line.startswith("mnt_id:")), "")
