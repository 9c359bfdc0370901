"""Every setting: its environment name, type, default and meaning. Nothing else reads the environment for settings.

A file can set them, too (gpusched/config_file.py); the environment overrides it."""

import json
import os
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, TypeVar

from gpusched import config_file, oidc
from gpusched.config_file import SettingError as SettingError
from gpusched.config_file import SettingsFile
from gpusched.protocol import addresses
from gpusched.protocol.states import FINAL

PREFIX = "GPUSCHED_"
CONFIG = "GPUSCHED_CONFIG"
T = TypeVar("T")
_DAYS = (0, 36_500)  # retention: at least none, at most what dates can represent


def _setting(
    default: T,
    doc: str,
    *,
    between: tuple[float, float] | None = None,
    choices: tuple[str, ...] | None = None,
    is_secret: bool = False,
) -> T:
    """Declare a field of Env; `doc` is its text in docs/settings.md. Each number is `between` a minimum and a
    maximum."""
    return field(default=default, metadata={"doc": doc, "between": between, "choices": choices, "is_secret": is_secret})


@dataclass(frozen=True)
class Env:
    """The settings of one process. The variable GPUSCHED_HTTP_PORT, or the file that GPUSCHED_HTTP_PORT_FILE names,
    sets the field `http_port`."""

    database_url: str = _setting("", "PostgreSQL to use; empty: the embedded server in DATA_DIR", is_secret=True)
    web_threads: int = _setting(
        16, "requests that a web process handles at once, each with a database connection", between=(1, 1000)
    )
    web_processes: int = _setting(
        1, "web processes of `manage.py up`, on one port; about a core each under load", between=(1, 64)
    )
    secret_key: str = _setting("", "Django's secret; empty: generated once in DATA_DIR", is_secret=True)
    data_dir: Path = _setting(Path(".gpusched"), "logs, secrets and the embedded database")  # noqa: RUF009 - a field
    debug: bool = _setting(False, "show tracebacks to browsers; never in production")
    allowed_hosts: str = _setting("localhost,127.0.0.1,[::1]", "host names of this server, separated by commas")
    trusted_origins: str = _setting("", "https://… origins behind a proxy, by comma; messages link to the first")
    trusted_proxies: str = _setting("", "proxies whose X-Forwarded-… headers count: addresses or networks, by comma")
    behind_tls: bool = _setting(False, "clients connect over HTTPS through a trusted proxy: secure cookies, HSTS")
    tls_name: str = _setting(
        "", "public name of the server; `up` then starts Caddy with TLS in front of it; empty: no TLS"
    )
    tls_issuer: str = _setting(
        "auto",
        "who certifies the name: acme (Let's Encrypt), internal (an authority of Caddy's own), or auto: acme for names"
        " that can be public",
        choices=("auto", "acme", "internal"),
    )
    tls_acme_directory: str = _setting("", "address of the ACME server's directory; empty: Let's Encrypt")
    tls_acme_ca: str = _setting("", "file of the ACME server's own authority; empty: those of this machine")
    tls_https_port: int = _setting(443, "port of Caddy for HTTPS", between=(1, 65_535))
    tls_http_port: int = _setting(80, "port of Caddy that redirects to HTTPS", between=(1, 65_535))
    tls_agent_ca: str = _setting(
        "", "file of the authority whose certificates agents must have (mutual TLS); empty: they need none"
    )
    heads: str = _setting("", "addresses at which heads reach each other, by comma, such as http://10.0.0.5:8000")
    http_host: str = _setting("127.0.0.1", "address that the web server listens on")
    http_port: int = _setting(8000, "port that the web server listens on", between=(1, 65_535))
    rate_limit_per_minute: int = _setting(
        60_000, "requests of one token, or of one user on the pages; 0: no limit", between=(0, 1_000_000_000)
    )
    mcp: bool = _setting(True, "answer AI agents at /mcp, with the rights of their tokens to read")
    mcp_writes: bool = _setting(
        False,
        "let AI agents also act on jobs and reservations, if their token has the scope write; each write is confirmed",
    )
    max_streams_per_user: int = _setting(
        256, "byte streams into jobs that a user can have open in one web process", between=(1, 100_000)
    )
    tick_seconds: float = _setting(1.0, "longest time between two scheduling cycles", between=(0.05, 300))
    max_queue_size: int = _setting(
        100_000,
        "queued jobs of all tenants; beyond it each tenant is limited to an even part",
        between=(1, 100_000_000),
    )
    max_deferred_jobs: int = _setting(
        100_000, "the same for jobs that cannot start yet: held, too early, or dependent", between=(1, 100_000_000)
    )
    max_queued_jobs_per_tenant: int = _setting(
        50_000, "queued jobs of a tenant; beyond it its submits answer 429", between=(1, 100_000_000)
    )
    max_queued_jobs_per_user: int = _setting(25_000, "the same for one user in a tenant", between=(1, 100_000_000))
    max_deferred_jobs_per_tenant: int = _setting(
        20_000, "jobs of a tenant that cannot start yet; beyond it its submits answer 429", between=(1, 100_000_000)
    )
    max_deferred_jobs_per_user: int = _setting(10_000, "the same for one user in a tenant", between=(1, 100_000_000))
    queue_warning_percent: int = _setting(
        80, "part of such a limit from which submits are answered with a warning", between=(1, 100)
    )
    enable_gang_scheduling: bool = _setting(True, "let gangs span nodes")
    load_threshold: float = _setting(1.0, "part of a whole device's memory that a job can request", between=(0.05, 1))
    load_threshold_shared: float = _setting(0.85, "the same for shared devices, all jobs together", between=(0.05, 1))
    aging_points_per_minute: float = _setting(1.0, "priority points that a waiting job gains", between=(0, 1000))
    usage_half_life_days: float = _setting(7.0, "time after which past use counts half", between=(0.01, 3650))
    usage_window_minutes: float = _setting(5.0, "span of recent use, for the policy cost_aware", between=(0.1, 1440))
    online_percent: int = _setting(0, "part of the GPUs for online jobs; 0: no split", between=(0, 100))
    enable_preemption: bool = _setting(True, "let jobs be preempted for other jobs")
    min_runtime_seconds: float = _setting(
        600.0, "minimum run time before a job can be preempted", between=(0, 2_592_000)
    )
    preemption_delay_seconds: float = _setting(
        60.0, "minimum wait before a job can preempt others", between=(0, 86_400)
    )
    enable_thermal_aware: bool = _setting(True, "place jobs on hot GPUs last")
    thermal_threshold_celsius: int = _setting(85, "temperature from which a GPU is hot", between=(40, 120))
    thermal_moves: str = _setting(
        "monitor",
        "jobs on GPUs that stay hot: off, monitor (report which would be moved) or move",
        choices=("off", "monitor", "move"),
    )
    thermal_move_minutes: float = _setting(
        10.0, "a GPU that is hot for this time counts as staying hot", between=(1, 1440)
    )
    policy: str = _setting(
        "fair",
        "order of the queue: fair, priority, cost_aware or shortest",
        choices=("fair", "priority", "cost_aware", "shortest"),
    )
    node_lost_seconds: float = _setting(15.0, "silence after which a node is lost", between=(1, 86_400))
    lost_node_capacity_seconds: float = _setting(
        86_400.0, "a node that is lost for this time no longer counts as capacity", between=(60, 31_536_000)
    )
    lost_gpu_seconds: float = _setting(10.0, "a job whose GPU is lost for this time is stopped", between=(0, 86_400))
    start_seconds: float = _setting(
        300.0, "a job that its node has not started in this time is placed again", between=(10, 86_400)
    )
    heartbeat_seconds: float = _setting(2.0, "longest time between two messages of an agent", between=(0.1, 60))
    dirty_minutes: float = _setting(
        10.0, "a device that is dirty for this time is quarantined; 0: never", between=(0, 43_200)
    )
    retry_backoff_seconds: float = _setting(10.0, "wait before the first retry; doubles each time", between=(0, 3600))
    reservation_claim_minutes: float = _setting(
        15.0,
        "a hard reservation in which no job has started for this time is released, and counts as a no-show",
        between=(0.1, 43_200),
    )
    reservation_max_no_shows: int = _setting(
        3, "so many no-shows in 30 days, and a user may book soft reservations only; 0: no limit", between=(0, 10_000)
    )
    reservation_notice_minutes: float = _setting(
        10.0, "so long before the end of a reservation its running jobs are warned", between=(0, 1440)
    )
    reservation_weeks_ahead: int = _setting(
        4, "recurring reservations are booked for this many weeks ahead", between=(1, 52)
    )
    held_idle_policy: str = _setting(
        "monitor",
        "jobs that hold idle GPUs: off, monitor (report what would be done) or enforce (warn twice, then end)",
        choices=("off", "monitor", "enforce"),
    )
    member_extend_minutes: float = _setting(
        60.0, "time by which members can extend their running jobs", between=(0, 525_600)
    )
    held_idle_percent: int = _setting(5, "a GPU is idle while each reading is under this utilisation", between=(1, 100))
    held_idle_minutes: float = _setting(60.0, "a job that is idle for this time is warned", between=(1, 43_200))
    held_idle_interactive_minutes: float = _setting(
        240.0, "the same for jobs labelled interactive=true", between=(1, 43_200)
    )
    held_idle_grace_minutes: float = _setting(
        20.0, "time from the first warning to the end, if it stays idle", between=(1, 43_200)
    )
    sample_seconds: float = _setting(15.0, "one reading per device is stored in this time", between=(1, 300))
    sample_retention_days: float = _setting(1.0, "time after which samples are deleted; 0: never", between=_DAYS)
    rollup_retention_days: float = _setting(
        395.0, "time after which 5-minute roll-ups and old incidents are deleted; 0: never", between=_DAYS
    )
    predictions: bool = _setting(
        True, "learn run times from history, show predictions, and order by those that beat the median of the user"
    )
    prewarming: bool = _setting(True, "keep or start a replica of an endpoint when requests are likely, by its history")
    cycle_retention_days: float = _setting(7.0, "time after which rows of cycles are deleted; 0: never", between=_DAYS)
    cycle_recordings_mb: int = _setting(
        256,
        "disk space for recordings of the latest cycles, for `gpusched cycles replay`; 0: none",
        between=(0, 1 << 20),
    )
    files_dir: str = _setting(
        "", "directory of logs, and of large inputs and results of tasks, shared by all heads; empty: DATA_DIR"
    )
    log_max_mb: int = _setting(1024, "longer logs lose their middle", between=(1, 1 << 20))
    log_storage: str = _setting(
        "", "a Django storage class for logs, and large inputs and results of tasks; empty: files in FILES_DIR"
    )
    log_storage_options: str = _setting("", "arguments of the class, as a JSON object", is_secret=True)
    task_max_mb: int = _setting(64, "the largest input or result of a task", between=(1, 512))
    log_retention_days: float = _setting(0.0, "time after which logs are deleted; 0: never", between=_DAYS)
    job_retention_days: str = _setting(
        "",
        "how long finished jobs are stored with all their data: 90, or by state completed=30,failed=365;"
        " empty: for ever",
    )
    job_detail_retention_days: str = _setting(
        "",
        "the same for the events, past reasons and earlier attempts of finished jobs; empty: as long as the jobs",
    )
    task_retention_hours: float = _setting(
        24.0, "time after which ended tasks of endpoints are deleted with their results; 0: never", between=(0, 876_000)
    )
    notify_allowed_networks: str = _setting(
        "",
        "private addresses or networks, by comma, that notifications and webhooks may connect to;"
        " empty: public addresses only",
    )
    notify_give_up_hours: float = _setting(
        24.0, "a delivery that fails for this time is given up", between=(0.01, 8760)
    )
    notify_about_to_end_minutes: float = _setting(
        15.0, "time before its limit at which a running job is reported as about to end", between=(1, 1440)
    )
    notify_retention_days: float = _setting(
        30.0, "time after which ended deliveries are deleted, with what they reported; 0: never", between=_DAYS
    )
    currency: str = _setting(
        "credits",
        "unit of rates: a word, nothing is converted; past bills use it, too, so set it before the first rate",
    )
    oidc_issuer: str = _setting("", "address of the OpenID Connect provider for logins; empty: none")
    oidc_client_id: str = _setting("", "name of this server at the provider")
    oidc_client_secret: str = _setting("", "secret of this server at the provider", is_secret=True)
    oidc_name: str = _setting("single sign-on", "text of the button on the login page")
    oidc_username_claim: str = _setting("preferred_username", "claim with the user name")
    oidc_groups_claim: str = _setting("groups", "claim with the user's groups")
    oidc_groups: str = _setting("", "ml-team=nlp:member, ops=admin: roles of groups; empty: roles are set only here")
    oidc_allowed_domains: str = _setting(
        "", "domains of verified e-mail addresses, by comma; empty: any domain, or no address"
    )
    oidc_create_users: bool = _setting(True, "create an account at a user's first login")
    password_login_only_for: str = _setting("", "users who can log in with a password, by comma; empty: all")
    log_format: str = _setting(
        "line", "line (text), or json: an object per line, also one per request", choices=("line", "json")
    )
    log_level: str = _setting("INFO", "DEBUG, INFO, WARNING or ERROR", choices=("DEBUG", "INFO", "WARNING", "ERROR"))


