"""Create, change, delete and test routes, each in one transaction with its entry in the audit log."""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from gpusched.lib.api.problems import Problem, invalid, not_found
from gpusched.lib.audit import log
from gpusched.lib.db.locks import Lock
from gpusched.lib.db.sql import as_json, execute, query, violates
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.states import Role
from notifications import signing, targets
from notifications.claims import drop_pending, retry_now
from notifications.follower import start_cursor
from notifications.models import Channel, Kind, Route
from tenants.auth.identity import Identity
from tenants.models import Tenant

MAX_ROUTES = 50
# The old secret of a webhook also signs for this time after a rotation.
ROTATION_HOURS = 24.0
_COUNTED = """
    SELECT route_id, count(*) FILTER (WHERE state = 'pending') AS pending,
           count(*) FILTER (WHERE state = 'failed') AS failed
      FROM notifications_delivery WHERE route_id = ANY(%s) AND state <> 'sent' GROUP BY route_id
"""

_TEST = """
    WITH notice AS (
        INSERT INTO notifications_notice (kind, tenant_id, user_id, data, expanded_at)
        VALUES ('test', %s, %s, %s::jsonb, now()) RETURNING id)
    INSERT INTO notifications_delivery (notice_id, route_id, state, attempts, error, is_urgent)
    SELECT id, %s, 'pending', 0, '', true FROM notice RETURNING id
"""


def create(channel: Channel, tenant: Tenant | None, fields: Mapping[str, Any], identity: Identity) -> Route:
    """Create a route of a tenant (owners), or of the caller. 400 for wrong fields, 409 for a name in use."""
    _require_owner(tenant, identity)
    route = Route(channel=channel, tenant=tenant, user_id=None if tenant else identity.user_id)
    route.created_by = identity.username
    if tenant is not None:
        route.time_zone = tenant.time_zone
    try:
        with transaction.atomic():
            _lock_owner(route)
            if _of_owner(route).count() >= MAX_ROUTES:
                raise invalid([FieldError("name", "too_many", f"at most {MAX_ROUTES} routes; delete one")])
            _set(route, fields, identity)
            route.save(force_insert=True)
            start_cursor()
            log.record(f"{_noun(route)}.create", subject(route), None, _facts(route))
    except IntegrityError as error:
        if not any(violates(error, f"route_of_{owner}_is_unique") for owner in ("tenant", "user")):
            raise
        detail = f"there is already a {_noun(route)} '{route.name}'"
        raise Problem(409, "name_taken", detail, next_step="choose another name") from error
    return route


def create_webhook(tenant: Tenant | None, fields: Mapping[str, Any], identity: Identity) -> tuple[Route, str]:
    """Create a webhook. Return it and its secret, which is not shown again."""
    secret = signing.new_secret()
    return create(Channel.WEBHOOK, tenant, {**fields, "sealed_secret": targets.seal(secret)}, identity), secret


def change(route_id: int, channel: Channel, fields: Mapping[str, Any], identity: Identity) -> Route:
    """Change fields. A new target, or an enabled route, is tried again at once."""
    with transaction.atomic():
        route = _locked(route_id, channel, identity)
        change_locked(route, fields, identity)
    return route


def delete(route_id: int, channel: Channel, identity: Identity) -> None:
    """Delete a route with its deliveries."""
    with transaction.atomic():
        delete_locked(_locked(route_id, channel, identity))


def send_test(route_id: int, channel: Channel, identity: Identity) -> int:
    """Queue a message for this route, which is sent at once. Return its delivery. 409 for a route that is off."""
    with transaction.atomic():
        return send_test_locked(_locked(route_id, channel, identity), identity)


def change_locked(route: Route, fields: Mapping[str, Any], identity: Identity) -> None:
    """Change fields of a route that the caller has locked and may change."""
    before = _facts(route)
    _set(route, fields, identity)
    route.version += 1
    route.retry_at, route.failures, route.failing_since, route.problem = timezone.now(), 0, None, ""
    route.save()
    if not route.is_enabled:
        drop_pending(route.pk, "the route was turned off")
    elif "target" in fields:
        retry_now(route.pk)
    changed_target = {"target": "changed"} if "target" in fields else {}
    log.record(f"{_noun(route)}.change", subject(route), before, {**_facts(route), **changed_target})


