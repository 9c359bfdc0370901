"""Keeps what is told of a job from naming the job of another tenant that it was stopped for."""

from collections.abc import Mapping
from typing import Any

ANOTHER = "a job of another tenant"
_NUMBER = "by_job"


def redact_preemptor(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence for jobs of other tenants: its number stays, for the machinery alone."""
    return {**evidence, "by": ANOTHER}


def visible_evidence(evidence: Mapping[str, Any], *, is_admin: bool = False) -> dict[str, Any]:
    """Evidence of a reason, or the data of an event, as people may read it; admins may read which job it was."""
    hidden = _NUMBER if evidence.get("by") == ANOTHER and not is_admin else None
    return {name: value for name, value in evidence.items() if name != hidden}
