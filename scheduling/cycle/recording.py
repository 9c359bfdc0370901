"""Recorded cycles as JSON files: the snapshot, the policy, the moment and the plan. No commands, no environments."""

from typing import NamedTuple

import msgspec

from scheduling.engine.model import Plan, Policy, Snapshot
from scheduling.engine.whatif.replay import Recording

FORMAT = 3
# Format 2 has no taints, tolerations or affinities: without them a plan is the same.
_READABLE = (2, FORMAT)


class _File(msgspec.Struct):
    format: int
    now: float
    policy: Policy
    snapshot: Snapshot
    plan: msgspec.Raw


class Read(NamedTuple):
    """`plan`: the recorded plan as it stands in the file, to be compared byte for byte; of an older format, as this
    format writes it."""

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
    if found.format not in _READABLE:
        readable = " and ".join(map(str, _READABLE))
        raise ValueError(f"this recording has format {found.format}; this version reads {readable}")
    # What an older format does not have is there by its default, so that the plan can be compared.
    written = bytes(found.plan) if found.format == FORMAT else encode_plan(plan)
    return Read(Recording(found.now, found.policy, found.snapshot, plan), written)
