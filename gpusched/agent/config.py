"""What the owner of a node decides for it: an optional TOML file, and environment variables over that."""

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
    """What is wrong with the file or a variable, as a sentence for whoever starts the agent."""


@dataclass(frozen=True)
class Runtime:
    """How a container runtime is called on this node: its command, and arguments that each `run` gets besides."""

    command: tuple[str, ...]
    arguments: tuple[str, ...] = ()


def _every() -> Mapping[str, Runtime]:
    return {name: Runtime((name,)) for name in RUNTIMES}


@dataclass(frozen=True)
class Config:
    """`log_max_mb`: of longer logs of jobs the middle is cut. `log_format`: of the agent's own log, as the server's.
    `default_user`: of jobs whose tenant names none. `umask`: of jobs. `cgroup`: `auto`, `off`, or a delegated directory
    (cgroup.py). `cpu_ceiling`: no job gets more CPU than it asked for. `private_tmp`: each rank of another user has a
    /tmp of its own, where root may do that. `mounts`: directories that jobs in containers may mount, `:ro` after those
    that they may only read. `runtimes`: those that may be used; the ones found on PATH unless the file has a table of
    them."""

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
    """The config of this process, read once."""
    return load()


def load(environment: Mapping[str, str] = os.environ) -> Config:
    """The file, if there is one, then the variables GPUSCHED_AGENT_… over it. Raises ConfigError by name of the key."""
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
        told = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    known = {one.name for one in fields(Config)}
    _only(told, known, str(path))
    readers: dict[str, Callable[[Any, str], Any]] = dict.fromkeys(known, _text) | {
        "allow_root": _boolean,
        "cpu_ceiling": _boolean,
        "private_tmp": _boolean,
        "umask": _octal,
        "log_max_mb": _number,
        "log_format": _format,
        "mounts": _words,
        "runtimes": _runtimes,
    }
    return Config(**{key: readers[key](value, f"{path}: {key}") for key, value in told.items()})


def _only(told: Mapping[str, Any], known: set[str], where: str) -> None:
    if unknown := [key for key in told if key not in known]:
        raise ConfigError(f"{where}: '{unknown[0]}' is not known; known are {', '.join(sorted(known))}")


def _runtimes(told: Any, where: str) -> Mapping[str, Runtime]:
    if not isinstance(told, dict):
        raise ConfigError(f"{where} must be a table, such as [runtimes.podman]")
    _only(told, set(RUNTIMES), where)
    found = {}
    for name, table in told.items():
        here = f"{where}.{name}"
        if not isinstance(table, dict):
            raise ConfigError(f"{here} must be a table, such as [runtimes.podman]")
        _only(table, {"command", "arguments"}, here)
        command = _words(table.get("command", [name]), f"{here}.command")
        if not command:
            raise ConfigError(f"{here}.command must name a program")
        found[name] = Runtime(command, _words(table.get("arguments", []), f"{here}.arguments"))
    return found


def _text(told: Any, where: str) -> str:
    if not isinstance(told, str):
        raise ConfigError(f"{where} must be text")
    return told


def _number(told: Any, where: str) -> int:
    if not isinstance(told, int) or isinstance(told, bool) or told < 1:
        raise ConfigError(f"{where} must be a number, at least 1")
    return told


def _format(told: Any, where: str) -> str:
    if told not in LOG_FORMATS:
        raise ConfigError(f"{where} must be {' or '.join(LOG_FORMATS)}")
    return str(told)


def _boolean(told: Any, where: str) -> bool:
    if not isinstance(told, bool):
        raise ConfigError(f"{where} must be true or false")
    return told


def _octal(told: Any, where: str) -> int:
    if not isinstance(told, str) or not re.fullmatch("0?[0-7]{3}", told):
        raise ConfigError(f'{where} must be three octal digits as text, such as "077"')
    return int(told, 8)


def _words(told: Any, where: str) -> tuple[str, ...]:
    if not isinstance(told, list) or not all(isinstance(word, str) for word in told):
        raise ConfigError(f"{where} must be a list of texts")
    return tuple(told)


def _truth(text: str, variable: str, _: Config) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ConfigError(f"{variable} must be true or false, not {text!r}")
    return text.lower() in _TRUE


def _chosen(text: str, variable: str, config: Config) -> Mapping[str, Runtime]:
    """Those named, called as the file says."""
    names = shlex.split(text)
    _only(dict.fromkeys(names), set(RUNTIMES), variable)
    return {name: config.runtimes.get(name, Runtime((name,))) for name in names}


def _check_mounts(mounts: tuple[str, ...]) -> None:
    for mount in mounts:
        if not mount.removesuffix(":ro").startswith("/") or ":" in mount.removesuffix(":ro"):
            raise ConfigError(f"mounts: {mount!r} must be an absolute path, with :ro after it or nothing")


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
