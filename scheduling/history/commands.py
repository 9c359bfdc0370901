"""The command of a job, by which its runs are recognised."""

from collections.abc import Mapping, Sequence
from typing import Any


def command_of(payload: Mapping[str, Any]) -> Sequence[str]:
    """Return the words of a job's command; of a script, its text as the program of a shell."""
    if payload.get("script"):
        return ("sh", "-c", payload["script"])
    return (*(payload.get("command") or ()), *(payload.get("args") or ()))
