"""The command `gpusched-agent`: join a control plane, run, and check the node."""

import logging
import os
import platform
import sys
from pathlib import Path
from typing import Annotated

import typer

from gpusched import __version__, tracing
from gpusched.agent import config, daemon, identity
from gpusched.agent.config import ConfigError
from gpusched.agent.host import doctor as doctors
from gpusched.agent.host import service
from gpusched.agent.host.machine import Machine, PretendMachine, PretendSpec, RealMachine
from gpusched.agent.identity import JoinError
from gpusched.json_log import JsonLines
from gpusched.protocol.addresses import is_local
from gpusched.protocol.findings import as_json as json_of
from gpusched.protocol.findings import as_lines
from gpusched.proxies import ProxyError

app = typer.Typer(
    help="Run jobs on this node for a gpusched control plane.", no_args_is_help=True, pretty_exceptions_enable=False
)
_ROOTS_DIR, _OWN_DIR = "/var/lib/gpusched-agent", "~/.local/share/gpusched-agent"
DataDir = Annotated[
    Path,
    typer.Option(
        envvar="GPUSCHED_AGENT_DIR",
        help="Directory of the node's identity and its jobs' files.",
        show_default=f"{_ROOTS_DIR}; {_OWN_DIR} if not root",
    ),
]
Url = Annotated[str, typer.Option(envvar="GPUSCHED_URL", help="Control plane to join if not joined yet.")]
JoinToken = Annotated[str, typer.Option(envvar="GPUSCHED_JOIN_TOKEN", help="Join token to use if not joined yet.")]
NodeName = Annotated[str, typer.Option(help="Name of the node; by default the name that joined, or the host's.")]
HeartbeatSeconds = Annotated[
    float | None,
    typer.Option(
        envvar="GPUSCHED_HEARTBEAT_SECONDS",
        min=0.1,
        max=60,
        help="Longest time between two messages; by default set by the server.",
    ),
]
LogMaxMb = Annotated[
    int,
    typer.Option(
        envvar="GPUSCHED_LOG_MAX_MB", min=1, help="Longer job logs lose their middle; the server may set a lower limit."
    ),
]
LogFormat = Annotated[
    str,
    typer.Option(
        envvar="GPUSCHED_LOG_FORMAT",
        help="Format of the agent's own log: line (text), or json (an object per line, as the server's).",
    ),
]
CaFile = Annotated[
    str,
    typer.Option(
        envvar="GPUSCHED_CA_FILE", help="Trust only the authorities in this file for https.", show_default=False
    ),
]
CertificateFile = Annotated[
    str,
    typer.Option(
        envvar="GPUSCHED_CERTIFICATE_FILE",
        help="The node's own certificate with its key (PEM), if the server asks agents for one.",
        show_default=False,
    ),
]
OwnJobs = Annotated[bool, typer.Option("--own-jobs", help="Jobs end with the agent instead of outliving it.")]
NamePrefix = Annotated[str, typer.Option(help="Prefix of the names of pretend nodes.")]
Pretend = Annotated[
    list[str] | None,
    typer.Option(help="Pretend nodes for a demo: NODES:MODEL:GPU_MEMORY_MB:GPUS:CPU_CORES:MEMORY_MB."),
]
DEFAULT_DIR = Path(_ROOTS_DIR) if os.geteuid() == 0 else Path(_OWN_DIR).expanduser()


def main() -> None:
    _log_as("line")
    logging.getLogger("httpx").setLevel("WARNING")
    logging.getLogger("websockets").setLevel("WARNING")
    try:
        app(default_map=_configured())
    except (JoinError, ConfigError, ProxyError, daemon.AlreadyRunning) as error:
        daemon.log_startup(str(error))
        raise SystemExit(1) from error


@app.command()
def join(
    url: Annotated[
        str, typer.Argument(help="Address of the control plane, such as http://head:8000; several by comma.")
    ],
    token: Annotated[str, typer.Argument(help="A join token, from the Nodes page or `gpusched node join-token`.")],
    name: Annotated[str, typer.Option(help="Name of the node; by default the host's.")] = "",
    data_dir: DataDir = DEFAULT_DIR,
    ca_file: CaFile = "",
    certificate_file: CertificateFile = "",
) -> None:
    """Make this machine a node. Safe to repeat.

    \b
    gpusched-agent join http://head:8000 TOKEN
    gpusched-agent join --name gpu-07 https://gpusched.example TOKEN
    gpusched-agent join https://head1.example,https://head2.example TOKEN
    """
    config.current()
    name = name or _hostname()
    directory = daemon.directory_of(data_dir, name)
    facts = RealMachine().facts()
    with daemon.usable(data_dir):
        previous = identity.with_tls(identity.load(directory, name), ca_file, certificate_file)
        joined = identity.join(directory, previous, url, token, facts)
    typer.echo(f"joined {joined.url} as node {joined.name}")
    if joined.url.startswith("http:") and not is_local(joined.url):
        typer.echo("note: http is not encrypted; put TLS in front of the server, and join over https", err=True)
    start = f"systemctl enable --now {service.UNIT}" if _has_unit() else "gpusched-agent run"
    typer.echo(f"now check the node: gpusched-agent doctor\nthen start it: {start}", err=True)


