"""Which Unix user a rank runs as, and whether this node may let it. Linux accounts only; nothing is started here."""

import os
import pwd
from dataclasses import asdict, dataclass
from typing import Any

# Below are the accounts of the system and its services (login.defs: UID_MIN).
FIRST_USER = 1000


class AccountError(Exception):
    """Why this node cannot or will not run a rank as its user: a sentence with what to do about it."""


@dataclass(frozen=True)
class Account:
    """Another user than the agent's own, as its rank gets it."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    def fact(self) -> dict[str, Any]:
        """For spec.json."""
        return asdict(self)


def resolve_user(wanted: str, default_user: str, allow_root: bool) -> Account | None:
    """`wanted`: the tenant's Unix user; empty: the node's `default_user`. None: the user that the agent runs as. Raises
    AccountError. `allow_root`: root and system users (uid below 1000) are allowed, too."""
    name = wanted or default_user
    if not name:
        if os.geteuid() or allow_root:
            return None
        raise AccountError(
            "the agent runs as root, and neither tenant nor node says which user the job runs as; set unix_user of the "
            "tenant or default_user of the node, or allow_root there"
        )
    found = _look_up(name)
    if found.uid == os.geteuid() and found.uid:
        return None
    if os.geteuid():
        own = name_of(os.geteuid())
        raise AccountError(f"the agent runs as {own} and cannot become {name}; run the agent as root, or jobs as {own}")
    if found.uid < FIRST_USER and not allow_root:
        who = "root" if found.uid == 0 else f"a system user (uid {found.uid})"
        raise AccountError(f"{name} is {who}; choose another unix_user for the tenant, or set allow_root on the node")
    return found if found.uid else None


def name_of(uid: int) -> str:
    """The name of a uid; the number where it has none."""
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
