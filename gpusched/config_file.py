"""Read the server's settings from a TOML file: the names of the environment variables in lower case, without prefix."""

import errno
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

# The keys that `gpusched login` writes into the command line's file, which the same variable names.
COMMAND_LINE_KEYS = {"url", "token", "tenant"}
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a string"),
    "Path": ((str,), "a string"),
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
}
_NAMES = {str: "a string", bool: "a boolean", int: "an integer", float: "a float", list: "an array", dict: "a table"}


class SettingError(ValueError):
    """A setting is invalid; the message names it and the accepted values."""


def unusable_data_dir(error: OSError) -> SettingError:
    """Return the reason why the data directory cannot be used, with the next step."""
    reason = f"{error.filename or 'the data directory'} cannot be used ({error.strerror})"
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    step = "free space there" if is_full else "run as the user to whom it belongs"
    return SettingError(f"{reason}; {step}, or set GPUSCHED_DATA_DIR")


@dataclass(frozen=True)
class SettingsFile:
    """The content of one file. `values` have their setting's type; `texts` come from files that `KEY_file` names."""

    path: Path
    values: Mapping[str, Any]
    texts: Mapping[str, str]
    lines: Mapping[str, int]

    def location(self, name: str) -> str:
        """Return file, line and key of a setting, for an error about its value."""
        return _location(self.path, self.lines, f"{name}_file" if name in self.texts else name)


def load(path: Path, types: Mapping[str, str], secrets: set[str]) -> SettingsFile:
    """Read the file strictly. `types` maps each setting to the name of its type; a file that contains one of `secrets`
    must not be readable for others. SettingError names file, line and key."""
    try:
        text = path.read_text()
        mode = path.stat().st_mode
        content = tomllib.loads(text)
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}; GPUSCHED_CONFIG names it") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not TOML: {error}") from error
    lines = _lines(text, content)
    if content and set(content) <= COMMAND_LINE_KEYS:
        raise SettingError(
            f"{path} is the file of the command line, which `gpusched login` writes; the server needs its own file"
        )
    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for key, value in content.items():
        location = _location(path, lines, key)
        name = key if key in types else key.removesuffix("_file")
        if name not in types:
            hint = "settings must be outside of tables" if isinstance(value, dict) else _nearest(key, types)
            raise SettingError(f"{location} is not a setting; {hint}")
        if name != key and name in content:
            raise SettingError(f"{location} and {name} set the same setting; keep one of them")
        _require_type(location, value, types[name] if name == key else "str")
        if value == "":  # as an empty variable: not set
            continue
        if name == key:
            if name in secrets and mode & stat.S_IROTH:
                raise SettingError(f"{location} is a secret, and others can read the file: chmod o-rwx {path}")
            values[name] = value
        else:
            texts[name] = read_text(location, Path(value), is_secret=name in secrets)
    return SettingsFile(path, values, texts, lines)


def read_text(location: str, path: Path, *, is_secret: bool = False) -> str:
    """Return the text of a file that a setting names. SettingError begins with `location`."""
    try:
        if is_secret and path.stat().st_mode & stat.S_IROTH:
            raise SettingError(f"{location} names a secret that others can read: chmod o-rwx {path}")
        return path.read_text().strip()
    except OSError as error:
        raise SettingError(f"{location}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{location}: {path} is not text in UTF-8") from error


def _location(path: Path, lines: Mapping[str, int], key: str) -> str:
    return f"{path}, line {lines[key]}: {key}" if lines.get(key) else f"{path}: {key}"


def _lines(text: str, content: Mapping[str, Any]) -> dict[str, int]:
    """Find the line of each key: the parser does not report it."""
    numbers: dict[str, int] = {}
    for key in content:
        begin = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}[\"']?\s*[].=]")
        for number, line in enumerate(text.splitlines(), 1):
            if begin.match(line):
                numbers[key] = number
                break
    return numbers


def _nearest(key: str, types: Mapping[str, str]) -> str:
    if key.lower().startswith("otel_"):
        return "OpenTelemetry reads its variables from the environment only"
    plain = key.lower().removeprefix("gpusched_")
    if plain.removesuffix("_file") in types:
        return f"write {plain}"
    return f"the nearest name is {get_close_matches(plain, types, 1, 0.0)[0]}"


def _require_type(location: str, value: object, type_name: str) -> None:
    """Refuse a value of another type, without repeating it: it may be a secret."""
    accepted, name = _TYPES[type_name]
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
        raise SettingError(f"{location} must be {name}, not {_NAMES.get(type(value), type(value).__name__)}")
