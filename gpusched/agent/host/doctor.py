"""`gpusched-agent doctor`: check everything that the agent needs of its machine and its server, and change nothing."""

import errno
import os
import pwd
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from gpusched import proxies, tls
from gpusched.agent import config, http_client
from gpusched.agent import identity as identities
from gpusched.agent.config import Config, ConfigError
from gpusched.agent.containers import gpu_support, runtimes
from gpusched.agent.gpus.nvml import Nvml
from gpusched.agent.host import certificate, service
from gpusched.agent.host.service import Service
from gpusched.agent.identity import FILE, Identity
from gpusched.agent.isolation import cgroup_base, unix_user
from gpusched.agent.isolation.unix_user import AccountError
from gpusched.protocol.addresses import split
from gpusched.protocol.agent_messages import Hint
from gpusched.protocol.findings import (
    FAIL,
    FULL_DISK,
    MAX_SKEW_SECONDS,
    OK,
    READ_ONLY_DISK,
    SOME_SKEW_SECONDS,
    WARN,
    Finding,
)
from gpusched.proxies import ProxyError

# Below the minimum perhaps only the ends of jobs can still be written; logs and jobs soon use ten times that.
MIN_FREE_MB, FEW_FREE_MB = 512, 5120
MIN_FREE_FILES = 10_000
# Below these no job can start, or a few more would take the space for the ends of those that run.
FULL_MB, FULL_FILES = 64, 1_000
# The last part of its life in which a certificate should have been replaced: five weeks of a year, nine days of 90.
EXPIRING = 0.1
# A driver without persistence mode may take a second or two per GPU.
DRIVER_SECONDS = 20.0
DRIVER = Path("/proc/driver/nvidia/version")


def run_as_service(user: str, unit: Service | None) -> Finding:
    """Switch this process, for good, to the user that the agent runs as: `user`, else that of its service `unit`.
    Return a finding that names the user of all further checks."""
    current = unix_user.name_of(os.geteuid())
    if not (name := user or (unit.user or "root" if unit else "")):
        return Finding("user", OK, f"checked as {current}; no service is installed")
    try:
        pwd.getpwnam(name)
    except KeyError:
        return Finding("user", FAIL, f"there is no Unix user {name}", f"sudo useradd --system --create-home {name}")
    try:
        service.become(name)
    except AccountError as error:
        step = "run doctor as root, or as that user"
        return Finding("user", WARN, f"the agent runs as {name}, but this check ran as {current}: {error}", step)
    return Finding("user", OK, f"checked as {name}{'' if user else f', the user of {service.UNIT}'}")


def examine(directory: Path, unit: Service | None = None) -> list[Finding]:
    """Return all findings about the node in `directory` (DATA_DIR/nodes/NAME), as this process's user. Blocks for
    seconds at worst."""
    try:
        settings = config.load()
    except ConfigError as error:
        return [Finding("config", FAIL, str(error), "correct it; nothing else was checked")]
    devices, found = _asked_driver()
    return [
        Finding("config", OK, "valid"),
        *found,
        *_runtimes(settings, devices, runtimes.versions(settings)),
        *_users(settings),
        _cgroup(settings, unit),
        _disk(directory),
        *_server(directory),
    ]


def hints(
    settings: Config, nvml: Nvml, devices: int, versions: Mapping[str, str], directory: Path | None
) -> list[Hint]:
    """Return the running agent's warnings about the machine itself; `versions`: the runtimes that answer."""
    findings = [*_driver(nvml, devices), *_runtimes(settings, devices, versions), *_users(settings)]
    if directory is not None:
        findings.append(_disk(directory))
        if findings[-1].check != READ_ONLY_DISK:  # such a disk may refuse to be read, too
            findings += _certificate(_identity(directory))
    return [
        Hint(check=finding.check, level=finding.level, says=finding.says, next_step=finding.next_step)
        for finding in findings
        # A node without GPUs is healthy; its page explains how to set up the driver.
        if finding.level != OK and (finding.check, finding.level) != ("driver", WARN)
    ]


def _asked_driver() -> tuple[int, list[Finding]]:
    """Return the number of devices and what is wrong with them, also if the driver hangs: then in a thread that is
    left behind."""
    answers: list[tuple[int, list[Finding]]] = []

    def ask() -> None:
        nvml = Nvml()
        devices = len(nvml.devices())
        answers.append((devices, list(_driver(nvml, devices))))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(DRIVER_SECONDS)
    if thread.is_alive():
        sentence = f"it has not answered for {DRIVER_SECONDS:g} s"
        return 0, [Finding("driver", FAIL, sentence, "look for Xids in the kernel's log, and reboot the node")]
    return answers[0]


