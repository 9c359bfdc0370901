"""The time limit of one rank, original or changed later, and the file with its deadline for the job. Standard library
only."""

import contextlib
from datetime import datetime
from typing import Any

from gpusched.agent.rank_files import rank_dir


def change(directory: rank_dir.Directory, version: int, seconds: int) -> bool:
    """Write a limit in seconds from the start; return False if the current one is as new. Wake the supervisor
    afterwards. OSError on a full disk: the server repeats the limit."""
    if version <= version_of(directory):
        return False
    rank_dir.write(directory, rank_dir.LIMIT, {"version": version, "max_runtime_seconds": seconds}, durable=True)
    return True


def version_of(directory: rank_dir.Directory) -> int:
    """Return the version of the current limit: 0 for the one of submission."""
    for name, field in ((rank_dir.LIMIT, "version"), (rank_dir.SPEC, "limit_version")):
        version = (rank_dir.read(directory, name) or {}).get(field, 0)
        if isinstance(version, int) and version > 0:
            return version
    return 0


def seconds(directory: rank_dir.Directory, spec: dict[str, Any]) -> float | None:
    """Return the longest run time of the rank; None: no limit."""
    for fact in (rank_dir.read(directory, rank_dir.LIMIT), spec):
        limit = (fact or {}).get("max_runtime_seconds")
        if isinstance(limit, int | float) and limit > 0:
            return float(limit)
    return None


def write_deadline(directory: rank_dir.Directory, spec: dict[str, Any], ends_at: datetime) -> None:
    """Write the deadline for the job to read: `{"deadline_at": …}`."""
    with contextlib.suppress(OSError):  # a full disk must not disable the limit
        fact = {"deadline_at": ends_at.isoformat()}
        rank_dir.write(directory, rank_dir.DEADLINE, fact, mode=0o644)  # the job may be another user's
        if box := spec.get("box"):
            rank_dir.write(box, rank_dir.DEADLINE, fact, mode=0o644)