def delete_locked(route: Route) -> None:
    """Delete a route that the caller has locked and may delete."""
    log.record(f"{_noun(route)}.delete", subject(route), _facts(route), None)
    route.delete()


def send_test_locked(route: Route, identity: Identity) -> int:
    """Queue a message for a route that the caller has locked and may test."""
    if not route.is_enabled:
        raise Problem(409, "wrong_state", f"{subject(route)} is off", next_step="enable it first")
    text = f"{identity.username} tests {subject(route)}: it works."
    [row] = query(_TEST, [route.tenant_id, route.user_id, as_json({"text": text}), route.pk])
    log.record(f"{_noun(route)}.test", subject(route), None, {"delivery": row["id"]})
    return int(row["id"])


def rotate_secret(route_id: int, identity: Identity) -> tuple[Route, str]:
    """Replace the secret of a webhook; both sign for ROTATION_HOURS. Return the route and the new secret."""
    with transaction.atomic():
        route = _locked(route_id, Channel.WEBHOOK, identity)
        secret = signing.new_secret()
        route.sealed_previous_secret = route.sealed_secret
        route.previous_secret_until = timezone.now() + timedelta(hours=ROTATION_HOURS)
        route.sealed_secret = targets.seal(secret)
        route.version += 1
        route.save()
        until = rfc3339(route.previous_secret_until)
        log.record("webhook.rotate_secret", subject(route), None, {"previous_secret_until": until})
    return route, secret


def find(route_id: int, channel: Channel | None, identity: Identity) -> Route:
    """Return a route that the caller sees: their own, or one of a tenant of theirs. 404 otherwise."""
    route = Route.objects.select_related("tenant").filter(pk=route_id).first()
    noun = f"{'webhook' if channel == Channel.WEBHOOK else 'route'} {route_id}"
    if route is None or channel not in (None, route.channel):
        raise not_found(noun)
    if route.tenant_id is not None:
        identity.require(Role.MEMBER, route.tenant_id, noun)
    elif not _sees(route, identity):
        raise not_found(noun)
    return route


def visible(channel: Channel | None, tenant_id: int | None, identity: Identity) -> list[Route]:
    """Return the routes that the caller sees, by id. `tenant_id`: only those of this tenant."""
    routes = Route.objects.select_related("tenant").order_by("id")
    if channel is not None:
        routes = routes.filter(channel=channel)
    if tenant_id is not None:
        routes = routes.filter(tenant_id=tenant_id)
    elif not identity.is_admin:
        routes = routes.filter(tenant_id__in=sorted(identity.roles)) | routes.filter(user_id=identity.user_id)
    else:
        routes = routes.filter(tenant__isnull=False) | routes.filter(user_id=identity.user_id)
    return [route for route in routes.distinct() if _sees(route, identity)]


def represent(routes: Sequence[Route]) -> list[dict[str, Any]]:
    """Return routes as REST shows them: no target and no secret."""
    counts = {row["route_id"]: row for row in query(_COUNTED, [[route.pk for route in routes]])} if routes else {}
    return [
        {
            "id": route.pk,
            **_facts(route),
            "pending": counts.get(route.pk, {}).get("pending", 0),
            "failed": counts.get(route.pk, {}).get("failed", 0),
            "problem": route.problem,
            "failing_since": rfc3339(route.failing_since),
            "last_sent_at": rfc3339(route.last_sent_at),
            "version": route.version,
            "created_by": route.created_by,
            "created_at": rfc3339(route.created_at),
        }
        for route in routes
    ]