def _driver(nvml: Nvml, devices: int) -> Iterator[Finding]:
    if not nvml.is_available():
        broken = DRIVER.exists()
        step = "install the libraries of the driver's own version, or reboot" if broken else "install NVIDIA's driver"
        level = FAIL if broken else WARN
        sentence = f"{nvml.complaint}; {'its kernel module is loaded' if broken else 'this node runs only CPU jobs'}"
        yield Finding("driver", level, sentence, step)
        return
    yield Finding("driver", OK, f"NVIDIA driver {nvml.driver_version() or 'of unknown version'}")
    # Devices were listed before, so the complaint is about one of them.
    lost = [reading.uuid for reading in nvml.read() if reading.lost]
    if nvml.complaint or lost:
        yield Finding("gpus", FAIL, nvml.complaint or f"lost: {', '.join(lost)}", "reset the GPU or reboot the node")
    elif not devices:
        yield Finding("gpus", WARN, "the driver reports no GPU", "check lspci and the kernel's log")
    else:
        yield Finding("gpus", OK, f"{devices} available to jobs")


def _runtimes(settings: Config, devices: int, versions: Mapping[str, str]) -> Iterator[Finding]:
    for name, version in versions.items():
        if devices and (step := gpu_support.setup_hint(name, settings.runtimes[name].command)):
            yield Finding(name, WARN, f"{version}, but its containers get no GPUs", step)
        else:
            yield Finding(name, OK, version)
    if not versions:
        names = ", ".join(settings.runtimes) or "those of the config"
        step = "install podman, docker or apptainer, and check that the agent's user can run it (docker: its daemon)"
        yield Finding("runtimes", WARN, f"none of {names} answers: jobs with an image go to other nodes", step)


def _users(settings: Config) -> Iterator[Finding]:
    try:
        account = unix_user.resolve_user("", settings.default_user, settings.allow_root)
    except AccountError as error:
        is_needed = bool(settings.default_user)
        sentence = str(error) if is_needed else "the agent runs as root: only jobs of tenants with a unix_user run here"
        yield Finding("users", FAIL if is_needed else WARN, sentence, "set default_user in the config of the node")
        return
    if account is not None:
        yield Finding("users", OK, f"jobs run as {account.name}, or as the unix_user of their tenant")
    elif os.geteuid() == 0:
        yield Finding("users", WARN, "jobs run as root (allow_root)", "set default_user in the config of the node")
    else:
        current = unix_user.name_of(os.geteuid())
        sentence = f"all jobs run as {current}, the agent's user: they can access each other and its credential"
        yield Finding("users", WARN, sentence, "run the agent as root, for a Unix user per tenant (docs/agent.md)")


def _cgroup(settings: Config, unit: Service | None) -> Finding:
    step = "docs/agent.md, Cgroups"
    if unit and not unit.group and unit.is_delegated and settings.cgroup == cgroup_base.AUTO:
        sentence = f"{service.UNIT} does not run; systemd creates its cgroup when it starts"
        return Finding("cgroup", WARN, sentence, "start it, and run doctor again")
    groups = cgroup_base.inspect(settings.cgroup, group=unit.group if unit and unit.is_delegated else "")
    if groups.base is None:
        return Finding("cgroup", WARN, f"{groups.reason}: memory limits are not enforced", step)
    if "memory" not in groups.base.controllers:
        sentence = f"{groups.base.path} has no memory controller: memory limits are not enforced"
        return Finding("cgroup", WARN, sentence, step)
    return Finding("cgroup", OK, f"{groups.base.path} with {', '.join(groups.base.controllers)}")


def _disk(directory: Path) -> Finding:
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if problem := _refusal(existing):
        sentence = f"the disk of {existing} is read-only: no job can start"
        if problem != errno.EROFS:
            sentence = f"the disk of {existing} refuses to be written ({os.strerror(problem)}): no job can start"
        return Finding(READ_ONLY_DISK, FAIL, sentence, "look for its error in the kernel's log, and reboot the node")
    if not os.access(existing, os.W_OK):
        return Finding(
            "disk", FAIL, f"{existing} cannot be written", "run the agent as its owner, or choose --data-dir"
        )
    usage = os.statvfs(existing)
    free_mb = usage.f_bavail * usage.f_frsize >> 20
    step = f"free space on the disk of {existing}"
    files = usage.f_favail if usage.f_files else MIN_FREE_FILES  # some file systems do not count files
    if free_mb < FULL_MB or files < FULL_FILES:
        return Finding(FULL_DISK, FAIL, f"{free_mb} MiB and {files} files free: no job is started", step)
    if free_mb < MIN_FREE_MB or files < MIN_FREE_FILES:
        return Finding("disk", FAIL, f"{free_mb} MiB and {files} files free", step)
    return Finding(
        "disk", WARN if free_mb < FEW_FREE_MB else OK, f"{free_mb} MiB free", step if free_mb < FEW_FREE_MB else ""
    )


