"""Writes frontend/src/ui/constants.ts, the rules that the page's script needs as the server has them (`make rules`).

A test holds the file to this; there is no other copy of them in TypeScript."""

from pathlib import Path
from typing import Any

import msgspec

from frontend.pages.nodes import groups
from frontend.ui import formatting, wait_groups
from gpusched.protocol import job_actions, times
from gpusched.protocol.states import FINAL, LIVE, WAITING
from nodes.health import gpu_status

FILE = Path(__file__).resolve().parent / "src" / "ui" / "constants.ts"
_HEAD = """\
// The rules that the server and this script share, written by `make rules` from the server's own; never by hand.
/* eslint-disable */
"""


def text() -> str:
    """The whole file."""
    told: dict[str, tuple[str, Any]] = {
        "KINDS": ("as const", {"waiting": sorted(WAITING), "live": sorted(LIVE), "final": sorted(FINAL)}),
        "VERB_STATES": (_AS_VERBS, {verb: {"job": of[0], "array": of[1]} for verb, of in job_actions.STATES.items()}),
        "VERB_EXCEPT": ("as Readonly<Record<string, string>>", dict(job_actions.EXCEPT)),
        "FOR_ADMINS_ALWAYS": ("as readonly string[]", sorted(job_actions.FOR_ADMINS_ALWAYS)),
        "WAIT_GROUPS": ("as const", wait_groups.GROUPS),
        "WAIT_GROUP_OF": ("as Readonly<Record<string, (typeof WAIT_GROUPS)[number]>>", wait_groups.GROUP_OF),
        "WAIT_GROUP_ELSE": ("as const", wait_groups.GROUP_ELSE),
        "NODE_GROUPS": ("as const", [(key, heading) for key, _, heading in groups.GROUPS]),
        "CELLS": ("as const", gpu_status.GPU_STATUSES),
        "MOMENT": ("as const", times.MOMENT),
        "SHAPES": (
            "as Readonly<Record<string, string>>",
            {k.replace("_", "-"): v for k, v in formatting.STATE_SYMBOLS.items()},
        ),
    }
    return _HEAD + "".join(
        f"export const {name} = {msgspec.json.encode(value).decode()} {kind};\n" for name, (kind, value) in told.items()
    )


_AS_VERBS = "as Readonly<Record<string, { job: readonly string[]; array: readonly string[] }>>"


if __name__ == "__main__":
    FILE.write_text(text())
