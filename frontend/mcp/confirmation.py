"""Confirmation of a write: a token that the dry run returns, bound to the caller and to the exact arguments, for five
minutes."""

import hashlib
import secrets

import msgspec
from django.core import signing

VALID_SECONDS = 300
_SALT = "gpusched.mcp.confirmation"


class NotConfirmed(Exception):
    """The confirmation is missing, expired, or one of another write."""


def create(caller: str, arguments: object) -> str:
    """Return the confirmation of a write by `caller`, its token's prefix, with these arguments. No two are equal, since
    a repeated one has no second effect."""
    return signing.TimestampSigner(salt=_SALT).sign(f"{_digest(caller, arguments)}.{secrets.token_hex(8)}")


def require(confirmation: str, caller: str, arguments: object) -> None:
    """Raise NotConfirmed unless `create` returned this confirmation for the same write in the last five minutes."""
    try:
        signed = signing.TimestampSigner(salt=_SALT).unsign(confirmation, max_age=VALID_SECONDS)
    except signing.SignatureExpired:
        raise NotConfirmed(
            f"the confirmation is older than {VALID_SECONDS // 60} minutes; make a new dry run"
        ) from None
    except signing.BadSignature:
        raise NotConfirmed("this is not a confirmation; call without one for a dry run") from None
    if signed.partition(".")[0] != _digest(caller, arguments):
        raise NotConfirmed("this confirms another write; repeat the arguments of its dry run exactly")


def _digest(caller: str, arguments: object) -> str:
    return hashlib.sha256(msgspec.json.encode([caller, arguments], order="deterministic")).hexdigest()