def read(environ: dict[str, str] | None = None) -> Env:
    """Read all settings. Raises SettingError with the name of the first invalid one."""
    source = dict(os.environ) if environ is None else environ
    file = _file(Path(source[CONFIG])) if source.get(CONFIG) else None
    values: dict[str, Any] = {}
    for f in fields(Env):
        name = PREFIX + f.name.upper()
        text = _text(source, name)
        if f.name == "database_url" and text is None:
            text = source.get("DATABASE_URL") or None
        if text is not None:
            values[f.name] = _checked(f, name, _parse(f, name, text))
        elif file is not None and f.name in file.texts:
            values[f.name] = _checked(f, file.location(f.name), _parse(f, file.location(f.name), file.texts[f.name]))
        elif file is not None and f.name in file.values:
            values[f.name] = _checked(f, file.location(f.name), _TYPES[_type_of(f)](file.values[f.name]))
    try:
        return _consistent(Env(**values))
    except SettingError as error:
        set_there = sorted({*file.values, *file.texts}) if file else []
        raise SettingError(f"{error} ({file.path} sets {', '.join(set_there)})" if file else str(error)) from error


def _file(path: Path) -> SettingsFile:
    secrets = {f.name for f in fields(Env) if f.metadata["is_secret"]}
    return config_file.load(path, {f.name: _type_of(f) for f in fields(Env)}, secrets)