def _set(route: Route, fields: Mapping[str, Any], identity: Identity) -> None:
    """Set and check fields. 400 for each wrong one."""
    values = dict(fields)
    if (target := values.pop("target", None)) is not None:
        route.target_shown = targets.check(route.channel, target, "url" if _is_webhook(route) else "target")
        route.sealed_target = targets.seal(target)
    for name, value in values.items():
        if name in _QUIET and isinstance(value, str) and not _WITHOUT_OFFSET.fullmatch(value):
            # Django would drop an offset without a word.
            raise invalid([FieldError(name, "invalid", "must be a time like 22:00, in the time zone of the route")])
        setattr(route, name, value)
    if Kind.INCIDENT in route.kinds and not (route.user_id and identity.can_administer):
        message = "only an admin's own route gets incidents: they name jobs of all tenants"
        raise invalid([FieldError("kinds", "not_permitted", message)])
    try:
        route.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        errors = [FieldError(_field(name), "invalid", text) for name, texts in error.message_dict.items()
                  for text in texts]  # fmt: skip
        raise invalid(errors) from error
    route.kinds = sorted(set(route.kinds))


def _field(name: str) -> str:
    return {"is_enabled": "enabled"}.get(name, name)


def require_change(route_id: int, identity: Identity, channel: Channel | None = None) -> Route:
    """Return a route that the caller may change: their own, or one of a tenant that they own. 403 or 404 otherwise."""
    route = find(route_id, channel, identity)
    _require_owner(route.tenant, identity)
    return route


def _locked(route_id: int, channel: Channel, identity: Identity) -> Route:
    require_change(route_id, identity, channel)
    return lock(route_id)


def lock(route_id: int) -> Route:
    """Return a route, locked, whoever may change it. 404 if there is none."""
    locked = Route.objects.select_for_update(of=("self",)).select_related("tenant").filter(pk=route_id).first()
    if locked is None:
        raise not_found(f"route {route_id}")
    return locked


def _sees(route: Route, identity: Identity) -> bool:
    if route.tenant_id is not None:
        return identity.has(Role.MEMBER, route.tenant_id)
    return route.user_id == identity.user_id and identity.limited_to is None


def _require_owner(tenant: Tenant | None, identity: Identity) -> None:
    """Raise 403 unless the caller owns the tenant; without a tenant, unless the token reaches all of the caller's."""
    if tenant is not None:
        identity.require(Role.OWNER, tenant.pk, f"tenant '{tenant.name}'")
    elif identity.limited_to is not None:
        detail = "this token is limited to one tenant, and your own routes get notices of all your tenants"
        raise Problem(403, "not_permitted", detail, next_step="name its tenant, or use another token")


def _lock_owner(route: Route) -> None:
    """Serialize the creation of routes of one owner, so that two cannot both take the last place."""
    number = route.tenant_id if route.tenant_id is not None else -int(route.user_id or 0)
    execute("SELECT pg_advisory_xact_lock(%s, hashint8(%s))", [Lock.NOTIFICATION_ROUTES, number])


def _of_owner(route: Route) -> Any:
    owner = {"user_id": route.user_id} if route.tenant_id is None else {"tenant_id": route.tenant_id}
    return Route.objects.filter(**owner)


def _is_webhook(route: Route) -> bool:
    return route.channel == Channel.WEBHOOK


def _noun(route: Route) -> str:
    return "webhook" if _is_webhook(route) else "route"


def subject(route: Route) -> str:
    """Return the route's name for sentences and the audit log."""
    owner = route.tenant.name if route.tenant else route.created_by
    return f"{_noun(route)} {route.name} of {owner}"


def _facts(route: Route) -> dict[str, Any]:
    """Return the fields that people set, for answers and the audit log."""
    facts: dict[str, Any] = {
        "name": route.name,
        "tenant": route.tenant.name if route.tenant else None,
        "url" if _is_webhook(route) else "target": route.target_shown,
        "kinds": list(route.kinds),
        "enabled": route.is_enabled,
    }
    if _is_webhook(route):
        return {**facts, "previous_secret_until": rfc3339(route.previous_secret_until)}
    hours = {name: f"{moment:%H:%M}" if (moment := getattr(route, name)) else None for name in _QUIET}
    return {**facts, "time_zone": route.time_zone, **hours, "digest_minutes": route.digest_minutes}


_QUIET = ("quiet_from", "quiet_until")
_WITHOUT_OFFSET = re.compile(r"[0-9:.]*")