def _refusal(directory: Path) -> int | None:
    """Return the error if the kernel has made the disk read-only, or refuses each write. After an error of ext4 neither
    its mount options nor `access` show that, so create a file, without a name."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return error.errno if error.errno in (errno.EROFS, errno.EIO) else None


def _identity(directory: Path) -> Identity | None:
    """Return the node's identity, with the files that the variables name. Raises OSError."""
    identity = identities.stored(directory)
    files = (os.environ.get(name, "") for name in (tls.CA_FILE, tls.CERTIFICATE_FILE))
    return identity and identities.with_tls(identity, *files)


def _certificate(identity: Identity | None) -> Iterator[Finding]:
    """A connection that is open outlives the certificate: without this the node would be lost at the next one."""
    if identity is None or not identity.certificate_file:
        return
    try:
        begin, end = certificate.validity(Path(identity.certificate_file))
    except (OSError, ValueError) as error:
        yield Finding("certificate", FAIL, str(error), tls.RENEW)
        return
    now = datetime.now(UTC)
    sentence = f"{identity.certificate_file} is valid until {end:%Y-%m-%d %H:%M} UTC"
    if not begin <= now < end:
        sentence = f"{identity.certificate_file} is valid from {begin:%Y-%m-%d %H:%M} until {end:%Y-%m-%d %H:%M} UTC"
        yield Finding("certificate", FAIL, f"{sentence}: the server refuses new connections", tls.RENEW)
    elif now >= end - (end - begin) * EXPIRING:
        yield Finding("certificate", WARN, sentence, f"{tls.RENEW}; the agent reads it again by itself")
    else:
        yield Finding("certificate", OK, sentence)


def _server(directory: Path) -> Iterator[Finding]:
    try:
        identity = _identity(directory)
    except OSError as error:
        step = "run doctor as the user that the agent runs as"
        yield Finding("joined", FAIL, f"{directory / FILE} cannot be read: {error.strerror}", step)
        return
    if identity is None or not identity.credential:
        yield Finding("joined", FAIL, f"there is no node in {directory}", "gpusched-agent join URL TOKEN")
        return
    mode = (directory / FILE).stat().st_mode & 0o077
    if mode:
        yield Finding(
            "joined", FAIL, f"other users can read the credential in {directory / FILE}", "chmod 600 that file"
        )
    else:
        yield Finding("joined", OK, f"node {identity.name} of {identity.url}")
    yield from _certificate(identity)
    for address in split(identity.url):
        yield from _reach(replace(identity, url=address))


def _reach(identity: Identity) -> Iterator[Finding]:
    try:
        with http_client.blocking(identity.url, identity.ca_file, identity.certificate_file) as http:
            # The shortest request that needs the credential: the server checks that before the key.
            answer = http.post(f"{identity.url}/agent/logs", headers={"Authorization": f"Bearer {identity.credential}"})
    except tls.TlsFileError as error:
        yield Finding("server", FAIL, str(error), "correct --ca-file or --certificate-file, and join again")
        return
    except ProxyError as error:
        yield Finding("server", FAIL, str(error), proxies.NEXT_STEP)
        return
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        if fault := tls.fault(identity.url, error):
            yield Finding("server", FAIL, *fault)
            return
        sentence = f"{identity.url} cannot be reached: {tls.reason(error) or type(error).__name__}"
        yield Finding(
            "server", FAIL, sentence, "check that it runs, and that no firewall blocks it; jobs here continue meanwhile"
        )
        return
    if answer.status_code >= 500:
        yield Finding("server", FAIL, f"{identity.url} answers HTTP {answer.status_code}", "check the server's log")
        return
    yield Finding("server", OK, f"{identity.url} answers")
    if answer.status_code == 401:
        step = "gpusched-agent join URL TOKEN"
        yield Finding("credential", FAIL, f"{identity.url} does not accept this node's credential", step)
    elif answer.status_code == 400:
        yield Finding("credential", OK, "the server accepts it")
    else:
        sentence = f"{identity.url} answers HTTP {answer.status_code}, which is not a gpusched server"
        yield Finding("credential", FAIL, sentence, "check that the address is the control plane's")
    yield _clock(answer.headers.get("Date", ""))


def _clock(date: str) -> Finding:
    try:
        skew = (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
    except (ValueError, TypeError):
        return Finding("clock", WARN, "the server sends no time", "compare the clocks by hand")
    direction = "ahead of" if skew > 0 else "behind"
    sentence = f"{abs(skew):.0f} s {direction} the server's"
    step = "run a time service on both (chrony, systemd-timesyncd)"
    if abs(skew) > MAX_SKEW_SECONDS:
        return Finding("clock", FAIL, sentence, step)
    return (
        Finding("clock", WARN, sentence, step)
        if abs(skew) > SOME_SKEW_SECONDS
        else Finding("clock", OK, "matches the server's")
    )