def _type_of(f: Field[Any]) -> str:
    return f.type if isinstance(f.type, str) else f.type.__name__


def _checked(f: Field[Any], location: str, value: Any) -> Any:
    choices, between = f.metadata["choices"], f.metadata["between"]
    if choices and value not in choices:
        raise SettingError(f"{location}={value!r} is not valid; use {' or '.join(choices)}")
    if between and not between[0] <= value <= between[1]:  # so nan is refused, too
        raise SettingError(f"{location}={value!r} is not from {between[0]} to {between[1]}")
    return value


def _consistent(env: Env) -> Env:
    """Refuse combinations that would have no effect, or a misleading one."""
    proxies = _networks("TRUSTED_PROXIES", env.trusted_proxies)
    if env.node_lost_seconds <= env.heartbeat_seconds:
        raise SettingError(
            f"{PREFIX}NODE_LOST_SECONDS={env.node_lost_seconds:g} is not above {PREFIX}HEARTBEAT_SECONDS="
            f"{env.heartbeat_seconds:g}: nodes would be lost between two messages"
        )
    if env.behind_tls and not proxies:
        raise SettingError(f"{PREFIX}BEHIND_TLS needs {PREFIX}TRUSTED_PROXIES: it tells which requests came over TLS")
    _networks("NOTIFY_ALLOWED_NETWORKS", env.notify_allowed_networks)
    for url in addresses.split(env.heads):
        if fault := addresses.fault(url):
            raise SettingError(f"{PREFIX}HEADS: {fault}")
    for name in ("job_retention_days", "job_detail_retention_days"):
        try:
            retention_days(getattr(env, name))
        except ValueError as error:
            raise SettingError(f"{PREFIX}{name.upper()}: {error}") from error
    _require_object(env.log_storage_options)
    _require_login(env)
    return env


