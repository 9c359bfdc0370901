"""Recorded cycles as JSON files: the snapshot, the policy, the moment and the plan. No commands, no environments."""

from typing import NamedTuple

import msgspec

from scheduling.engine.model import Plan, Policy, Snapshot
from scheduling.engine.replay import Recording

FORMAT = 2


class _File(msgspec.Struct):
    format: int
    now: float
    policy: Policy
    snapshot: Snapshot
    plan: msgspec.Raw


class Read(NamedTuple):
    """`plan`: the recorded plan as it stands in the file, to be compared byte for byte."""

    recording: Recording
    plan: bytes


def encode(recording: Recording) -> bytes:
    plan = msgspec.Raw(encode_plan(recording.plan))
    return msgspec.json.encode(_File(FORMAT, recording.now, recording.policy, recording.snapshot, plan))


def encode_plan(plan: Plan) -> bytes:
    return msgspec.json.encode(plan)


def decode(content: bytes) -> Read:
    """Raises ValueError, with a sentence, for what is no recording of this format."""
    try:
        found = msgspec.json.decode(content, type=_File)
        plan = msgspec.json.decode(found.plan, type=Plan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"this is no recorded cycle: {error}") from error
    if found.format != FORMAT:
        raise ValueError(f"this recording has format {found.format}; this version reads {FORMAT}")
    return Read(Recording(found.now, found.policy, found.snapshot, plan), bytes(found.plan))
