"""Seal values that must not be readable in the database: Fernet (AES-128-CBC with HMAC-SHA256), with a key per purpose
derived from SECRET_KEY."""

import base64
import hmac
from functools import lru_cache

from cryptography.fernet import Fernet
from django.conf import settings


def seal_for(purpose: bytes) -> Fernet:
    """Return the seal for a purpose. Its `decrypt` raises cryptography.fernet.InvalidToken for a corrupt value or
    another key."""
    return _seal(settings.SECRET_KEY, purpose)


@lru_cache(8)
def _seal(secret_key: str, purpose: bytes) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(hmac.digest(secret_key.encode(), purpose, "sha256")))
