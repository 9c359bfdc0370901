"""Every setting: its environment name, type, default and meaning. Nothing else reads the environment for settings.

A file may set them, too (gpusched/config_file.py); the environment wins over it."""

import json
import os
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any, TypeVar

from gpusched import config_file, oidc
from gpusched.config_file import SettingError as SettingError
from gpusched.config_file import SettingsFile
from gpusched.protocol.states import FINAL

PREFIX = "GPUSCHED_"
CONFIG = "GPUSCHED_CONFIG"
T = TypeVar("T")
_DAYS = (0, 36_500)  # that something is kept: never less than none, and no more than dates can be told


def _setting(
    default: T,
    doc: str,
    *,
    between: tuple[float, float] | None = None,
    choices: tuple[str, ...] | None = None,
    is_secret: bool = False,
) -> T:
    """A field of Env; `doc` is what docs/settings.md says of it. Each number is `between` a least and a most."""
    return field(default=default, metadata={"doc": doc, "between": between, "choices": choices, "is_secret": is_secret})


@dataclass(frozen=True)
class Env:
    """The settings of one process. Field `http_port` is read from GPUSCHED_HTTP_PORT, or from the file that
    GPUSCHED_HTTP_PORT_FILE names."""

    database_url: str = _setting("", "PostgreSQL to use; empty: the embedded server in DATA_DIR", is_secret=True)
    redis_url: str = _setting(
        "", "redis://… or rediss://…, by which processes tell each other changes; empty: by PostgreSQL", is_secret=True
    )
    web_threads: int = _setting(
        16, "requests a web process works on at once, each with a database connection", between=(1, 1000)
    )
    web_processes: int = _setting(
        1, "web processes of `manage.py up`, on one port; about a core each under load", between=(1, 64)
    )
    secret_key: str = _setting("", "Django's secret; empty: generated once in DATA_DIR", is_secret=True)
    data_dir: Path = _setting(Path(".gpusched"), "logs, secrets and the embedded database")  # noqa: RUF009 - a field
    debug: bool = _setting(False, "show tracebacks to browsers; never in production")
    allowed_hosts: str = _setting("localhost,127.0.0.1,[::1]", "names under which this server is reached, by comma")
    trusted_origins: str = _setting("", "https://… origins behind a proxy, by comma")
    trusted_proxies: str = _setting("", "addresses or networks of proxies, by comma, whose X-Forwarded-… are believed")
    behind_tls: bool = _setting(False, "people come by https:// through such a proxy: secure cookies, HSTS")
    http_host: str = _setting("127.0.0.1", "address that the web server listens on")
    http_port: int = _setting(8000, "port that the web server listens on", between=(1, 65_535))
    rate_limit_per_minute: int = _setting(
        60_000, "requests of one token, or of one person on the pages; 0: any number", between=(0, 1_000_000_000)
    )
    tick_seconds: float = _setting(1.0, "longest time between two scheduling cycles", between=(0.05, 300))
    max_queue_size: int = _setting(
        100_000,
        "queued jobs of all tenants beyond which a tenant may only have an even part of them",
        between=(1, 100_000_000),
    )
    max_deferred_jobs: int = _setting(
        100_000, "the same for jobs that cannot start yet: held, too early, or dependent", between=(1, 100_000_000)
    )
    max_queued_jobs_per_tenant: int = _setting(
        50_000, "queued jobs of a tenant beyond which its submits answer 429", between=(1, 100_000_000)
    )
    max_queued_jobs_per_user: int = _setting(25_000, "the same for one user in a tenant", between=(1, 100_000_000))
    max_deferred_jobs_per_tenant: int = _setting(
        20_000, "jobs of a tenant that cannot start yet beyond which its submits answer 429", between=(1, 100_000_000)
    )
    max_deferred_jobs_per_user: int = _setting(10_000, "the same for one user in a tenant", between=(1, 100_000_000))
    queue_warning_percent: int = _setting(
        80, "part of such a limit from which on submits are answered with a warning", between=(1, 100)
    )
    enable_gang_scheduling: bool = _setting(True, "let gangs span nodes")
    load_threshold: float = _setting(1.0, "part of a whole device's memory a job may ask for", between=(0.05, 1))
    load_threshold_shared: float = _setting(0.85, "the same for shared devices, all jobs together", between=(0.05, 1))
    aging_points_per_minute: float = _setting(1.0, "priority points a waiting job gains", between=(0, 1000))
    usage_half_life_days: float = _setting(7.0, "after this long, past use counts half", between=(0.01, 3650))
    usage_window_minutes: float = _setting(5.0, "recent use, for the policy cost_aware", between=(0.1, 1440))
    online_percent: int = _setting(0, "part of the GPUs for online jobs; 0: no split", between=(0, 100))
    enable_preemption: bool = _setting(True, "let jobs be stopped for others")
    min_runtime_seconds: float = _setting(600.0, "nobody is preempted before it ran this long", between=(0, 2_592_000))
    preemption_delay_seconds: float = _setting(
        60.0, "a job preempts nobody before it waited this long", between=(0, 86_400)
    )
    enable_thermal_aware: bool = _setting(True, "place jobs on hot GPUs last")
    thermal_threshold_celsius: int = _setting(85, "a GPU is hot from here on", between=(40, 120))
    thermal_moves: str = _setting(
        "monitor",
        "jobs on GPUs that stay hot: off, monitor (say which would be moved) or move",
        choices=("off", "monitor", "move"),
    )
    thermal_move_minutes: float = _setting(10.0, "a GPU that is hot for so long stays hot", between=(1, 1440))
    policy: str = _setting(
        "fair",
        "order of the queue: fair, priority, cost_aware or shortest",
        choices=("fair", "priority", "cost_aware", "shortest"),
    )
    node_lost_seconds: float = _setting(15.0, "silence after which a node is lost", between=(1, 86_400))
    lost_node_capacity_seconds: float = _setting(
        86_400.0, "a node that is lost for so long no longer counts as capacity", between=(60, 31_536_000)
    )
    lost_gpu_seconds: float = _setting(10.0, "a job whose GPU is lost for so long is stopped", between=(0, 86_400))
    start_seconds: float = _setting(
        300.0, "a job that its node has not started for so long is taken from it", between=(10, 86_400)
    )
    heartbeat_seconds: float = _setting(2.0, "longest time between two messages of an agent", between=(0.1, 60))
    dirty_minutes: float = _setting(
        10.0, "a device that is dirty for so long is quarantined; 0: never", between=(0, 43_200)
    )
    retry_backoff_seconds: float = _setting(10.0, "wait before the first retry; doubles each time", between=(0, 3600))
    held_idle_policy: str = _setting(
        "monitor",
        "jobs that hold idle GPUs: off, monitor (say what would be done) or enforce (warn twice, then end)",
        choices=("off", "monitor", "enforce"),
    )
    member_extend_minutes: float = _setting(
        60.0, "by how much members may extend their running jobs", between=(0, 525_600)
    )
    held_idle_percent: int = _setting(5, "a GPU is idle while each reading is under this utilisation", between=(1, 100))
    held_idle_minutes: float = _setting(60.0, "a job that is idle for so long is warned", between=(1, 43_200))
    held_idle_interactive_minutes: float = _setting(
        240.0, "the same for jobs labelled interactive=true", between=(1, 43_200)
    )
    held_idle_grace_minutes: float = _setting(
        20.0, "from the first warning to the end, if it stays idle", between=(1, 43_200)
    )
    sample_seconds: float = _setting(15.0, "one reading per device is kept in this time", between=(1, 300))
    sample_retention_days: float = _setting(1.0, "after this long, samples are deleted; 0: never", between=_DAYS)
    rollup_retention_days: float = _setting(
        395.0, "after this long, 5-minute roll-ups and old incidents are deleted; 0: never", between=_DAYS
    )
    cycle_retention_days: float = _setting(7.0, "after this long, rows of cycles are deleted; 0: never", between=_DAYS)
    cycle_recordings_mb: int = _setting(
        256,
        "disk space for recordings of the latest cycles, for `gpusched cycles replay`; 0: none",
        between=(0, 1 << 20),
    )
    log_max_mb: int = _setting(1024, "of longer logs the middle is cut", between=(1, 1 << 20))
    log_storage: str = _setting("", "a Django storage class for logs; empty: files in DATA_DIR")
    log_storage_options: str = _setting("", "what the class is made with, as a JSON object", is_secret=True)
    log_retention_days: float = _setting(0.0, "after this long, logs are deleted; 0: never", between=_DAYS)
    job_retention_days: str = _setting(
        "",
        "how long finished jobs are kept with all that belongs to them: 90, or by state completed=30,failed=365;"
        " empty: for ever",
    )
    job_detail_retention_days: str = _setting(
        "",
        "the same for the events, past reasons and earlier attempts of finished jobs; empty: as long as the jobs",
    )
    currency: str = _setting(
        "credits",
        "what rates are told in: a word, nothing is converted; past bills are told in it, too, so set it"
        " before the first rate",
    )
    oidc_issuer: str = _setting("", "the address of the OpenID Connect provider that people log in by; empty: none")
    oidc_client_id: str = _setting("", "the name of this server at the provider")
    oidc_client_secret: str = _setting("", "its secret there", is_secret=True)
    oidc_name: str = _setting("single sign-on", "what the button of the login page says")
    oidc_username_claim: str = _setting("preferred_username", "the claim that names a person")
    oidc_groups_claim: str = _setting("groups", "the claim that lists their groups")
    oidc_groups: str = _setting("", "ml-team=nlp:member, ops=admin: who is what; empty: roles are given here alone")
    oidc_allowed_domains: str = _setting(
        "", "domains of verified e-mail addresses, by comma; empty: any, or none at all"
    )
    oidc_create_users: bool = _setting(True, "make an account at somebody's first login")
    password_login_only_for: str = _setting("", "names that may log in with a password, by comma; empty: everybody")
    log_format: str = _setting(
        "line", "line (text), or json: an object per line, also one per request", choices=("line", "json")
    )
    log_level: str = _setting("INFO", "DEBUG, INFO, WARNING or ERROR", choices=("DEBUG", "INFO", "WARNING", "ERROR"))


