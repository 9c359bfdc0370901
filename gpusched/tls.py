"""TLS of clients and agents: which authorities they trust, and how they report a certificate that they do not trust.

The handshake comes before the first byte of a request, so without trust no token, name or job leaves the machine."""

import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpusched.protocol.addresses import has_tls, is_local

CA_FILE, CERTIFICATE_FILE = "GPUSCHED_CA_FILE", "GPUSCHED_CERTIFICATE_FILE"
NEXT_STEP = (
    "nothing was sent. Check the address; if it is right, get the certificate of the server's authority from an admin, "
    f"and name its file by --ca-file or {CA_FILE}"
)

RENEW = "renew the certificate of this machine in its file, or name the file by --certificate-file when you join"

# What OpenSSL and Python say if the server there has no TLS, and if a proxy has no certificate for a name.
_MISTAKES = {
    "no TLS is spoken there; perhaps its address begins with http://": (
        "WRONG_VERSION_NUMBER",
        "RECORD_LAYER_FAILURE",
        "handshake operation timed out",
    ),
    "it has no certificate for this name; use the name of the server that its admin gives": (
        "ALERT_INTERNAL_ERROR",
        "UNRECOGNIZED_NAME",
    ),
}


class TlsFileError(ValueError):
    """A file with certificates cannot be used. The text names it."""


def verify(url: str, ca_file: str = "", certificate_file: str = "") -> "ssl.SSLContext | bool":
    """Return httpx's `verify` for these addresses. Without files: the authorities that httpx trusts, or, if all are of
    this machine, the machine's.

    `ca_file`: trust only its authorities. `certificate_file`: the client's own certificate with its key, for a server
    that asks for one. Raises TlsFileError."""
    if not has_tls(url):
        return False  # loading certificates takes longer than a request
    return context(ca_file, certificate_file) if ca_file or certificate_file or is_local(url) else True


def context(ca_file: str = "", certificate_file: str = "") -> ssl.SSLContext:
    """Return a context that verifies servers. Raises TlsFileError."""
    for name, use in ((ca_file, "authorities"), (certificate_file, "the certificate and its key")):
        if name and not _is_file(name):
            problem = "is a directory" if Path(name).is_dir() else "does not exist"
            raise TlsFileError(f"{name} {problem}; it must be a PEM file with {use}")
    try:
        result = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise TlsFileError(f"{ca_file} has no certificates in PEM that can be read: {error}") from error
    _load_certificate(result, certificate_file)
    return result


def reload(present: ssl.SSLContext, ca_file: str = "", certificate_file: str = "") -> None:
    """Read the files again, for the next connections: they may have been replaced. A file that cannot be used now
    changes nothing. Authorities that were read before stay trusted."""
    with suppress(OSError, TlsFileError):
        if ca_file:
            present.load_verify_locations(ca_file)
        _load_certificate(present, certificate_file)


def _load_certificate(into: ssl.SSLContext, certificate_file: str) -> None:
    try:
        if certificate_file:
            into.load_cert_chain(certificate_file)
    except (OSError, ssl.SSLError) as error:
        raise TlsFileError(f"{certificate_file} has no certificate with its key in PEM: {error}") from error


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except PermissionError as error:
        reason = "this user cannot enter its directory; put it where this user can read it, such as /etc/gpusched"
        raise TlsFileError(f"{name} cannot be read: {reason}") from error


def fault(url: str, error: BaseException) -> tuple[str, str] | None:
    """Return what is wrong with a certificate of either side, if that made a request to `url` fail, and the next step;
    else None."""
    if why := distrust(error):
        return f"{url} cannot be trusted: {why}", NEXT_STEP
    if why := _refusal(error):
        return f"{url}: {why}", RENEW
    return None


def reason(error: BaseException) -> str:
    """Return why a request got no answer, in words that name a mistake in the address where OpenSSL's do not."""
    texts = [str(cause) for cause in _causes(error)]
    for sentence, signs in _MISTAKES.items():
        if any(sign in text for text in texts for sign in signs):
            return sentence
    return str(error)


def distrust(error: BaseException) -> str:
    """Return why the server's certificate is not trusted, if that made the request fail; else an empty string."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message.rstrip('.')}"
    return ""


def _refusal(error: BaseException) -> str:
    """Return why the server refused the client's certificate, such as "certificate expired", if that made the request
    fail; else an empty string. asyncio loses it, if the handshake is over for the client."""
    for cause in _causes(error):
        _, alert, what = str(getattr(cause, "reason", "")).partition("_ALERT_")
        if alert and ("CERTIFICATE" in what or what == "UNKNOWN_CA"):
            return f"it refuses the certificate of this machine: {what.replace('_', ' ').lower()}"
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
