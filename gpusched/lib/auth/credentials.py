"""Random credentials of the form `<prefix>.<secret>`: the prefix finds the row, a hash proves the secret."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass


@dataclass(frozen=True)
class Credential:
    """A credential. Its owner keeps `text`; only `prefix` and `secret_hash` are stored."""

    text: str
    prefix: str
    secret_hash: str


def generate(kind: str) -> Credential:
    """Generate a credential. `kind` (one or two letters) starts the prefix, so that readers can tell kinds apart."""
    prefix = kind + secrets.token_hex(5)[: 12 - len(kind)]
    secret = secrets.token_urlsafe(32)
    return Credential(f"{prefix}.{secret}", prefix, digest(secret))


def digest(secret: str) -> str:
    """Return the SHA-256: enough for 256 random bits, which no dictionary contains, and cheap on each request."""
    return hashlib.sha256(secret.encode()).hexdigest()


def split(text: str) -> tuple[str, str]:
    """Split `prefix.secret`. Return empty strings for anything else."""
    prefix, dot, secret = text.partition(".")
    return (prefix, secret) if dot and prefix and secret and len(text) < 200 and text.isascii() else ("", "")


def proves(secret: str, secret_hash: str) -> bool:
    return hmac.compare_digest(digest(secret), secret_hash)


def bearer(header: str) -> tuple[str, str]:
    """Return the credential of an `Authorization: Bearer …` header as (prefix, secret)."""
    word, _, text = header.partition(" ")
    return split(text.strip()) if word.lower() == "bearer" else ("", "")
