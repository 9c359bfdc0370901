"""Passwords of accounts: rules, one-time passwords, and replacement."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.auth.hashers import check_password
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.utils import timezone

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.db.sql import query
from gpusched.protocol.job_request import FieldError
from tenants.models import OneTimePassword

ONE_TIME_DAYS = 7
# Hashing a longer text takes longer.
MAX_CHARACTERS = 1024
# Without letters and digits that look similar. 20 of 31 characters are 99 random bits.
_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
_GROUPS, _GROUP_LENGTH = 5, 4


@dataclass(frozen=True)
class OneTime:
    """The one-time password of an account."""

    expires_at: datetime

    @property
    def is_expired(self) -> bool:
        return self.expires_at <= timezone.now()


def generate() -> str:
    """Return a random password that a person can type."""
    groups = ("".join(secrets.choice(_ALPHABET) for _ in range(_GROUP_LENGTH)) for _ in range(_GROUPS))
    return "-".join(groups)


def require_good(text: str, user: User, field: str) -> None:
    """Raise a 400 that names `field` if the text cannot be the password of this user. No message has the text."""
    if "\x00" in text:
        raise invalid([FieldError(field, "invalid_character", "must not contain a NUL character")])
    if len(text) > MAX_CHARACTERS:
        raise invalid([FieldError(field, "too_long", f"at most {MAX_CHARACTERS} characters")])
    try:
        validate_password(text, user)
    except ValidationError as error:
        raise invalid([FieldError(field, "weak_password", message) for message in error.messages]) from error


def assign(user: User, text: str, *, is_one_time: bool = False) -> None:
    """Store a password that was checked before. It ends the sessions of the user, on pages and in the live feed."""
    user.set_password(text)
    user.save(update_fields=["password"])
    if is_one_time:
        expires_at = timezone.now() + timedelta(days=ONE_TIME_DAYS)
        values = {"digest": _digest(user.password), "expires_at": expires_at}
        OneTimePassword.objects.update_or_create(user=user, defaults=values)
    else:
        OneTimePassword.objects.filter(user=user).delete()


def replace(user: User, old: str, new: str) -> bool:
    """Store `new`, which was checked before, if `old` is still the password of the user, and the account active.
    Return False if not: of two who know one password only the first replaces it. In a transaction."""
    locked = User.objects.select_for_update().get(pk=user.pk)
    if not (locked.is_active and locked.check_password(old)):
        return False
    assign(user, new)
    return True


_ONE_TIME = """
    SELECT o.digest, o.expires_at, u.password FROM tenants_onetimepassword o JOIN auth_user u ON u.id = o.user_id
     WHERE u.username = %s
"""


def one_time(username: str) -> OneTime | None:
    """Return the one-time password of an account, or None if it has another one, also one set in the admin since."""
    rows = query(_ONE_TIME, [username]) if "\x00" not in username else []
    is_same = bool(rows) and is_one_time(rows[0]["digest"], rows[0]["password"])
    return OneTime(rows[0]["expires_at"]) if is_same else None


def keep_one_time(username: str, text: str) -> None:
    """Keep a one-time password one after a check: Django stores a stronger hash of a right password, if it has one."""
    record = OneTimePassword.objects.select_related("user").filter(user__username=username).first()
    if record and not is_one_time(record.digest, record.user.password) and check_password(text, record.user.password):
        OneTimePassword.objects.filter(pk=record.pk, digest=record.digest).update(digest=_digest(record.user.password))


def is_one_time(digest: str | None, password_hash: str) -> bool:
    """Return whether the digest that was stored with a one-time password is of this hash."""
    return digest is not None and digest == _digest(password_hash)


def change_required() -> Problem:
    """Return the 403 for a login with a one-time password and without a new one."""
    return Problem(
        403,
        "password_change_required",
        "this password is for one login, which must set a new one",
        next_step="log in with new_password, on the login page, or with `gpusched login`, which asks for it",
    )


def _digest(password_hash: str) -> str:
    return hashlib.sha256(password_hash.encode()).hexdigest()
