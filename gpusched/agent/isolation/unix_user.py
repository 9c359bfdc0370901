"""Choose the Unix user of a rank, and check whether this node allows it. Linux accounts only; nothing is started
here."""

import os
import pwd
from dataclasses import asdict, dataclass
from typing import Any

# Accounts below are of the system and its services (login.defs: UID_MIN).
FIRST_USER = 1000


class AccountError(Exception):
    """This node cannot or will not run a rank as its user. The text is a sentence with the next step."""


@dataclass(frozen=True)
class Account:
    """A Unix user other than the agent's own."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    def fact(self) -> dict[str, Any]:
        """Return the account for spec.json."""
        return asdict(self)


def resolve_user(tenant_user: str, default_user: str, allow_root: bool) -> Account | None:
    """Return the account of `tenant_user` (the tenant's Unix user; empty: the node's `default_user`), or None for the
    agent's own user. Raises AccountError. `allow_root`: allow root and system users (uid below 1000), too."""
    name = tenant_user or default_user
    if not name:
        if os.geteuid() or allow_root:
            return None
        raise AccountError(
            "the agent runs as root, and neither the tenant nor the node names the job's user; set unix_user of the "
            "tenant or default_user of the node, or allow_root there"
        )
    account = _look_up(name)
    if account.uid == os.geteuid() and account.uid:
        return None
    if os.geteuid():
        current = name_of(os.geteuid())
        raise AccountError(
            f"the agent runs as {current} and cannot become {name}; run the agent as root, or jobs as {current}"
        )
    if account.uid < FIRST_USER and not allow_root:
        description = "root" if account.uid == 0 else f"a system user (uid {account.uid})"
        raise AccountError(
            f"{name} is {description}; choose another unix_user for the tenant, or set allow_root on the node"
        )
    return account if account.uid else None


def name_of(uid: int) -> str:
    """Return the name of a uid; the number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _look_up(name: str) -> Account:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise AccountError(
            f"there is no Unix user {name} on the node; create it there, or change unix_user of the tenant"
        ) from None
    groups = tuple(sorted(os.getgrouplist(name, entry.pw_gid)))
    home = entry.pw_dir if os.path.isdir(entry.pw_dir) else "/"
    return Account(name, entry.pw_uid, entry.pw_gid, groups, home, entry.pw_shell or "/bin/sh")
