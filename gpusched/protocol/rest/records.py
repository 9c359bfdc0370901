"""The server's answers from its records, as structs: the audit log, incidents, and stored readings of devices."""

from datetime import datetime
from typing import Any

import msgspec

from gpusched.protocol.rest.jobs import Page


class AuditEntry(msgspec.Struct, kw_only=True):
    """A change: its author (`actor`), its channel (`via`: page, admin, token …) and program (`agent`), and its object
    (`subject`, like `quota nlp`). `before` and `after` contain only differences; None: the object did not exist."""

    id: int
    at: datetime
    actor: str = ""
    via: str = ""
    agent: str = ""
    request_id: str = ""
    action: str = ""
    subject: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


class Incident(msgspec.Struct, kw_only=True):
    """A fault of a node, or of one of its devices (`gpu`: its number); it is open while `until` is None."""

    id: int
    node: str = ""
    gpu: int | None = None
    uuid: str | None = None
    device_id: int | None = None
    kind: str = ""
    cause: str = ""
    since: datetime | None = None
    until: datetime | None = None


class Sample(msgspec.Struct, kw_only=True):
    """A stored reading of a device; None is unknown. `cell`: the GPU's status (busy, held_idle, free, unavailable) in
    the `seconds` up to `at`."""

    at: datetime
    cell: str = ""
    seconds: float = 0.0
    utilisation_percent: float | None = None
    memory_used_mb: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None


class Rollup(msgspec.Struct, kw_only=True):
    """The samples of the five minutes from `at` on: minimum, mean and maximum of each reading."""

    at: datetime
    samples: int = 0
    held_seconds: float = 0.0
    busy_seconds: float = 0.0
    utilisation_min: float | None = None
    utilisation_mean: float | None = None
    utilisation_max: float | None = None
    memory_min: float | None = None
    memory_mean: float | None = None
    memory_max: float | None = None
    temperature_min: float | None = None
    temperature_mean: float | None = None
    temperature_max: float | None = None
    power_min: float | None = None
    power_mean: float | None = None
    power_max: float | None = None


class SamplePage(Page[Sample], kw_only=True):
    """Stored readings of a device, oldest first, of `resolution` raw."""

    resolution: str


class RollupPage(Page[Rollup], kw_only=True):
    """Roll-ups of a device, oldest first, of `resolution` 5m."""

    resolution: str