def read(environ: dict[str, str] | None = None) -> Env:
    """Reads all settings. Raises SettingError with the name of the first that cannot be understood."""
    source = dict(os.environ) if environ is None else environ
    file = _file(Path(source[CONFIG])) if source.get(CONFIG) else None
    given: dict[str, Any] = {}
    for f in fields(Env):
        name = PREFIX + f.name.upper()
        text = _text(source, name)
        if f.name == "database_url" and text is None:
            text = source.get("DATABASE_URL") or None
        if text is not None:
            given[f.name] = _checked(f, name, _parse(f, name, text))
        elif file is not None and f.name in file.texts:
            given[f.name] = _checked(f, file.where(f.name), _parse(f, file.where(f.name), file.texts[f.name]))
        elif file is not None and f.name in file.values:
            given[f.name] = _checked(f, file.where(f.name), _TYPES[_type_of(f)](file.values[f.name]))
    try:
        return _consistent(Env(**given))
    except SettingError as error:
        set_there = sorted({*file.values, *file.texts}) if file else []
        raise SettingError(f"{error} ({file.path} sets {', '.join(set_there)})" if file else str(error)) from error


def _file(path: Path) -> SettingsFile:
    secrets = {f.name for f in fields(Env) if f.metadata["is_secret"]}
    return config_file.load(path, {f.name: _type_of(f) for f in fields(Env)}, secrets)


