"""Count login attempts by name and by address, and refuse too many (429)."""

import hashlib
import hmac
import math
from typing import Any

from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest

from gpusched import oidc
from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.api.rate_limits import subscriber
from gpusched.lib.audit import log
from gpusched.lib.db.sql import execute, query
from gpusched.lib.limits import LOGIN_WINDOW_SECONDS, MAX_PER_ADDRESS, MAX_PER_NAME, MAX_PER_NAME_AND_ADDRESS
from gpusched.protocol.job_request import FieldError
from tenants.auth import passwords


class ThrottledLogin(ModelBackend):
    """Django's check of names and passwords, with limits. The login page, the admin and the API all use it."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        new_password: str | None = None,
        **credentials: Any,
    ) -> User | None:
        """Return the user with this password. `new_password` replaces it; a one-time password without it is a 403. Of
        two concurrent logins that replace a password, one is refused."""
        if username is None or password is None:
            return None
        one_time = passwords.one_time(username)
        user = self.verify(request, username, password, is_valid=not (one_time and one_time.is_expired))
        if one_time:
            passwords.keep_one_time(username, password)
        if user is not None and new_password is not None:
            passwords.require_good(new_password, user, "new_password")
            if new_password == password:
                raise invalid([FieldError("new_password", "unchanged", "must be another one")])
            with transaction.atomic():
                if not passwords.replace(user, password, new_password):
                    return None
                log.act_as(user.get_username(), "password")
                log.record("user.change_password", f"user {user.get_username()}", None, {"revoked_tokens": 0})
        elif user is not None and one_time:
            raise passwords.change_required()
        return user

    def verify(
        self, request: HttpRequest | None, username: str, password: str, *, is_valid: bool = True
    ) -> User | None:
        """Return the user if the password is right, and count the attempt. Count before the password is checked, so
        that attempts at the same time count too. `is_valid` False: no password is right."""
        limits = _limits(username, subscriber(request.META.get("REMOTE_ADDR", "")) if request else "")
        _count(limits)
        only_for = oidc.describe(settings.ENV.password_login_only_for)
        if only_for and username not in only_for:
            return None
        user = super().authenticate(request, username, password)
        if user is None or not is_valid:
            return None
        _reset_counts(limits)
        return user


def _limits(name: str, address: str) -> dict[str, int]:
    """Return the counters of an attempt and their limits per window. Names are stored as a keyed hash: users type
    passwords into that field."""
    limits = {
        _key("name", name): MAX_PER_NAME,
        _key("both", f"{name}\n{address}"): MAX_PER_NAME_AND_ADDRESS,
        _key("address", address): MAX_PER_ADDRESS,
    }
    return dict(sorted(limits.items()))  # one order of locking, so that two attempts cannot deadlock


def _key(kind: str, text: str) -> str:
    return f"{kind}:{hmac.new(settings.SECRET_KEY.encode(), text.encode(), hashlib.sha256).hexdigest()[:40]}"


# A window of the future is from before the clock was set back. It would last until then.
_IS_OVER = "a.began_at NOT BETWEEN now() - make_interval(secs => %(window)s) AND now() + interval '1 minute'"
_COUNT = f"""
    INSERT INTO tenants_loginattempts AS a (key, count, began_at)
    SELECT key, 1, now() FROM unnest(%(keys)s::text[]) AS k (key) ORDER BY key
    ON CONFLICT (key) DO UPDATE SET
        count = CASE WHEN {_IS_OVER} THEN 1 ELSE a.count + 1 END,
        began_at = CASE WHEN {_IS_OVER} THEN now() ELSE a.began_at END
    RETURNING key, count, %(window)s - extract(epoch FROM now() - began_at)::float8 AS seconds_left
"""


def _count(limits: dict[str, int]) -> None:
    execute(
        "DELETE FROM tenants_loginattempts WHERE key IN (SELECT key FROM tenants_loginattempts a"
        f" WHERE {_IS_OVER} LIMIT 100 FOR UPDATE SKIP LOCKED)",
        {"window": LOGIN_WINDOW_SECONDS},
    )
    rows = query(_COUNT, {"keys": list(limits), "window": LOGIN_WINDOW_SECONDS})
    wait = max((row["seconds_left"] for row in rows if row["count"] > limits[row["key"]]), default=None)
    if wait is not None:
        seconds = max(1, math.ceil(wait))
        minutes = math.ceil(seconds / 60)
        raise Problem(
            429,
            "too_many_logins",
            "too many attempts to log in with this name or from this address",
            next_step=f"wait {minutes} minute{'s' * (minutes > 1)}, or ask an admin for a new password",
            retry_after=seconds,
        )


def _reset_counts(limits: dict[str, int]) -> None:
    """Reset the count of this name and address after a right password, and do not count this attempt."""
    execute("DELETE FROM tenants_loginattempts WHERE key = ANY(%s) AND key LIKE 'both:%%'", [list(limits)])
    execute(
        "UPDATE tenants_loginattempts SET count = count - 1 WHERE count > 0 AND key IN"
        " (SELECT key FROM tenants_loginattempts WHERE key = ANY(%s) ORDER BY key FOR UPDATE)",
        [list(limits)],
    )
