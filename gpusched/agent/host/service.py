"""Who the agent's service runs as, and with what: asked of systemd, for a look at the node in its place."""

import os
import pwd
import shlex
import subprocess
from dataclasses import dataclass, field

from gpusched.agent.isolation.unix_user import AccountError

UNIT = "gpusched-agent.service"
_ASKED = ("LoadState", "User", "Environment", "Delegate", "ControlGroup")
_SECONDS = 5.0


@dataclass(frozen=True)
class Service:
    """What the unit says. `user`: empty is root's. `group`: its cgroup while it runs, below the mount; else empty."""

    user: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    is_delegated: bool = False
    group: str = ""


def installed() -> Service | None:
    """The unit as systemd has loaded it; None without the unit or without systemd."""
    try:
        done = subprocess.run(
            ["systemctl", "show", UNIT, f"--property={','.join(_ASKED)}"],
            capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    told = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if done.returncode or told.get("LoadState") != "loaded":
        return None
    return Service(
        user=told.get("User", ""),
        environment=_variables(told.get("Environment", "")),
        is_delegated=told.get("Delegate") == "yes",
        group=told.get("ControlGroup", ""),
    )


def become(name: str) -> None:
    """Makes this process one of the user, for good, with the user's groups. AccountError if it may not, or there is
    none."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise AccountError(f"there is no Unix user {name} on this machine") from None
    if entry.pw_uid == os.geteuid():
        return
    if os.geteuid():
        raise AccountError(f"only root can look as {name}")
    os.setgroups(os.getgrouplist(name, entry.pw_gid))
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    os.environ |= {"HOME": entry.pw_dir, "USER": name, "LOGNAME": name}


def _variables(text: str) -> dict[str, str]:
    """Of a line such as `A=1 "B=2 3"`; the agent's own alone."""
    try:
        words = shlex.split(text)
    except ValueError:
        return {}
    pairs = (word.split("=", 1) for word in words if "=" in word)
    return {name: value for name, value in pairs if name.startswith("GPUSCHED_")}
