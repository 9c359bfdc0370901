"""Encode and decode recorded cycles as JSON: snapshot, policy, time and plan, without commands and environments."""

from typing import NamedTuple

import msgspec

from scheduling.engine.model import Plan, Policy, Snapshot
from scheduling.engine.whatif.replay import Recording

FORMAT = 4
# Format 2 has no taints, tolerations or affinities, format 3 no bookings: without them a plan is the same.
_READABLE_FORMATS = (2, 3, FORMAT)


class _File(msgspec.Struct):
    format: int
    now: float
    policy: Policy
    snapshot: Snapshot
    plan: msgspec.Raw


class RecordedCycle(NamedTuple):
    """A decoded recording. `plan`: the recorded plan as in the file, for comparison byte by byte; an older format is
    converted to this one."""

    recording: Recording
    plan: bytes


def encode(recording: Recording) -> bytes:
    plan = msgspec.Raw(encode_plan(recording.plan))
    return msgspec.json.encode(_File(FORMAT, recording.now, recording.policy, recording.snapshot, plan))


def encode_plan(plan: Plan) -> bytes:
    return msgspec.json.encode(plan)


def decode(content: bytes) -> RecordedCycle:
    """Decode a recording. Raise ValueError, with a sentence, for anything else."""
    try:
        file = msgspec.json.decode(content, type=_File)
        plan = msgspec.json.decode(file.plan, type=Plan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"this is not a recorded cycle: {error}") from error
    if file.format not in _READABLE_FORMATS:
        readable = ", ".join(map(str, _READABLE_FORMATS))
        raise ValueError(f"this recording has format {file.format}; this version reads {readable}")
    # Fields that an older format lacks have their defaults, so that the plan can be compared.
    written = bytes(file.plan) if file.format == FORMAT else encode_plan(plan)
    return RecordedCycle(Recording(file.now, file.policy, file.snapshot, plan), written)
