"""Which directories of the node a job in a container may mount: those of the allow-list, and nothing above them."""

import os
from collections.abc import Sequence


class NotAllowed(Exception):
    """A mount that this node refuses, as a sentence that says what is allowed."""


def binds(wanted: Sequence[str], allowed: Sequence[str]) -> list[str]:
    """`SOURCE:TARGET[:ro]` as runtimes take it, of the job's mounts `SOURCE:TARGET[:ro|:rw]`. Raises NotAllowed.

    Links in a source are followed first. A link that is put there afterwards gains nothing: in the container the job
    has the rights of its user, as outside of it."""
    return [_bind(mount, allowed) for mount in wanted]


def _bind(mount: str, allowed: Sequence[str]) -> str:
    source, target, mode = [*mount.split(":"), ""][:3]
    real = os.path.realpath(source)
    modes = {entry.endswith(":ro") for entry in allowed if _is_within(real, entry.removesuffix(":ro"))}
    may_write = False in modes
    if not modes or (mode == "rw" and not may_write):
        among = ", ".join(allowed) or "nothing"
        raise NotAllowed(f"mount {mount} is not allowed on this node; allowed: {among}")
    if not os.path.exists(real):
        raise NotAllowed(f"mount {mount}: {source} is not there on this node")
    return f"{real}:{target}" if may_write and mode != "ro" else f"{real}:{target}:ro"


def _is_within(real: str, entry: str) -> bool:
    top = os.path.realpath(entry)
    return os.path.commonpath([real, top]) == top
