"""Every setting: its environment name, type, default and meaning. Nothing else reads the environment for settings."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from gpusched import oidc

PREFIX = "GPUSCHED_"


class SettingError(ValueError):
    """A setting that cannot be understood; the message names it and says what is accepted."""


@dataclass(frozen=True)
class Env:
    """The settings of one process. Field `http_port` is read from GPUSCHED_HTTP_PORT, or from the file that
    GPUSCHED_HTTP_PORT_FILE names."""

    database_url: str = field(default="", metadata={"doc": "PostgreSQL to use; empty: the embedded server in DATA_DIR"})
    redis_url: str = field(
        default="",
        metadata={"doc": "redis://… or rediss://…, by which processes tell each other changes; empty: by PostgreSQL"},
    )
    web_threads: int = field(
        default=16, metadata={"doc": "requests a web process works on at once, each with a database connection"}
    )
    web_processes: int = field(
        default=1,
        metadata={
            "doc": "web processes of `manage.py up`, on one port; about a core each under load",
            "between": (1, 64),
        },
    )
    secret_key: str = field(default="", metadata={"doc": "Django's secret; empty: generated once in DATA_DIR"})
    data_dir: Path = field(default=Path(".gpusched"), metadata={"doc": "logs, secrets and the embedded database"})
    debug: bool = field(default=False, metadata={"doc": "show tracebacks to browsers; never in production"})
    allowed_hosts: str = field(
        default="localhost,127.0.0.1,[::1]", metadata={"doc": "names under which this server is reached, by comma"}
    )
    trusted_origins: str = field(default="", metadata={"doc": "https://… origins behind a proxy, by comma"})
    trusted_proxies: str = field(
        default="", metadata={"doc": "addresses or networks of proxies, by comma, whose X-Forwarded-… are believed"}
    )
    behind_tls: bool = field(
        default=False, metadata={"doc": "people come by https:// through such a proxy: secure cookies, HSTS"}
    )
    http_host: str = field(default="127.0.0.1", metadata={"doc": "address that the web server listens on"})
    http_port: int = field(default=8000, metadata={"doc": "port that the web server listens on"})
    rate_limit_per_minute: int = field(
        default=60_000, metadata={"doc": "requests of one token, or of one person on the pages; 0: any number"}
    )
    tick_seconds: float = field(default=1.0, metadata={"doc": "longest time between two scheduling cycles"})
    max_queue_size: int = field(default=100_000, metadata={"doc": "waiting jobs beyond which submits answer 429"})
    enable_gang_scheduling: bool = field(default=True, metadata={"doc": "let gangs span nodes"})
    load_threshold: float = field(
        default=1.0, metadata={"doc": "part of a whole device's memory a job may ask for", "between": (0.05, 1)}
    )
    load_threshold_shared: float = field(
        default=0.85, metadata={"doc": "the same for shared devices, all jobs together", "between": (0.05, 1)}
    )
    aging_points_per_minute: float = field(
        default=1.0, metadata={"doc": "priority points a waiting job gains", "between": (0, 1000)}
    )
    usage_half_life_days: float = field(
        default=7.0, metadata={"doc": "after this long, past use counts half", "between": (0.01, 3650)}
    )
    usage_window_minutes: float = field(
        default=5.0, metadata={"doc": "recent use, for the policy cost_aware", "between": (0.1, 1440)}
    )
    online_percent: int = field(
        default=0, metadata={"doc": "part of the GPUs for online jobs; 0: no split", "between": (0, 100)}
    )
    enable_preemption: bool = field(default=True, metadata={"doc": "let jobs be stopped for others"})
    min_runtime_seconds: float = field(
        default=600.0, metadata={"doc": "nobody is preempted before it ran this long", "between": (0, 2_592_000)}
    )
    preemption_delay_seconds: float = field(
        default=60.0, metadata={"doc": "a job preempts nobody before it waited this long", "between": (0, 86_400)}
    )
    enable_thermal_aware: bool = field(default=True, metadata={"doc": "place jobs on hot GPUs last"})
    thermal_threshold_celsius: int = field(
        default=85, metadata={"doc": "a GPU is hot from here on", "between": (40, 120)}
    )
    thermal_moves: str = field(
        default="monitor",
        metadata={
            "doc": "jobs on GPUs that stay hot: off, monitor (say which would be moved) or move",
            "choices": ("off", "monitor", "move"),
        },
    )
    thermal_move_minutes: float = field(
        default=10.0, metadata={"doc": "a GPU that is hot for so long stays hot", "between": (1, 1440)}
    )
    policy: str = field(
        default="fair",
        metadata={
            "doc": "order of the queue: fair, priority, cost_aware or shortest",
            "choices": ("fair", "priority", "cost_aware", "shortest"),
        },
    )
    node_lost_seconds: float = field(default=15.0, metadata={"doc": "silence after which a node is lost"})
    lost_gpu_seconds: float = field(default=10.0, metadata={"doc": "a job whose GPU is lost for so long is stopped"})
    start_seconds: float = field(
        default=300.0,
        metadata={"doc": "a job that its node has not started for so long is taken from it", "between": (10, 86_400)},
    )
    heartbeat_seconds: float = field(default=2.0, metadata={"doc": "longest time between two messages of an agent"})
    dirty_minutes: float = field(
        default=10.0, metadata={"doc": "a device that is dirty for so long is quarantined; 0: never"}
    )
    retry_backoff_seconds: float = field(
        default=10.0, metadata={"doc": "wait before the first retry; doubles each time"}
    )
    held_idle_policy: str = field(
        default="monitor",
        metadata={
            "doc": "jobs that hold idle GPUs: off, monitor (say what would be done) or enforce (warn twice, then end)",
            "choices": ("off", "monitor", "enforce"),
        },
    )
    member_extend_minutes: float = field(
        default=60.0, metadata={"doc": "by how much members may extend their running jobs", "between": (0, 525_600)}
    )
    held_idle_percent: int = field(
        default=5, metadata={"doc": "a GPU is idle while each reading is under this utilisation", "between": (1, 100)}
    )
    held_idle_minutes: float = field(
        default=60.0, metadata={"doc": "a job that is idle for so long is warned", "between": (1, 43_200)}
    )
    held_idle_interactive_minutes: float = field(
        default=240.0, metadata={"doc": "the same for jobs labelled interactive=true", "between": (1, 43_200)}
    )
    held_idle_grace_minutes: float = field(
        default=20.0, metadata={"doc": "from the first warning to the end, if it stays idle", "between": (1, 43_200)}
    )
    sample_seconds: float = field(
        default=15.0, metadata={"doc": "one reading per device is kept in this time", "between": (1, 300)}
    )
    sample_retention_days: float = field(
        default=1.0, metadata={"doc": "after this long, samples are deleted; 0: never"}
    )
    rollup_retention_days: float = field(
        default=395.0, metadata={"doc": "after this long, 5-minute roll-ups and old incidents are deleted; 0: never"}
    )
    cycle_retention_days: float = field(
        default=7.0, metadata={"doc": "after this long, rows of cycles are deleted; 0: never"}
    )
    log_max_mb: int = field(default=1024, metadata={"doc": "of longer logs the middle is cut", "between": (1, 1 << 20)})
    log_storage: str = field(default="", metadata={"doc": "a Django storage class for logs; empty: files in DATA_DIR"})
    log_storage_options: str = field(default="", metadata={"doc": "what the class is made with, as a JSON object"})
    log_retention_days: float = field(default=0.0, metadata={"doc": "after this long, logs are deleted; 0: never"})
    currency: str = field(
        default="credits",
        metadata={
            "doc": "what rates are told in: a word, nothing is converted; past bills are told in it, too, so set it"
            " before the first rate"
        },
    )
    oidc_issuer: str = field(
        default="", metadata={"doc": "the address of the OpenID Connect provider that people log in by; empty: none"}
    )
    oidc_client_id: str = field(default="", metadata={"doc": "the name of this server at the provider"})
    oidc_client_secret: str = field(default="", metadata={"doc": "its secret there"})
    oidc_name: str = field(default="single sign-on", metadata={"doc": "what the button of the login page says"})
    oidc_username_claim: str = field(default="preferred_username", metadata={"doc": "the claim that names a person"})
    oidc_groups_claim: str = field(default="groups", metadata={"doc": "the claim that lists their groups"})
    oidc_groups: str = field(
        default="", metadata={"doc": "ml-team=nlp:member, ops=admin: who is what; empty: roles are given here alone"}
    )
    oidc_allowed_domains: str = field(
        default="", metadata={"doc": "domains of verified e-mail addresses, by comma; empty: any, or none at all"}
    )
    oidc_create_users: bool = field(default=True, metadata={"doc": "make an account at somebody's first login"})
    password_login_only_for: str = field(
        default="", metadata={"doc": "names that may log in with a password, by comma; empty: everybody"}
    )
    log_format: str = field(
        default="line",
        metadata={"doc": "line (text), or json: an object per line, also one per request", "choices": ("line", "json")},
    )
    log_level: str = field(default="INFO", metadata={"doc": "DEBUG, INFO, WARNING or ERROR"})


def read(environ: dict[str, str] | None = None) -> Env:
    """Reads all settings. Raises SettingError with the name of the first that cannot be understood."""
    source = dict(os.environ) if environ is None else environ
    given: dict[str, Any] = {}
    for f in fields(Env):
        name = PREFIX + f.name.upper()
        text = _text(source, name)
        if text is not None:
            given[f.name] = _parse(name, text, _READERS[f.type if isinstance(f.type, str) else f.type.__name__])
            choices = f.metadata.get("choices")
            if choices and given[f.name] not in choices:
                raise SettingError(f"{name}={text!r} is not known; use {' or '.join(choices)}")
            least, most = f.metadata.get("between", (None, None))
            if least is not None and not least <= given[f.name] <= most:
                raise SettingError(f"{name}={text!r} is not from {least:g} to {most:g}")
    if "database_url" not in given and source.get("DATABASE_URL"):
        given["database_url"] = source["DATABASE_URL"]
    return _consistent(Env(**given))


def _consistent(env: Env) -> Env:
    """Refuses what would do nothing, or not what it says."""
    try:
        found = [ip_network(part.strip()) for part in env.trusted_proxies.split(",") if part.strip()]
    except ValueError as error:
        raise SettingError(f"{PREFIX}TRUSTED_PROXIES: {error}") from error
    if env.rate_limit_per_minute < 0:
        raise SettingError(f"{PREFIX}RATE_LIMIT_PER_MINUTE={env.rate_limit_per_minute} is negative; 0: any number")
    if env.behind_tls and not found:
        raise SettingError(f"{PREFIX}BEHIND_TLS needs {PREFIX}TRUSTED_PROXIES: who says that a request came by TLS?")
    if env.redis_url and not env.redis_url.startswith(("redis://", "rediss://", "unix://")):
        raise SettingError(f"{PREFIX}REDIS_URL is not like redis://host:6379 (rediss:// for TLS, unix:// for a socket)")
    _require_login(env)
    return env


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
        oidc.rules(env.oidc_groups)
    except ValueError as error:
        raise SettingError(f"{PREFIX}OIDC_GROUPS: {error}") from error


def _text(source: dict[str, str], name: str) -> str | None:
    if path := source.get(name + "_FILE"):
        try:
            return Path(path).read_text().strip()
        except OSError as error:
            raise SettingError(f"{name}_FILE: cannot read {path}: {error.strerror}") from error
    return source.get(name) or None


def _parse(name: str, text: str, reader: Callable[[str], Any]) -> Any:
    try:
        return reader(text)
    except ValueError as error:
        raise SettingError(f"{name}={text!r} is not understood: {error}") from error


def _bool(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("use true or false")


_READERS: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float, "bool": _bool, "Path": Path}