@app.command()
def run(
    data_dir: DataDir = DEFAULT_DIR,
    url: Url = "",
    join_token: JoinToken = "",
    name: NodeName = "",
    heartbeat_seconds: HeartbeatSeconds = None,
    log_max_mb: LogMaxMb = 1024,
    log_format: LogFormat = "line",
    ca_file: CaFile = "",
    certificate_file: CertificateFile = "",
    own_jobs: OwnJobs = False,
    name_prefix: NamePrefix = "pretend-",
    pretend: Pretend = None,
) -> None:
    """Run the node until it is stopped. Jobs outlive it, unless --own-jobs.

    \b
    gpusched-agent run
    gpusched-agent run --log-format json
    GPUSCHED_JOIN_TOKEN=TOKEN gpusched-agent run --url http://head:8000
    gpusched-agent run --pretend 2:A100:81920:8:64:512000
    """
    _prepare_process(log_format)
    data_dir = data_dir.absolute()
    plan = daemon.Plan(
        data_dir=data_dir,
        machines=_pretend(pretend, name_prefix) if pretend else _this_machine(data_dir, name),
        url=url,
        join_token=join_token,
        own_jobs=own_jobs,
        heartbeat_seconds=heartbeat_seconds,
        log_max_mb=log_max_mb,
        ca_file=ca_file,
        certificate_file=certificate_file,
    )
    daemon.run(plan)


def _prepare_process(log_format: str) -> None:
    """Check the config, and start logging and tracing."""
    config.current()
    if log_format not in config.LOG_FORMATS:
        raise typer.BadParameter(
            f"{log_format!r} must be one of {', '.join(config.LOG_FORMATS)}", param_hint="--log-format"
        )
    _log_as(log_format)
    tracing.start("gpusched-agent")
    # Keep it from the jobs' supervisors, which inherit this environment.
    os.environ.pop("GPUSCHED_JOIN_TOKEN", None)


@app.command()
def doctor(
    context: typer.Context,
    data_dir: DataDir = DEFAULT_DIR,
    name: NodeName = "",
    user: Annotated[str, typer.Option(help="Check as this user; by default as the service's user.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check what the node needs: driver, containers, users, cgroups, disk, server, clock. Changes nothing.

    \b
    gpusched-agent doctor
    gpusched-agent doctor --json
    gpusched-agent doctor --user gpusched   (as another user; root only)
    """
    logging.getLogger("gpusched").setLevel("ERROR")
    unit = service.installed()
    environment = unit.environment if unit else {}
    source = context.get_parameter_source("data_dir")
    if source is not None and source.name == "DEFAULT" and "GPUSCHED_AGENT_DIR" in environment:
        data_dir = Path(environment["GPUSCHED_AGENT_DIR"])
    os.environ.update({name: value for name, value in environment.items() if name not in os.environ})
    place = doctors.run_as_service(user, unit)
    findings = [place, *doctors.examine(daemon.directory_of(data_dir, name or _joined_name(data_dir)), unit)]
    typer.echo(json_of(findings) if as_json else as_lines(findings))
    raise SystemExit(any(finding.level == "fail" for finding in findings))


@app.command()
def install(
    into: Annotated[Path, typer.Option(help="Directory of the unit.")] = Path("/etc/systemd/system"),
) -> None:
    """Write the unit of systemd that runs this agent; starts nothing.

    \b
    gpusched-agent install
    """
    file = into / service.UNIT
    try:
        file.write_text(service.unit_text(Path(sys.executable).parent))
    except OSError as error:
        typer.echo(f"{file}: {error.strerror}; run it as root, or choose --into", err=True)
        raise SystemExit(1) from error
    typer.echo(f"wrote {file}\nnext: systemctl daemon-reload && systemctl enable --now {service.UNIT}")


@app.command()
def version() -> None:
    """Print the version.

    \b
    gpusched-agent version
    """
    typer.echo(f"gpusched-agent {__version__}")


def _configured() -> dict[str, dict[str, object]]:
    """Return the defaults of the commands' options from the config. The command itself reports an invalid config."""
    try:
        settings = config.current()
    except ConfigError:
        return {}
    defaults = {"data_dir": settings.data_dir, "log_max_mb": settings.log_max_mb, "log_format": settings.log_format}
    return {name: {key: value for key, value in defaults.items() if value} for name in ("join", "run", "doctor")}


def _log_as(form: str) -> None:
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else text)
    logging.basicConfig(level="INFO", handlers=[handler], force=True)


def _has_unit() -> bool:
    return any(Path(directory, service.UNIT).exists() for directory in ("/etc/systemd/system", "/lib/systemd/system"))


def _hostname() -> str:
    return platform.node() or "localhost"


def _joined_name(data_dir: Path) -> str:
    """Return the name under which this directory joined; the host's if there is none, or several."""
    directories = [path.parent for path in data_dir.glob("nodes/*/identity.json")]
    joined = [directory.name for directory in directories if _may_have_joined(directory)]
    return joined[0] if len(joined) == 1 else _hostname()


def _may_have_joined(directory: Path) -> bool:
    """Return False for an identity that a join which failed, or a run without one, has left."""
    try:
        stored = identity.stored(directory)
    except OSError:
        return True  # the next one to read it reports the error
    return stored is not None and stored.credential != ""


def _this_machine(data_dir: Path, name: str) -> dict[str, Machine]:
    node = name or _joined_name(data_dir)
    return {node: RealMachine(daemon.directory_of(data_dir, node))}


def _pretend(texts: list[str], prefix: str) -> dict[str, Machine]:
    try:
        specs = [PretendSpec.parse(text) for text in texts]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--pretend") from error
    every = [spec for spec in specs for _ in range(spec.nodes)]
    width = max(2, len(str(len(every))))
    names = [f"{prefix}{number:0{width}d}" for number in range(1, len(every) + 1)]
    return {name: PretendMachine(name, spec) for name, spec in zip(names, every, strict=True)}


if __name__ == "__main__":
    main()
