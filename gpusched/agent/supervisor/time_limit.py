"""The time limit of one rank, as it was told at first and as it was changed later, and the file that tells its job when
that is. Standard library only."""

import contextlib
from datetime import datetime
from pathlib import Path
from typing import Any

from gpusched.agent.rank_files import rank_dir


def change(directory: Path, version: int, seconds: int) -> bool:
    """Writes down a limit in seconds from the start; False if as new a one is known. The supervisor is to be woken
    then. OSError of a full disk: it is told again."""
    if version <= known(directory):
        return False
    rank_dir.write(directory, rank_dir.LIMIT, {"version": version, "max_runtime_seconds": seconds}, durable=True)
    return True


def known(directory: Path) -> int:
    """The version of the limit that stands here: 0 for the one that the job was submitted with."""
    for name, field in ((rank_dir.LIMIT, "version"), (rank_dir.SPEC, "limit_version")):
        version = (rank_dir.read(directory, name) or {}).get(field, 0)
        if isinstance(version, int) and version > 0:
            return version
    return 0


def seconds(directory: Path, spec: dict[str, Any]) -> float | None:
    """How long the rank may run; None: without limit."""
    for told in (rank_dir.read(directory, rank_dir.LIMIT), spec):
        limit = (told or {}).get("max_runtime_seconds")
        if isinstance(limit, int | float) and limit > 0:
            return float(limit)
    return None


def write_deadline(directory: Path, spec: dict[str, Any], ends_at: datetime) -> None:
    """Writes when the limit is, for the job to read: `{"deadline_at": …}`."""
    with contextlib.suppress(OSError):  # a full disk must not keep a job from its limit
        fact = {"deadline_at": ends_at.isoformat()}
        rank_dir.write(directory, rank_dir.DEADLINE, fact, mode=0o644)  # the job may be another user's
        if box := spec.get("box"):
            rank_dir.write(box, rank_dir.DEADLINE, fact, mode=0o644)
