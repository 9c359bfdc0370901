"""Which directories of the node a job in a container may mount: those of the allow-list, and nothing above them."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

# Runtimes would take what stands after one of these in a path for something else.
_SPLITTING = frozenset(":,\n\r\0")
_RESOLVE_SECONDS = 10.0


class NotAllowed(Exception):
    """A mount that this node refuses, as a sentence that says what is allowed."""


def binds(wanted: Sequence[str], allowed: Sequence[str], account: Mapping[str, Any] | None = None) -> list[str]:
    """`SOURCE:TARGET[:ro]` as runtimes take it, of the job's mounts `SOURCE:TARGET[:ro|:rw]`. Raises NotAllowed.

    Links in a source are followed first, with the rights of the job's user (`account`: uid, gid, groups; None: the
    agent's own): what lies in a directory that is closed to them is closed in a container, too."""
    return [_bind(mount, allowed, account) for mount in wanted]


def _bind(mount: str, allowed: Sequence[str], account: Mapping[str, Any] | None) -> str:
    source, target, mode = [*mount.split(":"), ""][:3]
    real = os.path.realpath(source) if account is None else _resolved(source, account)
    modes = {entry.endswith(":ro") for entry in allowed if _is_within(real, entry.removesuffix(":ro"))}
    may_write = False in modes
    if not modes or (mode == "rw" and not may_write):
        among = ", ".join(allowed) or "nothing"
        raise NotAllowed(f"mount {mount} is not allowed on this node; allowed: {among}")
    if not os.path.exists(real):
        raise NotAllowed(f"mount {mount}: {source} is not there on this node")
    if not _SPLITTING.isdisjoint(real + target):
        raise NotAllowed(f"mount {mount}: a colon, comma or line break in {real!r} or its target")
    return f"{real}:{target}" if may_write and mode != "ro" else f"{real}:{target}:ro"


def _resolved(source: str, account: Mapping[str, Any]) -> str:
    """The real path, as the job's user finds it. Not in this process, whose threads all have the agent's rights."""
    try:
        done = subprocess.run(
            ["realpath", "-e", "-z", "--", source], user=account["uid"], group=account["gid"],
            extra_groups=list(account["groups"]), capture_output=True, stdin=subprocess.DEVNULL, cwd="/", check=False,
            timeout=_RESOLVE_SECONDS,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise NotAllowed(f"mount {source} cannot be looked at: {error}") from error
    if done.returncode != 0:
        raise NotAllowed(f"mount {source} is not there on this node, or closed to uid {account['uid']}")
    return os.fsdecode(done.stdout.rstrip(b"\0"))


def _is_within(real: str, entry: str) -> bool:
    top = os.path.realpath(entry)
    return os.path.commonpath([real, top]) == top