def _type_of(f: Field[Any]) -> str:
    return f.type if isinstance(f.type, str) else f.type.__name__


def _checked(f: Field[Any], where: str, value: Any) -> Any:
    choices, between = f.metadata["choices"], f.metadata["between"]
    if choices and value not in choices:
        raise SettingError(f"{where}={value!r} is not known; use {' or '.join(choices)}")
    if between and not between[0] <= value <= between[1]:  # so nan is refused, too
        raise SettingError(f"{where}={value!r} is not from {between[0]} to {between[1]}")
    return value


def _consistent(env: Env) -> Env:
    """Refuses what would do nothing, or not what it says."""
    try:
        found = [ip_network(part.strip()) for part in env.trusted_proxies.split(",") if part.strip()]
    except ValueError as error:
        raise SettingError(f"{PREFIX}TRUSTED_PROXIES: {error}") from error
    if env.node_lost_seconds <= env.heartbeat_seconds:
        raise SettingError(
            f"{PREFIX}NODE_LOST_SECONDS={env.node_lost_seconds:g} is not above {PREFIX}HEARTBEAT_SECONDS="
            f"{env.heartbeat_seconds:g}: nodes would be lost between two messages"
        )
    if env.behind_tls and not found:
        raise SettingError(f"{PREFIX}BEHIND_TLS needs {PREFIX}TRUSTED_PROXIES: who says that a request came by TLS?")
    if env.redis_url and not env.redis_url.startswith(("redis://", "rediss://", "unix://")):
        raise SettingError(f"{PREFIX}REDIS_URL is not like redis://host:6379 (rediss:// for TLS, unix:// for a socket)")
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
    found: dict[str, float] = {}
    for part in text.split(","):
        state, _, days = (word.strip() for word in part.partition("="))
        if state not in FINAL or state in found:
            raise ValueError(f"{state!r} must be one of {', '.join(sorted(FINAL))}, and each of them once")
        found[state] = _days(days)
    return found


def _days(text: str) -> float:
    """At least a day, as long as a repeated Idempotency-Key finds its job."""
    try:
        days = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of days") from None
    if not 1 <= days <= _DAYS[1]:
        raise ValueError(f"{text} is not from 1 to {_DAYS[1]} days")
    return days


def _require_object(options: str) -> None:
    try:
        is_object = not options or isinstance(json.loads(options), dict)
    except ValueError:
        is_object = False
    if not is_object:  # its text is not said again: it may hold a key of the storage
        raise SettingError(f'{PREFIX}LOG_STORAGE_OPTIONS is no JSON object, such as {{"bucket_name": "logs"}}')


def _require_login(env: Env) -> None:
    """That somebody can log in, and by whom it is believed."""
    if not env.oidc_issuer:
        if env.password_login_only_for:
            raise SettingError(f"{PREFIX}PASSWORD_LOGIN_ONLY_FOR needs {PREFIX}OIDC_ISSUER: how do the others log in?")
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


def _parse(f: Field[Any], where: str, text: str) -> Any:
    try:
        return _READERS[_type_of(f)](text)
    except ValueError as error:
        raise SettingError(f"{where}={text!r} is not understood: {error}") from error


def _bool(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("use true or false")


_TYPES: dict[str, Callable[[Any], Any]] = {"str": str, "int": int, "float": float, "bool": bool, "Path": Path}
_READERS: dict[str, Callable[[str], Any]] = {**_TYPES, "bool": _bool}
