"""Confine the sending process: it connects only to allowed addresses, opens no files of this machine, and starts no
programs. Standard library only.

An audit hook sees each operation with its real arguments, whichever library asks for it: the address that is checked is
the one that is connected to, after DNS and after redirects. A hook cannot be removed."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from notifications.addresses import Network, is_allowed

# It does not name the address: users do not learn the addresses of internal names.
NOT_PUBLIC = "its address is not public; an admin can allow it (GPUSCHED_NOTIFY_ALLOWED_NETWORKS)"
_FORBIDDEN = frozenset(
    {
        "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn",
        "os.startfile", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate",
        "os.chmod", "os.chown", "shutil.rmtree", "socket.sendto", "socket.sendmsg", "socket.bind", "sqlite3.connect",
    }
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# What Python, TLS and time zones read.
_READABLE = ("/usr/lib", "/usr/local/lib", "/usr/share", "/etc/ssl", "/etc/pki", "/etc/mime.types", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/urandom")


class Refused(PermissionError):
    """An operation that the sending process may not do."""


class Guard:
    """The rules of this process. `refusal`: the latest operation that it refused, for the error of the send."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        self.refusal = ""
        self._allowed = tuple(allowed)
        self._readable = tuple({*_READABLE, sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)})

    def install(self) -> None:
        """Apply the rules from now on, until the process ends."""
        sys.addaudithook(self._check)

    def take_refusal(self) -> str:
        """Return the latest refusal, and clear it; empty if there was none."""
        refusal, self.refusal = self.refusal, ""
        return refusal

    def _check(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "socket.connect":
            self._check_address(args[1])
        elif event == "open":
            self._check_file(*args)
        elif event in _FORBIDDEN:
            self._refuse(f"{event} is not possible here")

    def _check_address(self, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) and address else None
        if not isinstance(host, str) or not is_allowed(host, self._allowed):
            self._refuse(NOT_PUBLIC)

    def _check_file(self, path: Any, mode: Any, flags: Any) -> None:
        if isinstance(path, int):
            return
        name = os.path.realpath(os.fsdecode(path))
        if name in _DEVICES:
            return
        is_written = bool(flags & _WRITING) if isinstance(flags, int) else False
        if is_written or not any(name == root or name.startswith(root + "/") for root in self._readable):
            self._refuse("a send opens no files")

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        raise Refused(reason)
