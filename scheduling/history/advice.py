"""Advice on the memory of a request, from the peaks of the submitter's earlier runs of the same command."""

from typing import Any

import msgspec
from django.conf import settings

from gpusched.lib.db.sql import rows
from gpusched.protocol.job_request import JobRequest
from scheduling.history.commands import command_of
from scheduling.history.shown import kind_of_row
from scheduling.prediction.ends import End
from scheduling.prediction.keys import JobKind
from scheduling.prediction.memory import MemoryNeed, memory_keys, need_of
from scheduling.prediction.templates import label_of

# A request of more than this many times the advised memory keeps other jobs from starting.
TOO_MUCH = 2.0
_FIELDS = (("gpu", "gpu_memory_mb", "of each GPU"), ("host", "memory_mb", "of the node"))


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
        if need.advised_mb > requested or requested > TOO_MUCH * need.advised_mb:
            sentence = _sentence(need, field, where, label)
            items.append({"field": field, "value": need.advised_mb, "n": need.runs, "sentence": sentence})
    return items


def memory_need(kind: JobKind, resource: str) -> MemoryNeed | None:
    """Return the need of `gpu` or `host` memory of the next run of this kind; None without enough runs."""
    narrow, wide = memory_keys(kind, resource)
    stored = {
        key: msgspec.json.decode(ends, type=list[End])
        for key, ends in rows("SELECT key, ends::text FROM scheduling_runhistory WHERE key = ANY(%s)", [[narrow, wide]])
    }
    return need_of(stored.get(narrow, ())) or need_of(stored.get(wide, ()))


def _sentence(need: MemoryNeed, field: str, where: str, label: str) -> str:
    return f"{peak_sentence(need, 'your', where, label)}: request {field} {need.advised_mb}"


def peak_sentence(need: MemoryNeed, owner: str, where: str, label: str) -> str:
    """Return how much earlier runs of a program used. `owner`: "your" or "alice's"."""
    runs = f"last {need.runs} runs" if need.runs > 1 else "last run"
    ran_out = f" and {need.ran_out} of them ran out of it" if need.ran_out and need.runs > 1 else ""
    if need.ran_out == need.runs == 1:
        ran_out = " and ran out of it"
    return f"{owner} {runs} of {label} used at most {need.peak_mb:,} MiB {where}{ran_out}"