def retention_days(text: str) -> dict[str, float]:
    """Return final states of jobs with their days, of `90` or `completed=30,failed=365`. Raise ValueError."""
    if not text.strip():
        return {}
    if "=" not in text:
        return dict.fromkeys(sorted(FINAL), _days(text))
    days_by_state: dict[str, float] = {}
    for part in text.split(","):
        state, _, days = (word.strip() for word in part.partition("="))
        if state not in FINAL or state in days_by_state:
            raise ValueError(f"{state!r} must be one of {', '.join(sorted(FINAL))}, and each of them once")
        days_by_state[state] = _days(days)
    return days_by_state


def _days(text: str) -> float:
    """Return the days; at least one, as long as a repeated Idempotency-Key finds its job."""
    try:
        days = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of days") from None
    if not 1 <= days <= _DAYS[1]:
        raise ValueError(f"{text} is not from 1 to {_DAYS[1]} days")
    return days


def _networks(name: str, text: str) -> list[IPv4Network | IPv6Network]:
    try:
        return [ip_network(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise SettingError(f"{PREFIX}{name}: {error}") from error


def _require_object(options: str) -> None:
    try:
        is_object = not options or isinstance(json.loads(options), dict)
    except ValueError:
        is_object = False
    if not is_object:  # do not repeat the text: it may contain a key of the storage
        raise SettingError(f'{PREFIX}LOG_STORAGE_OPTIONS is not a JSON object, such as {{"bucket_name": "logs"}}')


def _require_login(env: Env) -> None:
    """Require a safe provider, and a way to log in for every user."""
    if not env.oidc_issuer:
        if env.password_login_only_for:
            raise SettingError(
                f"{PREFIX}PASSWORD_LOGIN_ONLY_FOR needs {PREFIX}OIDC_ISSUER: other users could not log in"
            )
        return
    if not oidc.is_safe(env.oidc_issuer):
        raise SettingError(f"{PREFIX}OIDC_ISSUER={env.oidc_issuer!r} is not like https://login.example")
    for name in ("client_id", "client_secret"):
        if not getattr(env, f"oidc_{name}"):
            raise SettingError(f"{PREFIX}OIDC_ISSUER needs {PREFIX}OIDC_{name.upper()}")
    try:
        oidc.parse_groups(env.oidc_groups)
    except ValueError as error:
        raise SettingError(f"{PREFIX}OIDC_GROUPS: {error}") from error


def _text(source: dict[str, str], name: str) -> str | None:
    if path := source.get(name + "_FILE"):
        return config_file.read_text(f"{name}_FILE", Path(path))
    return source.get(name) or None


def _parse(f: Field[Any], location: str, text: str) -> Any:
    try:
        return _READERS[_type_of(f)](text)
    except ValueError as error:
        raise SettingError(f"{location}={text!r} is not valid: {error}") from error


def _bool(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("use true or false")


_TYPES: dict[str, Callable[[Any], Any]] = {"str": str, "int": int, "float": float, "bool": bool, "Path": Path}
_READERS: dict[str, Callable[[str], Any]] = {**_TYPES, "bool": _bool}
