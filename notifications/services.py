"""The services that routes can name: the classes of Apprise that send to them, by the scheme of the address.

No other class of Apprise is ever loaded or created, above all none that writes files or starts programs. Needs no
Django: the sending process uses it, too."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit

# Scheme → (module in apprise.plugins, class, name).
_SERVICES = {
    "mailto": ("email", "NotifyEmail", "E-mail"),
    "mailtos": ("email", "NotifyEmail", "E-mail"),
    "slack": ("slack", "NotifySlack", "Slack"),
    "workflow": ("workflows", "NotifyWorkflows", "Teams"),
    "workflows": ("workflows", "NotifyWorkflows", "Teams"),
    "ntfy": ("ntfy", "NotifyNtfy", "ntfy"),
    "ntfys": ("ntfy", "NotifyNtfy", "ntfy"),
    "discord": ("discord", "NotifyDiscord", "Discord"),
    "tgram": ("telegram", "NotifyTelegram", "Telegram"),
    "matrix": ("matrix", "NotifyMatrix", "Matrix"),
    "matrixs": ("matrix", "NotifyMatrix", "Matrix"),
    "mmost": ("mattermost", "NotifyMattermost", "Mattermost"),
    "mmosts": ("mattermost", "NotifyMattermost", "Mattermost"),
    "rocket": ("rocketchat", "NotifyRocketChat", "Rocket.Chat"),
    "rockets": ("rocketchat", "NotifyRocketChat", "Rocket.Chat"),
    "gchat": ("google_chat", "NotifyGoogleChat", "Google Chat"),
    "gotify": ("gotify", "NotifyGotify", "Gotify"),
    "gotifys": ("gotify", "NotifyGotify", "Gotify"),
    "opsgenie": ("opsgenie", "NotifyOpsgenie", "Opsgenie"),
    "pagerduty": ("pagerduty", "NotifyPagerDuty", "PagerDuty"),
    "pover": ("pushover", "NotifyPushover", "Pushover"),
    "webex": ("webexteams", "NotifyWebexTeams", "Webex"),
    "wxteams": ("webexteams", "NotifyWebexTeams", "Webex"),
    "zulip": ("zulip", "NotifyZulip", "Zulip"),
}
SCHEMES = tuple(sorted(_SERVICES))
# Parameters of Apprise that read files of this machine, or let a send last longer.
_REFUSED = {"template", "retry", "wait", "cto", "rto", "attach", "optional"}
# Services whose address names a host that its owner chose.
_OWN_HOST = ("ntfy", "Matrix", "Mattermost", "Rocket.Chat", "Gotify")


class NotATarget(ValueError):
    """Why the text is no target of a route."""


@dataclass(frozen=True)
class Service:
    """A service of a target. `host`: what the address connects to, if it names it."""

    name: str
    host: str
    sender: Any
    recipients: tuple[str, ...] = ()


def open_service(target: str) -> Service:
    """Return the service of an address of Apprise, such as `slack://…`. Raise NotATarget with a sentence that does not
    repeat the address. Connects to nothing."""
    scheme = target.partition("://")[0].lower()
    if "://" not in target or scheme not in _SERVICES:
        raise NotATarget(f"must be an address with one of these schemes: {', '.join(SCHEMES)}")
    _check_parameters(target)
    module, class_name, name = _SERVICES[scheme]
    plugin = getattr(import_module(f"apprise.plugins.{module}"), class_name)
    try:
        parts = plugin.parse_url(target)
        sender = plugin(**parts, asset=_asset()) if parts else None
    except TypeError:
        sender = None
    if sender is None:
        raise NotATarget(f"is no complete address of {name}; see https://appriseit.com for its form")
    sender.overflow_mode = import_module("apprise").OverflowMode.SPLIT
    sender.socket_connect_timeout = sender.socket_read_timeout = 10.0
    recipients = tuple(address for _, address in sender.targets) if name == "E-mail" else ()
    return Service(name, _host(name, sender), sender, recipients)


def send_text(service: Service, title: str, text: str) -> bool:
    """Send plain text. Apprise escapes what the service would read as HTML or Markdown."""
    apprise = import_module("apprise")
    sender = apprise.Apprise(service.sender, asset=_asset())
    return bool(sender.notify(text, title, body_format=apprise.NotifyFormat.TEXT))


def destination(target: str) -> str:
    """Return the host of a webhook or of a service with an own host, else the name of the service. Loads nothing."""
    parts = urlsplit(target)
    host = parts.hostname or ""
    name = _SERVICES.get(parts.scheme, ("", "", ""))[2]
    if name == "E-mail":
        return dict(parse_qsl(parts.query)).get("smtp", host).lower()
    is_cloud = name == "ntfy" and not parts.path.strip("/")  # the host is the topic
    return host if not name or (name in _OWN_HOST and not is_cloud) else name


def load_all() -> None:
    """Import the modules of all services, before imports are no longer possible."""
    for module, _, _ in _SERVICES.values():
        import_module(f"apprise.plugins.{module}")


def _host(name: str, sender: Any) -> str:
    """Return the host that the address names; empty for a service with hosts of its own."""
    if name == "E-mail":
        return str(sender.smtp_host)
    if name not in _OWN_HOST or (name == "ntfy" and sender.mode == "cloud"):
        return ""
    return str(sender.host or "")


def _check_parameters(target: str) -> None:
    try:
        query = urlsplit(target).query
    except ValueError as error:
        raise NotATarget("is no valid address") from error
    for name, _ in parse_qsl(query, keep_blank_values=True):
        bare = name.strip().lower()
        if bare in _REFUSED or bare.startswith(("pgp", ":")):
            raise NotATarget(f"has the parameter {bare[:20]!r}, which is not possible here; leave it out")


def _asset() -> Any:
    """Return Apprise's options: nothing on disk, no images from its own site."""
    apprise = import_module("apprise")
    return apprise.AppriseAsset(
        app_id="gpusched", app_desc="gpusched", app_url="", image_url_mask="", image_url_logo="",
        async_mode=False, storage_mode=apprise.PersistentStoreMode.MEMORY, secure_logging=True,
    )  # fmt: skip
