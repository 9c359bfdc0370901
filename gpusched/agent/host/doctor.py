"""`gpusched-agent doctor`: looks at all that the agent needs of its machine and its server, and changes nothing."""

import json
import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from gpusched.agent import config
from gpusched.agent.config import Config, ConfigError
from gpusched.agent.containers import gpu_support, runtimes
from gpusched.agent.gpus.nvml import Nvml
from gpusched.agent.host import service
from gpusched.agent.host.service import Service
from gpusched.agent.identity import FILE, Identity
from gpusched.agent.isolation import cgroup, unix_user
from gpusched.agent.isolation.unix_user import AccountError
from gpusched.agent.rank_files import rank_dir
from gpusched.protocol.agent_messages import Hint

OK, WARN, FAIL = "ok", "warn", "fail"
# Below it the end of a job may be all that can still be written; ten times that is what logs and jobs soon take.
MIN_FREE_MB, FEW_FREE_MB = 512, 5120
MIN_FREE_FILES = 10_000
# The Date header counts seconds.
SOME_SKEW_SECONDS, MAX_SKEW_SECONDS = 3.0, 60.0
SERVER_SECONDS = 10.0
DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Finding:
    """One line: `level` is `ok`, `warn` or `fail`; `next_step` is empty if there is nothing to do."""

    check: str
    level: str
    says: str
    next_step: str = ""


def run_as_service(wanted: str, unit: Service | None) -> Finding:
    """Makes this process one of the user that the agent runs as, for good: `wanted`, else that of its service `unit`.
    Says whose eyes the rest is then seen with."""
    own = unix_user.name_of(os.geteuid())
    if not (name := wanted or (unit.user or "root" if unit else "")):
        return Finding("user", OK, f"looked as {own}; no service is installed")
    try:
        pwd.getpwnam(name)
    except KeyError:
        return Finding("user", FAIL, f"there is no Unix user {name}", f"sudo useradd --system --create-home {name}")
    try:
        service.become(name)
    except AccountError as error:
        step = "run doctor as root, or as that user"
        return Finding("user", WARN, f"the agent is to run as {name}, but looked as {own}: {error}", step)
    return Finding("user", OK, f"looked as {name}{'' if wanted else f', as whom {service.UNIT} runs'}")


def examine(directory: Path, unit: Service | None = None) -> list[Finding]:
    """All findings about the node whose `directory` (DATA_DIR/nodes/NAME) this is, as the user that this process is.
    Blocks for seconds at worst."""
    try:
        told = config.load()
    except ConfigError as error:
        return [Finding("config", FAIL, str(error), "correct it; nothing else was looked at")]
    nvml = Nvml()
    devices = len(nvml.devices())
    return [
        Finding("config", OK, "no problem with it"),
        *_driver(nvml, devices),
        *_runtimes(told, devices, runtimes.versions(told)),
        *_users(told),
        _cgroup(told, unit),
        _disk(directory),
        *_server(directory),
    ]


def hints(told: Config, nvml: Nvml, devices: int, there: Mapping[str, str], directory: Path | None) -> list[Hint]:
    """What is not well of the machine itself, as the running agent sees it; `there`: the runtimes that answer."""
    found = [*_driver(nvml, devices), *_runtimes(told, devices, there), *_users(told)]
    if directory is not None:
        found.append(_disk(directory))
    return [
        Hint(check=one.check, level=one.level, says=one.says, next_step=one.next_step)
        for one in found
        # A node without GPUs is well; its page says how to find those that it has.
        if one.level != OK and (one.check, one.level) != ("driver", WARN)
    ]


def as_lines(findings: Sequence[Finding]) -> str:
    """One line for each, for people."""
    width = max(len(finding.check) for finding in findings)
    lines = [f"{one.level:<4}  {one.check:<{width}}  {one.says}" for one in findings]
    return "\n".join(
        f"{line}; {one.next_step}" if one.next_step else line for line, one in zip(lines, findings, strict=True)
    )


def as_json(findings: Sequence[Finding]) -> str:
    return json.dumps([asdict(finding) for finding in findings], indent=2)


def _driver(nvml: Nvml, devices: int) -> Iterator[Finding]:
    if not nvml.is_available():
        broken = DRIVER.exists()
        step = "install the libraries of the driver's own version, or reboot" if broken else "install NVIDIA's driver"
        level = FAIL if broken else WARN
        says = f"{nvml.complaint}; {'its kernel module is loaded' if broken else 'this node has CPU jobs alone'}"
        yield Finding("driver", level, says, step)
        return
    yield Finding("driver", OK, f"NVIDIA driver {nvml.driver_version() or 'of unknown version'}")
    # After the devices were listed, the complaint is of one of them.
    lost = [reading.uuid for reading in nvml.read() if reading.lost]
    if nvml.complaint or lost:
        yield Finding("gpus", FAIL, nvml.complaint or f"lost: {', '.join(lost)}", "reset the GPU or reboot the node")
    elif not devices:
        yield Finding("gpus", WARN, "the driver knows no GPU", "see lspci and the kernel's log")
    else:
        yield Finding("gpus", OK, f"{devices} may be given to jobs")


def _runtimes(told: Config, devices: int, there: Mapping[str, str]) -> Iterator[Finding]:
    for name, version in there.items():
        if devices and (step := gpu_support.setup_hint(name, told.runtimes[name].command)):
            yield Finding(name, WARN, f"{version}, but its containers get no GPUs", step)
        else:
            yield Finding(name, OK, version)
    if not there:
        names = ", ".join(told.runtimes) or "those of the config"
        step = "install podman, docker or apptainer, and see that it runs (docker: its daemon) for the agent's user"
        yield Finding("runtimes", WARN, f"none of {names} answers: jobs with an image go to other nodes", step)


