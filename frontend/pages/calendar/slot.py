"""The next free slot for a shape: the fields of its form, and the answer."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from frontend.ui.page import refusal
from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.reservations import MAX_GPUS
from scheduling.reservations import booking, create
from scheduling.reservations.choice import Shape
from tenants.auth.identity import Identity


def form(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the form: as sent, or the first shape to ask for."""
    return {
        "gpus": values.get("gpus", "1"),
        "hours": values.get("hours", "2"),
        "model": values.get("model", ""),
        "models": _models(),
        "several": values.get("several") == "on",
    }


def next_slot(values: Mapping[str, str], identity: Identity) -> dict[str, Any]:
    """Return the next free slot of the requested shape, or why there is none."""
    if "gpus" not in values:
        return {}
    try:
        requested, seconds = shape(values)
        slot = booking.find_slot(create.wish_of(requested, None, seconds))
    except Problem as problem:
        return {"slot_problem": refusal(problem)}
    if slot is None:
        return {"slot_problem": "No free slot is known: jobs without a time limit hold too many of these GPUs."}
    starts_at = datetime.fromtimestamp(slot.starts_at, UTC)
    return {
        "slot": {
            "starts_at": starts_at,
            "from": "" if slot.blocker is None else rfc3339(starts_at),
            "nodes": booking.node_names(slot.devices),
            "blocker": booking.describe_blocker(slot.blocker, identity) if slot.blocker else "",
        }
    }


def shape(values: Mapping[str, str]) -> tuple[Shape, int]:
    """Return the shape and the seconds of a form. 400 for wrong numbers."""
    try:
        gpus, hours = int(values.get("gpus", "")), float(values.get("hours", ""))
    except ValueError:
        raise invalid([FieldError("gpus", "invalid", "enter numbers of GPUs and hours")]) from None
    if not 1 <= gpus <= MAX_GPUS:
        raise invalid([FieldError("gpus", "out_of_range", f"must be between 1 and {MAX_GPUS}")])
    if not 0 < hours <= 31 * 24:
        raise invalid([FieldError("hours", "out_of_range", "must be more than 0 and at most 744")])
    model = str(values.get("model", "")).strip()
    return Shape(gpus, (model,) if model else (), one_node=values.get("several") != "on"), round(hours * 3600)


def _models() -> list[str]:
    rows = query("SELECT DISTINCT model FROM nodes_devices d JOIN nodes_all n ON n.id = d.node_id"
                 " WHERE n.removed_at IS NULL ORDER BY model")  # fmt: skip
    return [row["model"] for row in rows]
