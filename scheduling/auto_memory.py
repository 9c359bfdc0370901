"""Choose the GPU memory of jobs that leave it to the server (`gpu_memory_mb: "auto"`), and advise others on theirs."""

from collections.abc import Hashable, Sequence
from math import floor
from typing import Any

from django.conf import settings

from gpusched.lib.db.sql import rows
from gpusched.protocol.job_request import JobRequest
from scheduling.engine.board.shapes import is_model
from scheduling.history.commands import command_of
from scheduling.history.memory_needs import memory_need, peak_sentence
from scheduling.history.shown import kind_of_row
from scheduling.policy import policy
from scheduling.prediction.keys import JobKind
from scheduling.prediction.memory import MemoryNeed, memory_keys
from scheduling.prediction.templates import label_of
from tenants.auth.identity import Identity

_LARGEST = """
    SELECT d.model, max(d.memory_mb) FROM nodes_devices d JOIN nodes_all n ON n.id = d.node_id
     WHERE d.memory_mb > 0 AND n.removed_at IS NULL GROUP BY d.model
"""
_WHOLE = "so it gets whole GPUs of any size"
# A request of more than this many times the advised memory keeps other jobs from starting.
TOO_MUCH = 2.0
_FIELDS = (("gpu", "gpu_memory_mb", "of each GPU"), ("host", "memory_mb", "of the node"))


def choose(
    request: JobRequest, tenant_id: int, identity: Identity, choices: dict[Hashable, dict[str, Any]]
) -> dict[str, Any]:
    """Return the choice for a request (jobs/submit/auto_memory.py): the highest peak of the user's earlier runs of the
    program with a margin, and more than what was too little, but at most what a suitable GPU has. None, for whole GPUs,
    without such runs. `choices`: those made before, by program and shape."""
    command = command_of({"command": request.command, "args": request.args, "script": request.script})
    kind = JobKind.of(tenant_id, identity.user_id, command, request.gpu_count, request.gpu_models)
    key = (*memory_keys(kind, "gpu"), request.gpu_models, request.gpu_sharing, label_of(command))
    if key not in choices:
        need = memory_need(kind, "gpu") if settings.ENV.predictions else None
        choices[key] = _choice(need, request, f"{identity.username}'s", label_of(command))
    return choices[key]


def _choice(need: MemoryNeed | None, request: JobRequest, owner: str, label: str) -> dict[str, Any]:
    if need is None:
        why = f"{owner} earlier runs of {label} are too few" if settings.ENV.predictions else "predictions are off"
        return {"gpu_memory_mb": None, "n": 0, "source": f"{why}, {_WHOLE}"}
    value, limit = _within_largest(need, request)
    return {"gpu_memory_mb": value, "n": need.runs, "source": peak_sentence(need, owner, "of each GPU", label) + limit}


def _within_largest(need: MemoryNeed, request: JobRequest) -> tuple[int, str]:
    """Return the advised memory of each GPU, at most what a suitable GPU can give, and the words that say so."""
    largest = largest_gpu_mb(request.gpu_models, is_shared=request.gpu_sharing == "shared")
    if largest is not None and largest < need.advised_mb:
        return largest, "; no suitable GPU has more"
    return need.advised_mb, ""


def advice(request: JobRequest, row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the submitter should change: requests of too little or far too much memory."""
    if not settings.ENV.predictions:
        return []
    kind, label = kind_of_row(row), label_of(command_of(row["payload"]))
    items = []
    for resource, field, where in _FIELDS:
        need = memory_need(kind, resource)
        requested = getattr(request, field) or 0
        if need is None or (resource == "gpu" and not request.gpu_count):
            continue
        value, limit = _within_largest(need, request) if resource == "gpu" else (need.advised_mb, "")
        if value > requested or requested > TOO_MUCH * value:
            sentence = f"{peak_sentence(need, 'your', where, label)}: request {field} {value}{limit}"
            items.append({"field": field, "value": value, "n": need.runs, "sentence": sentence})
    return items


def largest_gpu_mb(models: Sequence[str], *, is_shared: bool) -> int | None:
    """Return the most memory that a GPU of these models (words of names; empty: any) can give a job, within the load
    ceiling; None if no such GPU is known."""
    rules = policy()
    ceiling = rules.load_ceiling_shared if is_shared else rules.load_ceiling
    sizes = [
        memory_mb for model, memory_mb in rows(_LARGEST) if not models or any(is_model(word, model) for word in models)
    ]
    return floor(max(sizes) * ceiling) if sizes else None
