"""The node owner's settings for the agent: an optional TOML file, overridden by environment variables."""

import os
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

PATH_VARIABLE = "GPUSCHED_AGENT_CONFIG"
DEFAULT_PATH = Path("/etc/gpusched/agent.toml")
RUNTIMES = ("podman", "docker", "apptainer")  # in the order in which they are preferred
LOG_FORMATS = ("line", "json")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


class ConfigError(Exception):
    """The file or a variable is wrong. The text is a sentence for the operator who starts the agent."""


@dataclass(frozen=True)
class Runtime:
    """The command of a container runtime on this node, and extra arguments of each `run`."""

    command: tuple[str, ...]
    arguments: tuple[str, ...] = ()


def _every() -> Mapping[str, Runtime]:
    return {name: Runtime((name,)) for name in RUNTIMES}


@dataclass(frozen=True)
class Config:
    """`log_max_mb`: longer logs of jobs lose their middle. `log_format`: format of the agent's own log, as the
    server's. `default_user`: user of jobs whose tenant names none. `umask`: of jobs. `cgroup`: `auto`, `off`, or a
    delegated directory (cgroup.py). `cpu_ceiling`: no job gets more CPU than it requested. `private_tmp`: each rank of
    another user has its own /tmp, if the agent runs as root. `mounts`: directories that jobs in containers may mount;
    `:ro` marks the read-only ones. `runtimes`: the runtimes to use; by default those found on PATH."""

    data_dir: str = ""
    log_max_mb: int = 1024
    log_format: str = "line"
    default_user: str = ""
    allow_root: bool = False
    umask: int = 0o077
    cgroup: str = "auto"
    cpu_ceiling: bool = False
    private_tmp: bool = True
    mounts: tuple[str, ...] = ()
    runtimes: Mapping[str, Runtime] = field(default_factory=_every)


@cache
def current() -> Config:
    """Return the config of this process, read once."""
    return load()


def load(environment: Mapping[str, str] = os.environ) -> Config:
    """Read the file, if there is one, then apply the variables GPUSCHED_AGENT_…. Raises ConfigError, which names the
    key."""
    named = environment.get(PATH_VARIABLE, "")
    path = Path(named) if named else DEFAULT_PATH
    config = _read(path) if named or path.exists() else Config()
    for key, read in _VARIABLES.items():
        variable = f"GPUSCHED_AGENT_{key.upper()}"
        if variable in environment:
            config = replace(config, **{key: read(environment[variable], variable, config)})
    _check_mounts(config.mounts)
    return config


def _read(path: Path) -> Config:
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    keys = {entry.name for entry in fields(Config)}
    _only(table, keys, str(path))
    readers: dict[str, Callable[[Any, str], Any]] = dict.fromkeys(keys, _text) | {
        "allow_root": _boolean,
        "cpu_ceiling": _boolean,
        "private_tmp": _boolean,
        "umask": _octal,
        "log_max_mb": _number,
        "log_format": _format,
        "mounts": _strings,
        "runtimes": _runtimes,
    }
    return Config(**{key: readers[key](value, f"{path}: {key}") for key, value in table.items()})


def _only(table: Mapping[str, Any], keys: set[str], location: str) -> None:
    if unknown := [key for key in table if key not in keys]:
        raise ConfigError(f"{location}: unknown key '{unknown[0]}'; valid keys: {', '.join(sorted(keys))}")


def _runtimes(tables: Any, location: str) -> Mapping[str, Runtime]:
    if not isinstance(tables, dict):
        raise ConfigError(f"{location} must be a table, such as [runtimes.podman]")
    _only(tables, set(RUNTIMES), location)
    result = {}
    for name, table in tables.items():
        entry = f"{location}.{name}"
        if not isinstance(table, dict):
            raise ConfigError(f"{entry} must be a table, such as [runtimes.podman]")
        _only(table, {"command", "arguments"}, entry)
        command = _strings(table.get("command", [name]), f"{entry}.command")
        if not command:
            raise ConfigError(f"{entry}.command must name a program")
        result[name] = Runtime(command, _strings(table.get("arguments", []), f"{entry}.arguments"))
    return result


def _text(value: Any, location: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{location} must be text")
    return value


def _number(value: Any, location: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{location} must be a number, at least 1")
    return value


def _format(value: Any, location: str) -> str:
    if value not in LOG_FORMATS:
        raise ConfigError(f"{location} must be {' or '.join(LOG_FORMATS)}")
    return str(value)


def _boolean(value: Any, location: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{location} must be true or false")
    return value


def _octal(value: Any, location: str) -> int:
    if not isinstance(value, str) or not re.fullmatch("0?[0-7]{3}", value):
        raise ConfigError(f'{location} must be three octal digits as text, such as "077"')
    return int(value, 8)


def _strings(value: Any, location: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ConfigError(f"{location} must be a list of strings")
    return tuple(value)


def _truth(text: str, variable: str, _: Config) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ConfigError(f"{variable} must be true or false, not {text!r}")
    return text.lower() in _TRUE


def _chosen(text: str, variable: str, config: Config) -> Mapping[str, Runtime]:
    """Return the named runtimes, with the commands from the file."""
    names = shlex.split(text)
    _only(dict.fromkeys(names), set(RUNTIMES), variable)
    return {name: config.runtimes.get(name, Runtime((name,))) for name in names}


def _check_mounts(mounts: tuple[str, ...]) -> None:
    for mount in mounts:
        if not mount.removesuffix(":ro").startswith("/") or ":" in mount.removesuffix(":ro"):
            raise ConfigError(f"mounts: {mount!r} must be an absolute path, optionally followed by :ro")


_VARIABLES: dict[str, Callable[[str, str, Config], Any]] = {
    "default_user": lambda text, *_: text,
    "allow_root": _truth,
    "cpu_ceiling": _truth,
    "private_tmp": _truth,
    "umask": lambda text, variable, _: _octal(text, variable),
    "cgroup": lambda text, *_: text,
    "mounts": lambda text, *_: tuple(shlex.split(text)),
    "runtimes": _chosen,
}
