"""The scheduling policy: from the environment until an admin edits it. Edits are recorded with their actor."""

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
from gpusched.protocol.rest.scheduling import PolicyFields
from scheduling.engine.model import Policy
from scheduling.models import SchedulingPolicy
from tenants.billing import ledger

# The editable fields; the variables of the environment have the same names in capitals.
FIELDS = PolicyFields.__struct_fields__


def policy() -> Policy:
    """Return the present policy. A change takes effect in the next cycle."""
    return as_engine(values())


def values() -> dict[str, Any]:
    """Return the fields, with `version`: 0 before the first edit."""
    rows = prepared("SELECT * FROM scheduling_schedulingpolicy WHERE version > 0")
    return rows[0] if rows else {**env_defaults(), "version": 0}


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
    """Return the row, for editors that need one. Before the first edit (version 0) it has the environment's values."""
    row, _ = SchedulingPolicy.objects.get_or_create(pk=1, defaults=env_defaults())
    first = {} if row.version else env_defaults()
    if any(getattr(row, name) != value for name, value in first.items()):
        for name, value in first.items():
            setattr(row, name, value)
        row.save(force_update=True)
    return row


def change(changes: Mapping[str, Any], *, actor: str, expected_version: int | None = None) -> dict[str, Any]:
    """Change fields and request a cycle. 400 for values that are wrong or without effect; 412 if the policy is not at
    `expected_version`. An edit without a change writes nothing."""
    with transaction.atomic(), pghistory.context(actor=actor, via="change_policy"):
        new, differing = validated(changes, expected_version=expected_version)
        if differing:
            save(new)
    return values()


def lock() -> None:
    """Let other edits wait until the end of this transaction."""
    execute("LOCK TABLE scheduling_schedulingpolicy IN SHARE ROW EXCLUSIVE MODE")


def validated(
    changes: Mapping[str, Any], *, expected_version: int | None = None
) -> tuple[SchedulingPolicy, dict[str, Any]]:
    """Return the unsaved row after an edit, and the differences. Inside a transaction. Raise the errors of `change`."""
    lock()
    version = values()["version"]
    new = SchedulingPolicy.objects.filter(version__gt=0).first() or SchedulingPolicy(pk=1, **env_defaults())
    if expected_version is not None and version != expected_version:
        raise Problem(
            412,
            "version_conflict",
            f"the policy was changed meanwhile (it is at version {version}, not {expected_version})",
            next_step="read it again and repeat the edit",
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
    """Save an edit, inside a transaction. The history begins with the environment's values."""
    editable_row()
    previous = values()
    if previous["usage_half_life_days"] != new.usage_half_life_days:
        ledger.rebase_balances()
    new.version += 1
    new.save(force_update=True)
    after = {name: getattr(new, name) for name in FIELDS}
    log.record("policy.change", "scheduling policy", {name: previous[name] for name in FIELDS}, after)
    events.changed("tenants")
    wake.request_cycle()


def history(limit: int, older_than: int | None = None) -> list[dict[str, Any]]:
    """Return edits, newest first: time, actor and changes. `older_than`: only edits before this version."""
    edits = SchedulingPolicy.pgh_event_models["update"].objects  # type: ignore[attr-defined]
    older = edits.all() if older_than is None else edits.filter(version__lt=older_than)
    events_found = list(older.select_related("pgh_context").order_by("-pgh_id")[: limit + 1])
    return [
        {
            "at": rfc3339(event.pgh_created_at),
            "by": (event.pgh_context.metadata if event.pgh_context else {}).get("actor", ""),
            "version": event.version,
            "changes": {
                name: {"from": getattr(previous, name), "to": getattr(event, name)}
                for name in FIELDS
                if getattr(previous, name) != getattr(event, name)
            },
        }
        for event, previous in itertools.pairwise(events_found)
        if event.version
    ]


def _texts(error: ValidationError) -> list[tuple[str, list[str]]]:
    if not hasattr(error, "error_dict"):
        return [("", error.messages)]
    return [(field.replace("__all__", ""), texts) for field, texts in error.message_dict.items()]
