"""Hide the preempting job's identity from other tenants."""

from collections.abc import Mapping
from typing import Any

ANOTHER = "a job of another tenant"
_NUMBER = "by_job"


def redact_preemptor(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evidence for jobs of other tenants. The preempting job's id stays in it, and only admins read it."""
    return {**evidence, "by": ANOTHER}


def visible_evidence(evidence: Mapping[str, Any], *, is_admin: bool = False) -> dict[str, Any]:
    """Return the evidence of a reason, or the data of an event, as the viewer may read it. Admins see the job's id."""
    hidden = _NUMBER if evidence.get("by") == ANOTHER and not is_admin else None
    return {name: value for name, value in evidence.items() if name != hidden}
