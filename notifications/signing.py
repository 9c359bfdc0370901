"""Sign webhooks as Standard Webhooks says: HMAC-SHA256 over `id.timestamp.body`, https://www.standardwebhooks.com."""

import base64
import hmac
import secrets
from collections.abc import Sequence

PREFIX = "whsec_"
_SECRET_BYTES = 32


def new_secret() -> str:
    """Return a random secret, in the form that libraries for receivers read."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signed_headers(uid: str, timestamp: int, body: str, keys: Sequence[str]) -> dict[str, str]:
    """Return the headers of a message: its id, the time of this attempt in seconds, and a signature per secret. During
    a rotation there are two, and a receiver accepts either."""
    signatures = [_signature(uid, timestamp, body, key) for key in keys]
    return {
        "webhook-id": uid,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
        "content-type": "application/json",
        "user-agent": "gpusched",
    }


def _signature(uid: str, timestamp: int, body: str, key: str) -> str:
    raw = base64.b64decode(key.removeprefix(PREFIX))
    return base64.b64encode(hmac.digest(raw, f"{uid}.{timestamp}.{body}".encode(), "sha256")).decode()
