"""cgroup v2: where this node's ranks may have groups of their own, and such a group from its making to its removal.
Standard library only, for supervisors use it, too."""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

AUTO, OFF = "auto", "off"
OFF_BY_CONFIG, NO_MOUNT = "switched off by the node's config", "no cgroup2 file system is mounted"
CONTROLLERS = ("memory", "cpu", "pids")
# Enough for any loader of data, few enough that a fork bomb leaves the node usable.
MAX_PROCESSES = 16_384
# The agent's own leaf in what was delegated to it: a group with controllers for its children may hold no process.
_LEAF = "agent"
_MIN_WEIGHT, _MAX_WEIGHT = 1, 10_000
_PERIOD, _MIN_QUOTA = 100_000, 1000  # microseconds; the kernel takes no quota below
# Of processes that were killed: the kernel takes milliseconds, unless a driver holds them.
_GONE_SECONDS = 2.0
_SCOPE_LENGTH = 32  # a rank's group is called as its scope


@dataclass(frozen=True)
class Base:
    """The directory below which ranks get groups, and which limits the kernel will keep there."""

    path: str
    controllers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """Where groups can be made, or a sentence why they cannot."""

    base: Base | None
    why: str = ""


def find(wanted: str = AUTO, *, proc: str = "/proc") -> Found:
    """`wanted`: `auto`, `off`, or the directory of a cgroup2 mount that was delegated to this user. Tries it for real:
    makes a group, moves this process in and out again. To be called once, before there are other processes."""
    if wanted == OFF:
        return Found(None, OFF_BY_CONFIG)
    try:
        base, is_alone = _delegated(proc) if wanted == AUTO else (Path(wanted), False)
        if is_alone:
            (base / _LEAF).mkdir(exist_ok=True)
            enter(f"{base}/{_LEAF}")
        base.mkdir(exist_ok=True)
        return (
            Found(Base(str(base), _enable(base))) if _can_move(base, proc) else Found(None, f"{base} keeps processes")
        )
    except _NoGroup as refusal:
        return Found(None, str(refusal))
    except OSError as error:
        return Found(None, f"{error.filename or wanted}: {error.strerror}")


def look(wanted: str = AUTO, *, group: str = "", proc: str = "/proc") -> Found:
    """What `find` would find, as far as reading tells: nothing is made, moved or switched on. `group`: that of the
    agent's service below the mount, if systemd delegates one; else this process's own is judged."""
    if wanted == OFF:
        return Found(None, OFF_BY_CONFIG)
    try:
        base = Path(wanted) if wanted != AUTO else _place(group, proc)
    except _NoGroup as refusal:
        return Found(None, str(refusal))
    there = base if base.exists() else base.parent
    if not os.access(there, os.W_OK):
        return Found(None, f"{there} {'may not be written' if there.exists() else 'is not there'}")
    told = _text(f"{there}/cgroup.controllers").split()
    return Found(Base(str(base), tuple(controller for controller in CONTROLLERS if controller in told)))


class _NoGroup(Exception):
    pass


def _place(group: str, proc: str) -> Path:
    if not group:
        return _delegated(proc)[0]
    if (mount := mount_point(proc)) is None:
        raise _NoGroup(NO_MOUNT)
    return Path(f"{mount}{group}")


def _delegated(proc: str) -> tuple[Path, bool]:
    """Where groups may be made: of the whole machine for root, else in the group that systemd has delegated; and
    whether this process is alone in that, and must go into a leaf of it first."""
    mount, own = mount_point(proc), _own(proc)
    if mount is None or own is None:
        raise _NoGroup(NO_MOUNT)
    here = Path(f"{mount}{own}")
    if here.name == _LEAF and os.access(here.parent, os.W_OK):  # as DelegateSubgroup=agent puts it
        return here.parent, False
    if own.endswith(".scope") and os.geteuid() and _text(f"{here}/cgroup.procs").split() == [str(os.getpid())]:
        # Alone in it, so it was made for this agent; a terminal's scope is left as it is.
        return here, True
    if os.geteuid() == 0 and os.access(mount, os.W_OK):
        return Path(mount) / "gpusched", False
    raise _NoGroup("no cgroup is delegated to this user")


