"""Isolation of this agent's ranks from each other and from the node: detect it once, report it to the server, and write
it into spec.json."""

import contextlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpusched.agent import config
from gpusched.agent.isolation import cgroup, cgroup_base, device_filter, private_tmp, unix_user
from gpusched.agent.isolation.unix_user import AccountError
from gpusched.agent.rank_files import rank_dir
from gpusched.protocol.agent_messages import Isolation, RankSpec


@dataclass(frozen=True)
class Confinement:
    """`home`: the agent's own cgroup, empty without cgroups. `filters_devices`: the kernel supports it. `has_ceiling`:
    no more CPU than requested. `hides_tmp`: another user's rank has its own /tmp."""

    groups: cgroup_base.Lookup
    home: str
    default_user: str
    allow_root: bool
    umask: int
    filters_devices: bool = False
    has_ceiling: bool = False
    hides_tmp: bool = False


@cache
def current() -> Confinement:
    """Return the isolation by this process's config and machine; detected once, before anything is launched."""
    settings = config.current()
    groups = cgroup_base.find(settings.cgroup)
    home = cgroup_base.home_group() if groups.base else ""
    return Confinement(
        groups,
        home,
        settings.default_user,
        settings.allow_root,
        settings.umask,
        filters_devices=_can_filter(groups.base),
        has_ceiling=settings.cpu_ceiling,
        hides_tmp=settings.private_tmp and can_hide_tmp(),
    )


def can_hide_tmp() -> bool:
    """Try it in a child process: sandboxes and old kernels refuse it. Only root can."""
    if os.geteuid():
        return False
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            # Any directory will do. A temporary one would remain if the agent was killed meanwhile.
            private_tmp.enter("/")
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _can_filter(base: cgroup_base.Base | None) -> bool:
    if base is None:
        return False
    trial = f"{base.path}/devices-{os.getpid()}"
    cgroup.make(trial, {})
    try:
        return device_filter.is_possible(trial)
    finally:
        cgroup.remove(trial)


def isolation(confinement: Confinement) -> Isolation:
    """Return this node's isolation for the server."""
    base = confinement.groups.base
    users = "any" if os.geteuid() == 0 else "agent"
    limits = [
        *(base.controllers if base else ()),
        *(["devices"] if confinement.filters_devices else []),
        *(["cpu ceiling"] if confinement.has_ceiling and base and "cpu" in base.controllers else []),
        *(["tmp"] if confinement.hides_tmp else []),
    ]
    return Isolation(cgroup=base is not None, limits=limits, users=users, why=confinement.groups.reason)


def confined(confinement: Confinement, directory: Path, spec: RankSpec, scope: str) -> dict[str, Any]:
    """Return the part of spec.json that confines the rank: its umask, its cgroup, and its user or the reason for having
    none. Prepare the rank's directory for that user."""
    fact: dict[str, Any] = {"umask": confinement.umask}
    if base := confinement.groups.base:
        limits = cgroup_base.limits(
            base.controllers, spec.cpu_cores, spec.memory_mb, has_ceiling=confinement.has_ceiling
        )
        fact["cgroup"] = {"path": f"{base.path}/{scope}", "home": confinement.home, "limits": limits}
        if confinement.filters_devices and (allowed := device_filter.minors(spec.device_uuids)) is not None:
            fact["cgroup"]["devices"] = allowed
    try:
        account = unix_user.resolve_user(spec.user, confinement.default_user, confinement.allow_root)
    except AccountError as refusal:
        return {**fact, "refusal": str(refusal)}
    if account is not None:
        fact["account"] = account.fact()
        # The rank's own files must stay visible.
        if confinement.hides_tmp and not private_tmp.hides(str(directory)):
            fact["private_tmp"] = f"{directory}/{rank_dir.TMP}"
    return fact


def open_way(directory: Path) -> None:
    """Let other users pass through a directory of root's, but not list it: their ranks' files are further down."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            os.chmod(directory, os.stat(directory).st_mode | 0o011)  # noqa: S103 - to pass, not to read
