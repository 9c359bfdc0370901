"""The outbox: write a notice in the transaction of the fact that it reports, so that neither exists without the other.

Lower apps call `enqueue` as the hook `notify` (gpusched/lib/hooks.py)."""

from collections.abc import Mapping
from typing import Any

from gpusched.lib.db.sql import as_json, execute
from notifications.models import Kind

_INSERT = """
    INSERT INTO notifications_notice (kind, key, tenant_id, user_id, subject_id, data)
    VALUES (%s, %s, %s, %s, %s, %s::jsonb) ON CONFLICT (key) DO NOTHING
"""


def enqueue(
    kind: str,
    *,
    tenant_id: int | None = None,
    user_id: int | None = None,
    subject_id: int | None = None,
    data: Mapping[str, Any] | None = None,
    key: str | None = None,
) -> bool:
    """Write a notice; return False if one with this `key` exists. ValueError for an unknown kind.

    It goes to the routes of the tenant `tenant_id`, and to those of the user `user_id`; without a user, to those of all
    members of the tenant. Without both it is for admins. `subject_id`: the job, reservation or incident. `data`: plain
    values for the message, above all `text`, a sentence. `key`: a name of the fact, such as `reservation:7:idle`, for
    callers that may repeat."""
    if kind not in Kind:
        raise ValueError(f"unknown kind of notice: {kind!r}")
    return bool(execute(_INSERT, [kind, key, tenant_id, user_id, subject_id, as_json(data or {})]))
