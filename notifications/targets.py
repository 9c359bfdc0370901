"""Targets of routes: check them when they are set, show them without their secrets, and store them sealed."""

from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from django.conf import settings

from gpusched.lib.api.problems import invalid
from gpusched.lib.auth.sealing import seal_for
from gpusched.protocol.job_request import FieldError
from notifications import services
from notifications.addresses import is_allowed, parse_networks
from notifications.models import Channel

MAX_CHARACTERS = 2000
_PURPOSE = b"gpusched: targets and secrets of notifications, 1"
_MAX_SHOWN = 300


def check(channel: str, target: str, field: str) -> str:
    """Return how the target is shown. 400 for a target that could never be sent to; addresses of names are checked when
    they are connected to."""
    if not target or len(target) > MAX_CHARACTERS or not target.isprintable() or target != target.strip():
        raise _refused(field, f"must be an address of 1 to {MAX_CHARACTERS} characters, without line ends")
    shown, host = _webhook(target, field) if channel == Channel.WEBHOOK else _service(target, field)
    _require_allowed(host, field)
    return shown[:_MAX_SHOWN]


def seal(text: str) -> str:
    """Return the text sealed, for the database."""
    return seal_for(_PURPOSE).encrypt(text.encode()).decode()


def unseal(sealed: str) -> str:
    """Return a sealed text. cryptography.fernet.InvalidToken after a change of SECRET_KEY."""
    return seal_for(_PURPOSE).decrypt(sealed.encode()).decode()


def _webhook(target: str, field: str) -> tuple[str, str]:
    parts = _split(target, field)
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise _refused(field, "must be an address like https://hooks.example.com/gpusched")
    if parts.username or parts.password:
        raise _refused(field, "must not contain a password; receivers check the signature of each request")
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}/…", parts.hostname


def _split(target: str, field: str) -> SplitResult:
    try:
        parts = urlsplit(target)
        _ = parts.port  # which is parsed only now
    except ValueError as error:
        raise _refused(field, "is no valid address") from error
    return parts


def _service(target: str, field: str) -> tuple[str, str]:
    try:
        service = services.open_service(target)
    except services.NotATarget as error:
        raise _refused(field, str(error)) from error
    about = ", ".join(service.recipients) or service.host
    return f"{service.name} ({about})" if about else service.name, service.host


def _require_allowed(host: str, field: str) -> None:
    """Refuse a numeric address, and `localhost`, now rather than at the first message."""
    bare = host.lower().strip("[]").rstrip(".")
    numeric = "127.0.0.1" if bare.rpartition(".")[2] == "localhost" else bare
    try:
        ip_address(numeric)
    except ValueError:
        return
    if not is_allowed(numeric, parse_networks(settings.ENV.notify_allowed_networks)):
        message = f"{host} is not a public address; an admin can allow it with GPUSCHED_NOTIFY_ALLOWED_NETWORKS"
        raise invalid([FieldError(field, "not_allowed", message)])


def _refused(field: str, message: str) -> Exception:
    return invalid([FieldError(field, "invalid", message)])
