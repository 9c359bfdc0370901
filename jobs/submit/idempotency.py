"""Idempotency keys of the API's POSTs: repeated within a day, a request gets the first answer and changes nothing.

The transaction of the first request stores the answer, sealed: that of a new token holds the token.

`POST /jobs` stores its keys itself (jobs/submit/job_row.py), for speed: job, event and key are one statement, and the
job yields the answer to a repeated request. Claiming a key and storing an answer takes three and a transaction."""

import hashlib
from collections.abc import Callable
from typing import Any

from cryptography.fernet import InvalidToken
from django.db import transaction
from django.http import HttpRequest, HttpResponse

from gpusched.lib.api import rate_limits
from gpusched.lib.api.problems import Problem, invalid, response_for
from gpusched.lib.auth.sealing import seal_for
from gpusched.lib.db.sql import execute, query
from gpusched.lib.web.uploads import upload_body
from gpusched.protocol.batches import JSON
from gpusched.protocol.job_request import FieldError
from tenants.auth.identity import Identity, identity_of_token

MAX_CHARACTERS = 255
# Older keys no longer count.
EXPIRED_BEFORE = "now() - interval '24 hours'"
_PURPOSE = b"gpusched: answers of repeated requests, 1"


class IdempotentPosts:
    """Middleware that replays answers. Views with `keeps_answers` do so themselves. An invalid key is refused in any
    POST, also in a dry run and in one that keeps no answers."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        key = request.headers.get("Idempotency-Key", "")
        if request.method == "POST" and request.path.startswith("/api/") and not _is_valid(key):
            error = FieldError("Idempotency-Key", "too_long", f"at most {MAX_CHARACTERS} characters")
            return response_for(invalid([error]))
        return self.get_response(request)

    def process_view(
        self, request: HttpRequest, view: Callable[..., HttpResponse], args: Any, kwargs: Any
    ) -> HttpResponse | None:
        key = request.headers.get("Idempotency-Key", "")
        if request.method != "POST" or not key or not request.path.startswith("/api/"):
            return None
        cls = getattr(view, "cls", None)
        # A login has no caller yet. Its rate limit must count, too, and a rollback here would undo the count.
        if getattr(cls, "keeps_answers", False) or not getattr(cls, "authentication_classes", True):
            return None
        caller = _caller(request)
        if caller is None:
            return None  # the view will refuse it
        try:
            return _once(request, *caller, key, lambda: view(request, *args, **kwargs))
        except Problem as problem:
            return response_for(problem)


def _is_valid(key: str) -> bool:
    return len(key) <= MAX_CHARACTERS and "\x00" not in key


def key_reused() -> Problem:
    """Return the problem of a key that was used with another body or address."""
    return Problem(
        409,
        "idempotency_key_reused",
        "this Idempotency-Key was used for another request",
        next_step="use a new key for a new request",
        errors=[FieldError("Idempotency-Key", "reused", "was used with another body, or for another address")],
    )


def caller_of(identity: Identity) -> str:
    """Return the owner of keys: a token, since another token may be allowed less, or a user on the pages."""
    return identity.via if identity.token_prefix else f"person {identity.user_id}"


# True if %(caller)s has used %(key)s for a request other than a submit.
KEY_IN_USE = f"""EXISTS (SELECT 1 FROM jobs_keptanswer
                      WHERE caller = %(caller)s::text AND key = %(key)s::text AND created_at > {EXPIRED_BEFORE})"""


def _caller(request: HttpRequest) -> tuple[str, int] | None:
    """Return the owner of keys and the user's id: keys of submits belong to the user, whatever the token."""
    if header := request.headers.get("Authorization", ""):
        identity = identity_of_token(header)
        return (caller_of(identity), identity.user_id) if identity else None
    return (f"person {request.user.pk}", request.user.pk) if request.user.is_authenticated else None


# An expired key counts as unused, the key of a submit as used. Waits for a concurrent request with the same key.
_CLAIM = f"""
    INSERT INTO jobs_keptanswer AS k (caller, key, request_hash, status, content_type, sealed, created_at)
    SELECT %(caller)s, %(key)s, %(request_hash)s, 0, '', '', now()
     WHERE NOT EXISTS (SELECT 1 FROM jobs_idempotencykey s WHERE s.user_id = %(user_id)s AND s.key = %(key)s
                                                            AND s.created_at > {EXPIRED_BEFORE})
    ON CONFLICT (caller, key) DO UPDATE SET request_hash = excluded.request_hash, created_at = now()
     WHERE k.created_at < {EXPIRED_BEFORE}
    RETURNING id
"""


def _once(
    request: HttpRequest, caller: str, user_id: int, key: str, answer: Callable[[], HttpResponse]
) -> HttpResponse:
    request_hash = _hash(request)
    _drop_expired()
    with transaction.atomic():
        params = {"caller": caller, "key": key, "request_hash": request_hash, "user_id": user_id}
        claimed = query(_CLAIM, params)
        if not claimed:
            rate_limits.count(request, caller)  # as no view runs, which would count it
            return _replay(caller, key, request_hash)
        response = answer()
        if hasattr(response, "render"):
            response.render()
        if response.status_code >= 400:
            transaction.set_rollback(True)
            return response
        sealed = seal_for(_PURPOSE).encrypt(response.content).decode()
        execute(
            "UPDATE jobs_keptanswer SET status = %s, content_type = %s, sealed = %s WHERE id = %s",
            [response.status_code, response.get("Content-Type", ""), sealed, claimed[0]["id"]],
        )
        return response


def _hash(request: HttpRequest) -> str:
    """Return a hash of the address, the media type if it is not JSON, and the body: the input of a task is its body."""
    kind = "" if request.content_type == JSON else request.content_type
    return hashlib.sha256(f"{request.get_full_path()}\n{kind}".encode() + upload_body(request)).hexdigest()


def _replay(caller: str, key: str, request_hash: str) -> HttpResponse:
    rows = query("SELECT * FROM jobs_keptanswer WHERE caller = %s AND key = %s", [caller, key])
    if not rows or rows[0]["request_hash"] != request_hash:
        raise key_reused()
    [row] = rows
    try:
        content = seal_for(_PURPOSE).decrypt(row["sealed"].encode())
    except InvalidToken:
        raise key_reused() from None
    headers = {"Idempotent-Replay": "true"}
    return HttpResponse(content, status=row["status"], content_type=row["content_type"], headers=headers)


def _drop_expired() -> None:
    execute(
        "DELETE FROM jobs_keptanswer WHERE id IN (SELECT id FROM jobs_keptanswer"
        f" WHERE created_at < {EXPIRED_BEFORE} ORDER BY created_at LIMIT 100 FOR UPDATE SKIP LOCKED)"
    )


def drop_old_keys() -> int:
    """Delete the expired keys of submits. Return how many."""
    return execute(f"DELETE FROM jobs_idempotencykey WHERE created_at < {EXPIRED_BEFORE}")
