"""Secrets of jobs: kept sealed, apart from the job, and opened for nobody but the node that runs it.

A trigger on Job deletes them when the job is over (jobs/models.py). The seal is Fernet (AES-128-CBC with HMAC-SHA256)
with a key that follows from SECRET_KEY, so that a dump of the database tells nothing without that."""

import hashlib
import hmac
import json
from collections.abc import Mapping

from cryptography.fernet import InvalidToken

from gpusched.lib.sealing import key_for, seal_for
from gpusched.lib.sql import execute

_PURPOSE = b"gpusched: secrets of jobs, 1"


class Unreadable(Exception):
    """Sealed with another SECRET_KEY, or spoiled."""


def keep(job_id: int, secrets: Mapping[str, str]) -> None:
    """Keeps them for a job that is being made, in its transaction."""
    text = seal_for(_PURPOSE).encrypt(json.dumps(dict(secrets)).encode()).decode()
    execute("INSERT INTO jobs_jobsecrets (job_id, sealed) VALUES (%s, %s)", [job_id, text])


def opened(sealed: str | None) -> dict[str, str]:
    """What was kept; nothing of nothing. Raises Unreadable."""
    if sealed is None:
        return {}
    try:
        found: dict[str, str] = json.loads(seal_for(_PURPOSE).decrypt(sealed.encode()))
    except InvalidToken:
        raise Unreadable from None
    return found


def fingerprint(body: bytes) -> str:
    """Of a request with secrets, to know it again by: without the key nobody can try out what the secret may be."""
    return hmac.new(key_for(_PURPOSE), body, hashlib.sha256).hexdigest()
