"""The client's server, token and tenant, from arguments, then the environment, then the config file that `gpusched
login` writes."""

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpusched.client.errors import Invalid
from gpusched.protocol import addresses

DEFAULT_URL = "http://127.0.0.1:8000"
_OTHER_FILE = "correct it, or set GPUSCHED_CONFIG to another file; the server's settings file uses the same variable"
_OTHER_URL = "use --url or GPUSCHED_URL, or log in again: gpusched login https://gpusched.example:8000"


@dataclass(frozen=True, slots=True)
class Config:
    """`url`: one address, or several of one control plane, separated by commas. `tenant` is the default tenant of
    submits. `ca_file`: the authorities to trust, if not the machine's."""

    url: str
    token: str | None = field(default=None, repr=False)
    tenant: str | None = None
    ca_file: str = ""


def resolve(
    url: str | None = None,
    token: str | None = None,
    tenant: str | None = None,
    environ: Mapping[str, str] | None = None,
    ca_file: str | None = None,
) -> Config:
    """Return the configuration in force. Raises Invalid if a part of it is invalid or cannot be read."""
    env = os.environ if environ is None else environ
    file = path(env)
    stored = read_file(file)
    server = stored_url(stored)
    url = url or env.get("GPUSCHED_URL")
    if not url and server == "":
        raise Invalid(f"url in the config file {file} is not a server URL", next_step=_OTHER_URL)
    server = DEFAULT_URL if server is None else server
    url = _clean_url(url or server)
    token = token or _env_token(env)
    if token is None and set(url.split(",")) <= set(server.split(",")):
        # Send a stored token only to the servers that it is for, never to another one that --url or the environment
        # names.
        token = stored.get("token")
    tenant = tenant or env.get("GPUSCHED_TENANT") or stored.get("tenant") or None
    ca_file = ca_file or env.get("GPUSCHED_CA_FILE") or stored.get("ca_file") or ""
    return Config(url, _clean_token(token), tenant, ca_file)


def stored_url(stored: Mapping[str, str]) -> str | None:
    """Return the server URL of a config file, in the form of `resolve`; empty if it is invalid, None if there is
    none."""
    try:
        return _clean_url(stored["url"]) if "url" in stored else None
    except Invalid:
        return ""


def path(environ: Mapping[str, str] | None = None) -> Path:
    """Return the config file: $GPUSCHED_CONFIG, or the platform's usual path."""
    env = os.environ if environ is None else environ
    if named := env.get("GPUSCHED_CONFIG"):
        return Path(named)
    from platformdirs import user_config_path

    return user_config_path("gpusched") / "config.toml"


def read_file(file: Path) -> dict[str, str]:
    """Return the strings in a config file; empty if there is none."""
    return {name: value for name, value in _content(file).items() if isinstance(value, str) and value}


def require_own(file: Path) -> None:
    """Refuse a settings file of the server, which the same variable names: writing would replace it. Raises Invalid."""
    from gpusched.env import Env

    settings = {setting.name for setting in fields(Env)}
    if foreign := [key for key in _content(file) if key.removesuffix("_file") in settings]:
        raise Invalid(f"{file} is a server's settings file: it sets {foreign[0]}", next_step=_OTHER_FILE)


def _content(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Invalid(f"cannot read the config file {file}: {error}", next_step=_OTHER_FILE) from error


def write_file(file: Path, values: Mapping[str, str]) -> None:
    """Replace the config file atomically; other users can never read it."""
    text = "".join(f"{name} = {_toml_text(value)}\n" for name, value in values.items())
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # mkstemp creates with mode 0600.
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write(text)
        os.replace(temporary, file)
    except OSError as error:
        raise Invalid(f"cannot write the config file {file}: {error.strerror}") from error


def read_secret(file: str, name: str) -> str:
    """Return a secret from a file. `name`: the source of the file's name, for errors."""
    try:
        return Path(file).read_text("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{name}: cannot read {file}: {getattr(error, 'strerror', None) or error}") from error


def _env_token(env: Mapping[str, str]) -> str | None:
    if file := env.get("GPUSCHED_TOKEN_FILE"):
        return read_secret(file, "GPUSCHED_TOKEN_FILE")
    return env.get("GPUSCHED_TOKEN") or None


def _clean_url(text: str) -> str:
    urls = [_clean_address(part) for part in addresses.split(text) or (text,)]
    if len({urlsplit(url).scheme for url in urls}) > 1:
        raise Invalid(f"{text!r} mixes http and https", next_step="use https for all addresses")
    return ",".join(dict.fromkeys(urls))


def _clean_address(text: str) -> str:
    url = text.strip().rstrip("/")
    if fault := addresses.fault(url):
        raise Invalid(fault, next_step="use one like https://gpusched.example:8000")
    return url.removesuffix("/api/v1")


def _clean_token(text: str | None) -> str | None:
    token = (text or "").strip()
    if not token:
        return None
    if not token.isascii() or any(not ch.isprintable() or ch == " " for ch in token):
        # Do not show the token itself: errors end up in logs.
        raise Invalid("the token contains invalid characters", next_step="copy it again, or run gpusched login")
    return token


def _toml_text(value: str) -> str:
    # A JSON string is a TOML basic string, except for DEL, which no URL, token or tenant name contains.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
