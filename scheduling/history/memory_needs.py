"""The memory that the next run of a command needs, from the peaks of its user's earlier runs."""

import msgspec

from gpusched.lib.db.sql import rows
from scheduling.prediction.ends import End
from scheduling.prediction.keys import JobKind
from scheduling.prediction.memory import MemoryNeed, memory_keys, need_of


def memory_need(kind: JobKind, resource: str) -> MemoryNeed | None:
    """Return the need of `gpu` or `host` memory of the next run of this kind; None without enough runs."""
    narrow, wide = memory_keys(kind, resource)
    stored = {
        key: msgspec.json.decode(ends, type=list[End])
        for key, ends in rows("SELECT key, ends::text FROM scheduling_runhistory WHERE key = ANY(%s)", [[narrow, wide]])
    }
    return need_of(stored.get(narrow, ())) or need_of(stored.get(wide, ()))


def peak_sentence(need: MemoryNeed, owner: str, where: str, label: str) -> str:
    """Return how much earlier runs of a program used. `owner`: "your" or "alice's"."""
    runs = f"last {need.runs} runs" if need.runs > 1 else "last run"
    ran_out = f" and {need.ran_out} of them ran out of it" if need.ran_out and need.runs > 1 else ""
    if need.ran_out == need.runs == 1:
        ran_out = " and ran out of it"
    return f"{owner} {runs} of {label} used at most {need.peak_mb:,} MiB {where}{ran_out}"
