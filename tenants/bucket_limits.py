"""Create, change and delete token buckets."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from gpusched.lib.api.problems import Problem, invalid, not_found
from gpusched.lib.audit import log
from gpusched.lib.db.sql import query, violates
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError
from tenants.models import BucketScope, Tenant, TokenBucket

_FACTS = ("rate_per_second", "burst", "daily_budget")
_BUCKETS = """
    SELECT b.id, t.name AS tenant, b.scope, u.username AS "user", b.limits, b.rate_per_second, b.burst, b.daily_budget,
           b.created_by, b.created_at
      FROM tenants_tokenbucket b JOIN tenants_tenant t ON t.id = b.tenant_id LEFT JOIN auth_user u ON u.id = b.user_id
     WHERE (%(visible)s::bigint[] IS NULL OR t.id = ANY(%(visible)s)) AND (%(id)s::bigint IS NULL OR b.id = %(id)s)
       AND (%(after)s::bigint IS NULL OR b.id > %(after)s)
     ORDER BY b.id LIMIT %(limit)s
"""


def create(tenant: Tenant, fields: Mapping[str, Any], actor: str) -> int:
    """Create a bucket and return its id. 400 for wrong fields, 409 if there is one for the same scope and user."""
    username = fields["user"]
    user = User.objects.filter(username=username).first() if username and "\x00" not in username else None
    if username is not None and user is None:
        raise invalid([FieldError("user", "unknown_value", f"there is no user '{username[:150]}'")])
    if user is not None and fields["scope"] != BucketScope.USER:
        raise invalid([FieldError("user", "conflict", "applies only to the scope user")])
    bucket = TokenBucket(tenant=tenant, created_by=actor, **{**fields, "user": user})
    _check(bucket)
    try:
        with transaction.atomic():
            bucket.save(force_insert=True)
            log.record("bucket.create", _subject(bucket), None, _facts(bucket))
    except IntegrityError as error:
        if not violates(error, "bucket_is_unique"):
            raise
        detail = "the tenant already has a bucket of this scope, user and kind of limit"
        raise Problem(409, "already_exists", detail, next_step="change that one") from error
    return bucket.pk


def change(bucket_id: int, changes: Mapping[str, Any]) -> None:
    """Change fields of a bucket."""
    with transaction.atomic():
        bucket = _locked(bucket_id)
        before = _facts(bucket)
        for name, value in changes.items():
            setattr(bucket, name, value)
        _check(bucket)
        bucket.save()
        log.record("bucket.change", _subject(bucket), before, _facts(bucket))


def delete(bucket_id: int) -> None:
    """Delete a bucket with its levels."""
    with transaction.atomic():
        bucket = _locked(bucket_id)
        log.record("bucket.delete", _subject(bucket), _facts(bucket), None)
        bucket.delete()


def represent(
    visible: Sequence[int] | None, bucket_id: int | None = None, *, after: int | None = None, limit: int | None = None
) -> list[dict[str, Any]]:
    """Return the buckets of these tenants (None: all) for the API, oldest first. `after`: those after this id."""
    rows = query(_BUCKETS, {"visible": visible, "id": bucket_id, "after": after, "limit": limit})
    return [{**row, "created_at": rfc3339(row["created_at"])} for row in rows]


def _locked(bucket_id: int) -> TokenBucket:
    bucket = TokenBucket.objects.select_for_update(of=("self",)).filter(pk=bucket_id).first()
    if bucket is None:
        raise not_found(f"bucket {bucket_id}")
    return bucket


def _check(bucket: TokenBucket) -> None:
    try:
        bucket.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        errors = [FieldError(name, "invalid", text) for name, texts in error.message_dict.items() for text in texts]
        raise invalid(errors) from error


def _subject(bucket: TokenBucket) -> str:
    return f"bucket {bucket.pk} of {bucket.tenant.name}"


def _facts(bucket: TokenBucket) -> dict[str, Any]:
    return {name: getattr(bucket, name) for name in _FACTS}