def _users(told: Config) -> Iterator[Finding]:
    try:
        found = unix_user.resolve_user("", told.default_user, told.allow_root)
    except AccountError as error:
        is_needed = bool(told.default_user)
        says = str(error) if is_needed else "the agent runs as root: only jobs of tenants with a unix_user run here"
        yield Finding("users", FAIL if is_needed else WARN, says, "set default_user in the config of the node")
        return
    if found is not None:
        yield Finding("users", OK, f"jobs run as {found.name}, or as the unix_user of their tenant")
    elif os.geteuid() == 0:
        yield Finding("users", WARN, "jobs run as root (allow_root)", "set default_user in the config of the node")
    else:
        own = unix_user.name_of(os.geteuid())
        says = f"all jobs run as {own}, as the agent does: they reach each other and its credential"
        yield Finding("users", WARN, says, "run the agent as root, for a Unix user per tenant (docs/agent.md)")


def _cgroup(told: Config, unit: Service | None) -> Finding:
    step = "docs/agent.md, Cgroups"
    if unit and not unit.group and unit.is_delegated and told.cgroup == cgroup.AUTO:
        says = f"{service.UNIT} does not run; systemd gives it a cgroup when it starts"
        return Finding("cgroup", WARN, says, "start it, and look again")
    found = cgroup.look(told.cgroup, group=unit.group if unit and unit.is_delegated else "")
    if found.base is None:
        return Finding("cgroup", WARN, f"{found.why}: no limit of memory is enforced", step)
    if "memory" not in found.base.controllers:
        says = f"{found.base.path} has no memory controller: no limit of memory is enforced"
        return Finding("cgroup", WARN, says, step)
    return Finding("cgroup", OK, f"{found.base.path} with {', '.join(found.base.controllers)}")


def _disk(directory: Path) -> Finding:
    place = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(place, os.W_OK):
        return Finding("disk", FAIL, f"{place} cannot be written", "run the agent as its owner, or choose --data-dir")
    room = os.statvfs(place)
    free_mb = room.f_bavail * room.f_frsize >> 20
    step = f"make room on the disk of {place}"
    # Some file systems do not count files.
    if free_mb < MIN_FREE_MB or (room.f_files and room.f_favail < MIN_FREE_FILES):
        return Finding("disk", FAIL, f"{free_mb} MiB and {room.f_favail} files free", step)
    return Finding(
        "disk", WARN if free_mb < FEW_FREE_MB else OK, f"{free_mb} MiB free", step if free_mb < FEW_FREE_MB else ""
    )


def _server(directory: Path) -> Iterator[Finding]:
    try:
        known = rank_dir.read_own(directory, FILE)
    except OSError as error:
        step = "run doctor as the user that the agent runs as"
        yield Finding("joined", FAIL, f"{directory / FILE} cannot be read: {error.strerror}", step)
        return
    if known is None or not known.get("credential"):
        yield Finding("joined", FAIL, f"there is no node in {directory}", "gpusched-agent join URL TOKEN")
        return
    identity = Identity(**known)
    mode = (directory / FILE).stat().st_mode & 0o077
    if mode:
        yield Finding("joined", FAIL, f"others may read the credential in {directory / FILE}", "chmod 600 that file")
    else:
        yield Finding("joined", OK, f"node {identity.name} of {identity.url}")
    yield from _reach(identity)


def _reach(identity: Identity) -> Iterator[Finding]:
    try:
        with httpx.Client(timeout=SERVER_SECONDS, verify=identity.url.startswith("https:")) as http:
            # The shortest request that needs the credential: the server looks at that first, and at the key then.
            answer = http.post(f"{identity.url}/agent/logs", headers={"Authorization": f"Bearer {identity.credential}"})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        says = f"{identity.url} cannot be reached: {error or type(error).__name__}"
        yield Finding(
            "server", FAIL, says, "see that it runs, and that no firewall is between; jobs here run on meanwhile"
        )
        return
    if answer.status_code >= 500:
        yield Finding("server", FAIL, f"{identity.url} answers HTTP {answer.status_code}", "see the server's log")
        return
    yield Finding("server", OK, f"{identity.url} answers")
    if answer.status_code == 401:
        step = "gpusched-agent join URL TOKEN"
        yield Finding("credential", FAIL, f"{identity.url} does not know this node's credential", step)
    elif answer.status_code == 400:
        yield Finding("credential", OK, "the server knows it")
    else:
        says = f"{identity.url} answers HTTP {answer.status_code}, as no gpusched does"
        yield Finding("credential", FAIL, says, "see that the address is that of the control plane")
    yield _clock(answer.headers.get("Date", ""))


def _clock(date: str) -> Finding:
    try:
        skew = (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
    except (ValueError, TypeError):
        return Finding("clock", WARN, "the server does not say what time it is", "compare the clocks by hand")
    which = "ahead of" if skew > 0 else "behind"
    says = f"{abs(skew):.0f} s {which} the server's"
    step = "run a time service on both (chrony, systemd-timesyncd)"
    if abs(skew) > MAX_SKEW_SECONDS:
        return Finding("clock", FAIL, says, step)
    return (
        Finding("clock", WARN, says, step)
        if abs(skew) > SOME_SKEW_SECONDS
        else Finding("clock", OK, "like the server's")
    )