def mount_point(proc: str = "/proc") -> str | None:
    """Where cgroup2 is mounted; beside the old hierarchies that may be somewhere unusual."""
    for line in _text(f"{proc}/self/mounts").splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            return fields[1]
    return None


def _own(proc: str) -> str | None:
    own = [line[3:] for line in _text(f"{proc}/self/cgroup").splitlines() if line.startswith("0::")]
    return own[0].rstrip("/") if own else None


def _enable(base: Path) -> tuple[str, ...]:
    """Hands the controllers that there are down to the ranks; gives those that could be."""
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
    """The directory of the group that this process is in. OSError where there is no cgroup2."""
    mount, own = mount_point(proc), _own(proc)
    if mount is None or own is None:
        raise FileNotFoundError(0, NO_MOUNT, "cgroup2")
    return mount + own


# --- one group --------------------------------------------------------------------------------------------------------


def limits(
    controllers: tuple[str, ...], cpu_cores: float, memory_mb: int, *, has_ceiling: bool = False
) -> dict[str, str]:
    """File → what to write there, as far as the kernel keeps it. `memory_mb` 0: none was asked for, so none is set.

    CPU is a weight: cores that nobody else wants would otherwise stand idle. With `has_ceiling` they do."""
    found: dict[str, str] = {}
    if "memory" in controllers and memory_mb:
        found |= {"memory.max": str(memory_mb << 20), "memory.swap.max": "0", "memory.oom.group": "1"}
    if "cpu" in controllers:
        found["cpu.weight"] = str(max(_MIN_WEIGHT, min(_MAX_WEIGHT, round(cpu_cores * 100))))
        if has_ceiling and cpu_cores > 0:
            found["cpu.max"] = f"{max(_MIN_QUOTA, round(cpu_cores * _PERIOD))} {_PERIOD}"
    if "pids" in controllers:
        found["pids.max"] = str(MAX_PROCESSES)
    return found


def make(path: str, wanted: dict[str, str]) -> None:
    """Makes the group with its limits. OSError if one cannot be kept; a machine without swap has no file for it."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o755)
    for name, value in wanted.items():
        try:
            _write(f"{path}/{name}", value)
        except OSError:
            if name != "memory.swap.max":
                raise


def enter(path: str) -> None:
    """Moves this process into the group."""
    _write(f"{path}/cgroup.procs", "0")


def kill(path: str) -> bool:
    """SIGKILL to all processes of the group at once, whoever runs them and whatever they fork meanwhile; False where
    the kernel cannot (before Linux 5.14) or the group is gone."""
    try:
        _write(f"{path}/cgroup.kill", "1")
    except OSError:
        return False
    return True


def is_populated(path: str) -> bool:
    """Whether a process of the group lives; False also if there is no such group."""
    return "populated 1" in _text(f"{path}/cgroup.events").splitlines()


def remove(path: str) -> bool:
    """Removes the group and those that the job made below it, once its processes are gone; False if they are not."""
    deadline = time.monotonic() + _GONE_SECONDS
    while True:
        for directory, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        if not os.path.exists(path):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)


def sweep(base: str, seconds: float = 3600.0) -> None:
    """Removes groups of ranks, empty and of long ago, whose supervisor was killed and whose directory is gone. What was
    made a moment ago may be another agent's, about to be entered."""
    with contextlib.suppress(OSError):
        for name in os.listdir(base):
            path = f"{base}/{name}"
            with contextlib.suppress(OSError):
                if len(name) == _SCOPE_LENGTH and os.stat(path).st_mtime < time.time() - seconds:
                    for directory, _, _ in os.walk(path, topdown=False):
                        os.rmdir(directory)  # which the kernel refuses where a process is


def oom_kills(path: str) -> int | None:
    """How many processes of the group the kernel has killed for want of memory; None if it does not count them."""
    for line in _text(f"{path}/memory.events").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.isdigit():
            return int(value)
    return None


def peak_memory_mb(path: str) -> int | None:
    """The most memory that the whole group had at once; None if the kernel does not say (before Linux 5.19)."""
    text = _text(f"{path}/memory.peak").strip()
    return -(-int(text) // (1 << 20)) if text.isdigit() else None


def _write(path: str, value: str) -> None:
    # Unlike Path.write_text, nothing is imported and nothing encoded: this is in the way of each launch.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(handle, value.encode())
    finally:
        os.close(handle)


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
