"""How this agent's ranks are kept apart from each other and from the node: found out once, told to the server, and
written into what a supervisor gets."""

import contextlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpusched.agent import config
from gpusched.agent.isolation import cgroup, device_filter, private_tmp, unix_user
from gpusched.agent.isolation.unix_user import AccountError
from gpusched.agent.rank_files import rank_dir
from gpusched.protocol.agent_messages import Isolation, RankSpec


@dataclass(frozen=True)
class Confinement:
    """`home`: the cgroup of the agent itself, empty without cgroups. `filters_devices`: the kernel lets it.
    `has_ceiling`: no more CPU than was asked for. `hides_tmp`: another user's rank has a /tmp of its own."""

    groups: cgroup.Found
    home: str
    default_user: str
    allow_root: bool
    umask: int
    filters_devices: bool = False
    has_ceiling: bool = False
    hides_tmp: bool = False


@cache
def current() -> Confinement:
    """By this process's config and by what the machine allows; asked once, before anything is launched."""
    told = config.current()
    groups = cgroup.find(told.cgroup)
    home = cgroup.home_group() if groups.base else ""
    return Confinement(
        groups,
        home,
        told.default_user,
        told.allow_root,
        told.umask,
        filters_devices=_can_filter(groups.base),
        has_ceiling=told.cpu_ceiling,
        hides_tmp=told.private_tmp and private_tmp.is_possible(),
    )


def _can_filter(base: cgroup.Base | None) -> bool:
    if base is None:
        return False
    trial = f"{base.path}/devices-{os.getpid()}"
    cgroup.make(trial, {})
    try:
        return device_filter.is_possible(trial)
    finally:
        cgroup.remove(trial)


def isolation(of: Confinement) -> Isolation:
    """What the server is told of this node."""
    base = of.groups.base
    users = "any" if os.geteuid() == 0 else "agent"
    limits = [
        *(base.controllers if base else ()),
        *(["devices"] if of.filters_devices else []),
        *(["cpu ceiling"] if of.has_ceiling and base and "cpu" in base.controllers else []),
        *(["tmp"] if of.hides_tmp else []),
    ]
    return Isolation(cgroup=base is not None, limits=limits, users=users, why=of.groups.why)


def confined(of: Confinement, directory: Path, spec: RankSpec, scope: str) -> dict[str, Any]:
    """The part of spec.json that confines the rank: its umask, its cgroup, and its user, or why it has none. Prepares
    the rank's directory for that user."""
    fact: dict[str, Any] = {"umask": of.umask}
    if base := of.groups.base:
        limits = cgroup.limits(base.controllers, spec.cpu_cores, spec.memory_mb, has_ceiling=of.has_ceiling)
        fact["cgroup"] = {"path": f"{base.path}/{scope}", "home": of.home, "limits": limits}
        if of.filters_devices and (allowed := device_filter.minors(spec.device_uuids)) is not None:
            fact["cgroup"]["devices"] = allowed
    try:
        found = unix_user.resolve_user(spec.user, of.default_user, of.allow_root)
    except AccountError as refusal:
        return {**fact, "refusal": str(refusal)}
    if found is not None:
        fact["account"] = found.fact()
        # The rank's own files are to stay in sight.
        if of.hides_tmp and not private_tmp.hides(str(directory)):
            fact["private_tmp"] = f"{directory}/{rank_dir.TMP}"
    return fact


def open_way(directory: Path) -> None:
    """Lets other users pass through a directory of root's, not list it: their ranks' files are further down."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            os.chmod(directory, os.stat(directory).st_mode | 0o011)  # noqa: S103 - to pass, not to read
