"""The scheduling policy: first as the environment says, then as admins set it; edits are kept with who made them."""

import itertools
from collections.abc import Mapping
from typing import Any

import pghistory
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.audit import log
from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import execute, prepared
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError
from scheduling.engine.model import Policy
from scheduling.models import SchedulingPolicy
from tenants.billing import ledger

# The fields that admins may edit; those of the environment have the same names in capitals.
FIELDS = (
    "policy",
    "aging_points_per_minute",
    "usage_half_life_days",
    "usage_window_minutes",
    "dynamic_share_bound",
    "cost_by_model",
    "online_percent",
    "enable_gang_scheduling",
    "enable_preemption",
    "min_runtime_seconds",
    "preemption_delay_seconds",
    "enable_thermal_aware",
    "thermal_threshold_celsius",
    "thermal_moves",
    "thermal_move_minutes",
    "held_idle_policy",
    "held_idle_percent",
    "held_idle_minutes",
    "held_idle_interactive_minutes",
    "held_idle_grace_minutes",
    "member_extend_minutes",
    "load_threshold",
    "load_threshold_shared",
)


def policy() -> Policy:
    """As it stands now. A change takes effect in the next cycle."""
    return as_engine(values())


def values() -> dict[str, Any]:
    """The fields, with `version`: 0 as long as nobody has edited them."""
    found = prepared("SELECT * FROM scheduling_schedulingpolicy WHERE version > 0")
    return found[0] if found else {**env_defaults(), "version": 0}


def env_defaults() -> dict[str, Any]:
    blank = SchedulingPolicy()
    return {name: getattr(settings.ENV, name, getattr(blank, name)) for name in FIELDS}


def as_engine(fields: Mapping[str, Any]) -> Policy:
    return Policy(
        name=fields["policy"],
        aging_points_per_minute=fields["aging_points_per_minute"],
        usage_half_life_seconds=fields["usage_half_life_days"] * 86400.0,
        load_ceiling=fields["load_threshold"],
        load_ceiling_shared=fields["load_threshold_shared"],
        gangs=fields["enable_gang_scheduling"],
        preemption=fields["enable_preemption"],
        min_runtime_seconds=fields["min_runtime_seconds"],
        preemption_delay_seconds=fields["preemption_delay_seconds"],
        online_percent=fields["online_percent"],
        thermal=fields["enable_thermal_aware"],
        window_seconds=fields["usage_window_minutes"] * 60.0,
        cost_by_model=tuple(sorted((model, float(cost)) for model, cost in fields["cost_by_model"].items())),
        dynamic_share_bound=fields["dynamic_share_bound"],
    )


def editable_row() -> SchedulingPolicy:
    """The one row, for editors that need one: as the environment says if nobody has edited it yet (version 0)."""
    found, _ = SchedulingPolicy.objects.get_or_create(pk=1, defaults=env_defaults())
    first = {} if found.version else env_defaults()
    if any(getattr(found, name) != value for name, value in first.items()):
        for name, value in first.items():
            setattr(found, name, value)
        found.save(force_update=True)
    return found


def change(changes: Mapping[str, Any], *, actor: str, expected_version: int | None = None) -> dict[str, Any]:
    """Sets what is given, and wakes a cycle. 400 for values that are wrong or would do nothing; with
    `expected_version`, 412 if somebody else changed the policy in the meantime. An edit that changes nothing writes
    nothing."""
    with transaction.atomic(), pghistory.context(actor=actor, via="change_policy"):
        new, differing = validated(changes, expected_version=expected_version)
        if differing:
            save(new)
    return values()


def validated(
    changes: Mapping[str, Any], *, expected_version: int | None = None
) -> tuple[SchedulingPolicy, dict[str, Any]]:
    """The row as it would be, not saved, and what differs from now; inside a transaction. Raises as `change` does."""
    execute("LOCK TABLE scheduling_schedulingpolicy IN SHARE ROW EXCLUSIVE MODE")
    shown = values()["version"]
    new = SchedulingPolicy.objects.filter(version__gt=0).first() or SchedulingPolicy(pk=1, **env_defaults())
    if expected_version is not None and shown != expected_version:
        raise Problem(
            412,
            "version_conflict",
            f"the policy was changed meanwhile (it is at version {shown}, not {expected_version})",
            next_step="read it again and repeat the change",
        )
    differing = {name: value for name, value in changes.items() if getattr(new, name) != value}
    for name, value in differing.items():
        setattr(new, name, value)
    try:
        new.full_clean()
        new.require_effect(differing)
    except ValidationError as error:
        raise invalid(
            [FieldError(field, "invalid", text) for field, texts in _texts(error) for text in texts]
        ) from error
    return new, differing


def save(new: SchedulingPolicy) -> None:
    """Keeps an edit; inside a transaction. The history begins with what the environment said."""
    editable_row()
    before = values()
    if before["usage_half_life_days"] != new.usage_half_life_days:
        ledger.rebase_balances()
    new.version += 1
    new.save(force_update=True)
    after = {name: getattr(new, name) for name in FIELDS}
    log.record("policy.change", "scheduling policy", {name: before[name] for name in FIELDS}, after)
    events.changed("tenants", [])
    wake.request_cycle()


def history(limit: int, before: int | None = None) -> list[dict[str, Any]]:
    """Edits, newest first: when, who, and what was set to what; those that made a version older than `before`."""
    kept = SchedulingPolicy.pgh_event_models["update"].objects  # type: ignore[attr-defined]
    older = kept.all() if before is None else kept.filter(version__lt=before)
    events_found = list(older.select_related("pgh_context").order_by("-pgh_id")[: limit + 1])
    return [
        {
            "at": rfc3339(event.pgh_created_at),
            "by": (event.pgh_context.metadata if event.pgh_context else {}).get("actor", ""),
            "version": event.version,
            "changes": {
                name: {"from": getattr(before, name), "to": getattr(event, name)}
                for name in FIELDS
                if getattr(before, name) != getattr(event, name)
            },
        }
        for event, before in itertools.pairwise(events_found)
        if event.version
    ]


def _texts(error: ValidationError) -> list[tuple[str, list[str]]]:
    if not hasattr(error, "error_dict"):
        return [("", error.messages)]
    return [(field.replace("__all__", ""), texts) for field, texts in error.message_dict.items()]
