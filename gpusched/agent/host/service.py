"""The agent's service of systemd: its unit, and the user and the environment that it has, so that doctor can check the
node as the service would."""

import os
import pwd
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from gpusched.agent.isolation.unix_user import AccountError
from gpusched.installation import SERVER_ROOT

UNIT = "gpusched-agent.service"
_PROPERTIES = ("LoadState", "User", "Environment", "Delegate", "ControlGroup")
_SECONDS = 5.0


@dataclass(frozen=True)
class Service:
    """The unit as configured. `user`: empty means root. `group`: its cgroup below the mount while it runs; else
    empty."""

    user: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    is_delegated: bool = False
    group: str = ""


def unit_text(programs: Path) -> str:
    """Return the unit for an installation whose programs are in this folder."""
    template, program = SERVER_ROOT / "deploy" / UNIT, "gpusched-agent"
    return template.read_text().replace(f"/opt/gpusched/bin/{program}", quoted(programs / program))


def quoted(path: Path) -> str:
    """Return the path as a word of a unit, where spaces separate words, % begins a placeholder and \\ an escape."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"' if any(character in text for character in " \t\"'\\") else text


def installed() -> Service | None:
    """Return the unit as systemd has loaded it; None without the unit or without systemd."""
    try:
        result = subprocess.run(
            ["systemctl", "show", UNIT, f"--property={','.join(_PROPERTIES)}"],
            capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    properties = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
    if result.returncode or properties.get("LoadState") != "loaded":
        return None
    return Service(
        user=properties.get("User", ""),
        environment=_variables(properties.get("Environment", "")),
        is_delegated=properties.get("Delegate") == "yes",
        group=properties.get("ControlGroup", ""),
    )


def become(name: str) -> None:
    """Switch this process to the user, for good, with the user's groups. Raises AccountError if it may not, or if the
    user does not exist."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise AccountError(f"there is no Unix user {name} on this machine") from None
    if entry.pw_uid == os.geteuid():
        return
    if os.geteuid():
        raise AccountError(f"only root can check as {name}")
    os.setgroups(os.getgrouplist(name, entry.pw_gid))
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    os.environ |= {"HOME": entry.pw_dir, "USER": name, "LOGNAME": name}


def _variables(text: str) -> dict[str, str]:
    """Return the agent's own variables of a line such as `A=1 "B=2 3"`."""
    try:
        assignments = shlex.split(text)
    except ValueError:
        return {}
    pairs = (word.split("=", 1) for word in assignments if "=" in word)
    return {name: value for name, value in pairs if name.startswith("GPUSCHED_")}
