"""The addresses of one control plane, `https://a,https://b`: a client uses one, and the next if that fails."""

from urllib.parse import urlsplit


def split(text: str) -> tuple[str, ...]:
    """Return the addresses in a text, without spaces, final slashes and repetitions, and with a scheme in small
    letters."""
    parts = (part.strip().rstrip("/").partition("://") for part in text.split(",") if part.strip())
    return tuple(dict.fromkeys(f"{scheme.lower()}{mark}{rest}" if mark else scheme for scheme, mark, rest in parts))


def is_address(url: str) -> bool:
    """Return True if the text can be the address of a server or a proxy."""
    try:
        parts = urlsplit(url)
        # A UnicodeError, which is a ValueError, for characters or a length that no address has.
        url.encode()
        (parts.hostname or "").encode("idna").decode("idna")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def fault(url: str) -> str:
    """Return why this is not the address of a server; empty if it is one. The sentence shows no password."""
    if "@" in url:
        # httpx would send these instead of the token.
        return "a server URL cannot contain a user name or password"
    return "" if is_address(url) and "?" not in url and "#" not in url else f"{url!r} is not a server URL"


def has_tls(text: str) -> bool:
    """Return True if one of these addresses is of https: then the client must verify servers."""
    return any(address.startswith("https:") for address in split(text))


def is_local(text: str) -> bool:
    """Return True if traffic to these addresses stays on the machine. Requests to them bypass the proxies of the
    environment: a proxy does not lead back here, and would receive the token."""
    try:
        return all(urlsplit(address).hostname in ("localhost", "127.0.0.1", "::1") for address in split(text))
    except ValueError:  # no address at all
        return False


def redirect_target(location: str, path: str) -> str:
    """Return the address of the server to which a request of `path` is redirected, or where else the redirect leads."""
    base = location.partition("?")[0]
    return base.removesuffix(path) if base.endswith(path) else location


class Addresses:
    """At least one address; `current` is the one to use."""

    def __init__(self, text: str) -> None:
        self.all = split(text) or ("",)
        self._index = 0

    def __len__(self) -> int:
        return len(self.all)

    @property
    def current(self) -> str:
        return self.all[self._index]

    def move_on(self, failed: str) -> None:
        """Use the address after `failed`, unless another thread has already moved on from it."""
        if self.current == failed:
            self._index = (self._index + 1) % len(self.all)
