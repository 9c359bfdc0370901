"""cgroup v2: find the directory for the groups of this node's ranks, and the limits that the kernel enforces there."""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from gpusched.agent.isolation.cgroup import enter
from gpusched.agent.rank_files import raw_file

AUTO, OFF = "auto", "off"
OFF_BY_CONFIG, NO_MOUNT = "switched off by the node's config", "no cgroup2 file system is mounted"
CONTROLLERS = ("memory", "cpu", "pids")
# Enough for any data loader, few enough that a fork bomb leaves the node usable.
MAX_PROCESSES = 16_384
# The agent's own leaf in its delegated group: a group with controllers for its children may hold no process.
_LEAF = "agent"
_MIN_WEIGHT, _MAX_WEIGHT = 1, 10_000
_PERIOD, _MIN_QUOTA = 100_000, 1000  # microseconds; the kernel takes no quota below
_SCOPE_LENGTH = 32  # the name of a rank's group is its scope


@dataclass(frozen=True)
class Base:
    """The directory that holds the groups of ranks, and the limits that the kernel enforces there."""

    path: str
    controllers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lookup:
    """The base of the groups, or a sentence that says why there is none."""

    base: Base | None
    reason: str = ""


def find(setting: str = AUTO, *, proc: str = "/proc") -> Lookup:
    """Find the base of groups, and prove it: create a group, move this process in and out again. Call it once, before
    other processes exist. `setting`: `auto`, `off`, or the directory of a cgroup2 mount that was delegated to this
    user."""
    if setting == OFF:
        return Lookup(None, OFF_BY_CONFIG)
    try:
        base, is_alone = _delegated(proc) if setting == AUTO else (Path(setting), False)
        if is_alone:
            (base / _LEAF).mkdir(exist_ok=True)
            enter(f"{base}/{_LEAF}")
        base.mkdir(exist_ok=True)
        return (
            Lookup(Base(str(base), _enable(base)))
            if _can_move(base, proc)
            else Lookup(None, f"{base} lets no process leave")
        )
    except _NoGroup as refusal:
        return Lookup(None, str(refusal))
    except OSError as error:
        return Lookup(None, f"{error.filename or setting}: {error.strerror}")


def inspect(setting: str = AUTO, *, group: str = "", proc: str = "/proc") -> Lookup:
    """Predict the result of `find` from reading alone: nothing is created, moved or switched on. `group`: the group of
    the agent's service below the mount, if systemd delegates one; else this process's own group is checked."""
    if setting == OFF:
        return Lookup(None, OFF_BY_CONFIG)
    try:
        base = Path(setting) if setting != AUTO else _base(group, proc)
    except _NoGroup as refusal:
        return Lookup(None, str(refusal))
    existing = base if base.exists() else base.parent
    if not os.access(existing, os.W_OK):
        return Lookup(None, f"{existing} {'is not writable' if existing.exists() else 'does not exist'}")
    available = _text(f"{existing}/cgroup.controllers").split()
    return Lookup(Base(str(base), tuple(controller for controller in CONTROLLERS if controller in available)))


class _NoGroup(Exception):
    pass


def _base(group: str, proc: str) -> Path:
    if not group:
        return _delegated(proc)[0]
    if (mount := mount_point(proc)) is None:
        raise _NoGroup(NO_MOUNT)
    return Path(f"{mount}{group}")


def _delegated(proc: str) -> tuple[Path, bool]:
    """Return the base of groups (of the whole machine for root, else the group that systemd has delegated), and whether
    this process is alone in it and must move to a leaf first."""
    mount, group = mount_point(proc), _own_group(proc)
    if mount is None or group is None:
        raise _NoGroup(NO_MOUNT)
    current = Path(f"{mount}{group}")
    if current.name == _LEAF and os.access(current.parent, os.W_OK):  # as DelegateSubgroup=agent puts it
        return current.parent, False
    if group.endswith(".scope") and os.geteuid() and _text(f"{current}/cgroup.procs").split() == [str(os.getpid())]:
        # Alone in it, so systemd created it for this agent; a terminal's scope is left alone.
        return current, True
    if os.geteuid() == 0 and os.access(mount, os.W_OK):
        return Path(mount) / "gpusched", False
    raise _NoGroup("no cgroup is delegated to this user")


def mount_point(proc: str = "/proc") -> str | None:
    """Return the mount point of cgroup2; beside the old hierarchies it may be somewhere unusual."""
    for line in _text(f"{proc}/self/mounts").splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            return fields[1]
    return None


def _own_group(proc: str) -> str | None:
    groups = [line[3:] for line in _text(f"{proc}/self/cgroup").splitlines() if line.startswith("0::")]
    return groups[0].rstrip("/") if groups else None


def _enable(base: Path) -> tuple[str, ...]:
    """Delegate the available controllers to the ranks; return those that worked."""
    for group in (base.parent, base):
        for controller in CONTROLLERS:
            with contextlib.suppress(OSError):  # not of this kernel, or still bound to an old hierarchy
                (group / "cgroup.subtree_control").write_text(f"+{controller}")
    enabled = _text(f"{base}/cgroup.subtree_control").split()
    return tuple(controller for controller in CONTROLLERS if controller in enabled)


def _can_move(base: Path, proc: str) -> bool:
    trial = base / f"trial-{os.getpid()}"
    home = home_group(proc)
    trial.mkdir()
    try:
        enter(str(trial))
        enter(home)
    finally:
        with contextlib.suppress(OSError):
            trial.rmdir()
    return not trial.exists()


def home_group(proc: str = "/proc") -> str:
    """Return the directory of this process's group. OSError without cgroup2."""
    mount, group = mount_point(proc), _own_group(proc)
    if mount is None or group is None:
        raise FileNotFoundError(0, NO_MOUNT, "cgroup2")
    return mount + group


def limits(
    controllers: tuple[str, ...], cpu_cores: float, memory_mb: int, *, has_ceiling: bool = False
) -> dict[str, str]:
    """Return file -> content of each limit that the kernel can enforce. `memory_mb` 0: the job requested none, so none
    is set.

    CPU is a weight: an idle machine's cores are free to use. `has_ceiling` caps them."""
    files: dict[str, str] = {}
    if "memory" in controllers and memory_mb:
        files |= {"memory.max": str(memory_mb << 20), "memory.swap.max": "0", "memory.oom.group": "1"}
    if "cpu" in controllers:
        files["cpu.weight"] = str(max(_MIN_WEIGHT, min(_MAX_WEIGHT, round(cpu_cores * 100))))
        if has_ceiling and cpu_cores > 0:
            files["cpu.max"] = f"{max(_MIN_QUOTA, round(cpu_cores * _PERIOD))} {_PERIOD}"
    if "pids" in controllers:
        files["pids.max"] = str(MAX_PROCESSES)
    return files


def sweep(base: str, seconds: float = 3600.0) -> None:
    """Remove old, empty groups of ranks whose supervisor was killed and whose directory is gone. A new one may belong
    to another agent that is about to enter it."""
    with contextlib.suppress(OSError):
        for name in os.listdir(base):
            path = f"{base}/{name}"
            with contextlib.suppress(OSError):
                if len(name) == _SCOPE_LENGTH and os.stat(path).st_mtime < time.time() - seconds:
                    for directory, _, _ in os.walk(path, topdown=False):
                        os.rmdir(directory)  # the kernel refuses this while a process is in it


def _text(path: str) -> str:
    return raw_file.read_if_possible(path).decode()
