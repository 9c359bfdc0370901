"""Check which directories of the node a job in a container may mount: only those on or below the allow-list."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

# Runtimes would misread the text after one of these in a path.
_SPLITTING = frozenset(":,\n\r\0")
_RESOLVE_SECONDS = 10.0


class NotAllowed(Exception):
    """This node refuses a mount. The text is a sentence that lists the allowed directories."""


def binds(mounts: Sequence[str], allowed: Sequence[str], account: Mapping[str, Any] | None = None) -> list[str]:
    """Return `SOURCE:TARGET[:ro]` for the runtime, from the job's mounts `SOURCE:TARGET[:ro|:rw]`. Raises NotAllowed.

    Links in a source are resolved first, with the rights of the job's user (`account`: uid, gid, groups; None: the
    agent's own): a container must not open directories that are closed to that user."""
    return [_bind(mount, allowed, account) for mount in mounts]


def _bind(mount: str, allowed: Sequence[str], account: Mapping[str, Any] | None) -> str:
    source, target, mode = [*mount.split(":"), ""][:3]
    real = os.path.realpath(source) if account is None else _resolved(source, account)
    modes = {entry.endswith(":ro") for entry in allowed if _is_within(real, entry.removesuffix(":ro"))}
    may_write = False in modes
    if not modes or (mode == "rw" and not may_write):
        among = ", ".join(allowed) or "nothing"
        raise NotAllowed(f"mount {mount} is not allowed on this node; allowed: {among}")
    if not os.path.exists(real):
        raise NotAllowed(f"mount {mount}: {source} does not exist on this node")
    if not _SPLITTING.isdisjoint(real + target):
        raise NotAllowed(f"mount {mount}: {real!r} or its target contains a colon, comma or line break")
    return f"{real}:{target}" if may_write and mode != "ro" else f"{real}:{target}:ro"


def _resolved(source: str, account: Mapping[str, Any]) -> str:
    """Return the real path with the access rights of the job's user. Runs in a child process: all threads of this one
    have the agent's rights."""
    try:
        result = subprocess.run(
            ["realpath", "-e", "-z", "--", source], user=account["uid"], group=account["gid"],
            extra_groups=list(account["groups"]), capture_output=True, stdin=subprocess.DEVNULL, cwd="/", check=False,
            timeout=_RESOLVE_SECONDS,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise NotAllowed(f"mount {source} cannot be checked: {error}") from error
    if result.returncode != 0:
        raise NotAllowed(f"mount {source} does not exist on this node, or is not readable for uid {account['uid']}")
    return os.fsdecode(result.stdout.rstrip(b"\0"))


def _is_within(real: str, entry: str) -> bool:
    top = os.path.realpath(entry)
    return os.path.commonpath([real, top]) == top
