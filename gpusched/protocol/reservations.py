"""The request for a reservation: its fields, its defaults, and every check that needs no database."""

from typing import Literal

import msgspec

from gpusched.protocol import gpu_models
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.labels import LABEL_RULE, MAX_LABELS, is_label, is_value

MAX_GPUS, MIN_SECONDS, MAX_SECONDS, MAX_NOTE = 100_000, 60, 31 * 86400, 200


class NewReservation(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """GPUs for a tenant `from` (default: now) `until` a time or `for_seconds`. `users`: only they may use it; empty:
    all of the tenant. `gpu_memory_mb`: the least memory of each GPU. `one_node` false: they may be on several nodes. A
    `soft` reservation is a preference that costs nothing. `source` null: admin or user. `lease`: it begins now."""

    tenant: str | None = None
    users: list[str] = []
    gpus: int
    gpu_model: str | None = None
    gpu_memory_mb: int | None = None
    node_selector: dict[str, str] = {}
    one_node: bool = True
    from_: str | None = None
    until: str | None = None
    for_seconds: int | None = None
    recurrence: Literal["daily", "weekly"] | None = None
    kind: Literal["hard", "soft"] = "hard"
    source: Literal["admin", "user", "agent", "prewarm"] | None = None
    confidence: float | None = None
    note: str = ""
    lease: bool = False

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """`"A100|H100"` as a tuple; empty means any model."""
        return gpu_models.alternatives(self.gpu_model)


def validate(request: NewReservation) -> list[FieldError]:
    """Return all problems of a request that its types do not catch; empty for a valid one."""
    problems = _shape_problems(request)
    if (request.until is None) == (request.for_seconds is None):
        problems.append(FieldError("until", "required", "set either this or for_seconds"))
    if request.for_seconds is not None and not MIN_SECONDS <= request.for_seconds <= MAX_SECONDS:
        problems.append(
            FieldError("for_seconds", "out_of_range", f"must be between {MIN_SECONDS} and {MAX_SECONDS} (31 days)")
        )
    if request.confidence is not None and not 0 <= request.confidence <= 1:
        problems.append(FieldError("confidence", "out_of_range", "must be between 0 and 1"))
    if len(request.note) > MAX_NOTE or "\x00" in request.note:
        problems.append(FieldError("note", "invalid", f"at most {MAX_NOTE} characters, without NUL"))
    if request.lease and (request.from_ is not None or request.recurrence or request.kind != "hard"):
        problems.append(FieldError("lease", "conflict", "a lease is hard, begins now and does not recur"))
    return problems


def _shape_problems(request: NewReservation) -> list[FieldError]:
    problems = []
    if not 1 <= request.gpus <= MAX_GPUS:
        problems.append(FieldError("gpus", "out_of_range", f"must be between 1 and {MAX_GPUS}"))
    if request.gpu_memory_mb is not None and not 1 <= request.gpu_memory_mb <= 100_000_000:
        problems.append(FieldError("gpu_memory_mb", "out_of_range", "must be between 1 and 100000000"))
    if len(request.gpu_model or "") > 200 or not gpu_models.is_gpu_model(request.gpu_model):
        problems.append(FieldError("gpu_model", "invalid", f"at most 200 characters: {gpu_models.RULE}"))
    bad = [name for name, value in request.node_selector.items() if not is_label(name) or not is_value(value)]
    if bad or len(request.node_selector) > MAX_LABELS:
        problems.append(FieldError("node_selector", "invalid_label", f"at most {MAX_LABELS} {LABEL_RULE}"))
    return problems
