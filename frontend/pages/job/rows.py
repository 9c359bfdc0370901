"""The rows of topics `job:<id>`: a job, its events, its attempts and the sizes of its logs."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Thread

from frontend.live.topics import Topic, key_by
from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import Row, prepared
from gpusched.lib.times import rfc3339
from gpusched.protocol import reasons
from jobs.api import attempts
from jobs.listing import representation
from jobs.logs import store
from scheduling.whatif.explain import periods_of

_Log = tuple[int, int, int]  # job, attempt, rank
SIZES_SECONDS = 3.0
_MAX_EVENTS = 1000
_MAX_ATTEMPTS = 100

_EVENTS = """
    SELECT e.* FROM unnest(%s::bigint[]) AS w (job_id),
           LATERAL (SELECT id, job_id, at, kind, attempt, actor, data FROM jobs_events
                     WHERE job_id = w.job_id ORDER BY id DESC LIMIT %s) e ORDER BY e.id
"""
_ATTEMPTS = """
    SELECT a.* FROM unnest(%s::bigint[]) AS w (job_id),
           LATERAL (SELECT * FROM jobs_attempts WHERE job_id = w.job_id ORDER BY number DESC LIMIT %s) a
     ORDER BY a.job_id, a.number
"""


def load(job_ids: Iterable[int]) -> dict[int, Row]:
    """Return {job id: {"tenant_id", "rows"}} for jobs that exist."""
    ids = sorted(job_ids)
    tenant_ids = {
        row["id"]: row["tenant_id"] for row in prepared("SELECT id, tenant_id FROM jobs_all WHERE id = ANY(%s)", [ids])
    }
    rows: dict[int, dict[str, Row]] = {job_id: {} for job_id in tenant_ids}
    jobs = representation.select_few(sorted(rows))
    for job in jobs:
        rows[job["id"]]["job"] = job
    for job_id, periods in periods_of(jobs).items():
        rows[job_id]["waits"] = {"periods": periods}
    for event in prepared(_EVENTS, [sorted(rows), _MAX_EVENTS]):
        rows[event["job_id"]][f"event:{event['id']}"] = _event(event)
    found = prepared(_ATTEMPTS, [sorted(rows), _MAX_ATTEMPTS])
    sizes = _sizes([(each["job_id"], each["number"], placed["rank"]) for each in found for placed in each["placement"]])
    for attempt in found:
        rows[attempt["job_id"]].update(_attempt(attempt, sizes))
    return {
        job_id: {"tenant_id": tenant_ids[job_id], "rows": job_rows}
        for job_id, job_rows in rows.items()
        if "job" in job_rows
    }


def restrict(loaded: Row | None, visible: Sequence[int] | None) -> dict[str, Row] | None:
    """Return the rows, or None if the job does not exist or the viewer cannot see it."""
    if loaded is None or (visible is not None and loaded["tenant_id"] not in visible):
        return None
    rows: dict[str, Row] = loaded["rows"]
    return rows


def _attempt(row: Row, sizes: Mapping[_Log, int]) -> dict[str, Row]:
    number = row["number"]
    rows: dict[str, Row] = {f"attempt:{number}": attempts.represent_attempt(row)}
    for placed in row["placement"]:
        rank = placed["rank"]
        size = sizes.get((row["job_id"], number, rank), 0)
        rows[f"log:{number}.{rank}"] = {"attempt": number, "rank": rank, "size": size}
    return rows


def _sizes(logs: Sequence[_Log]) -> dict[_Log, int]:
    """Return the sizes of logs, as far as the storage returns them in time. One thread loads the rows of all pages, and
    must not wait for a storage that hangs. A read of such a log reports the failure."""
    sizes: dict[_Log, int] = {}

    def read() -> None:
        for log in logs:
            with suppress(Problem):
                sizes[log] = store.size_of(*log)

    if logs:
        reader = Thread(target=read, name="log-sizes", daemon=True)
        reader.start()
        reader.join(SIZES_SECONDS)
    return sizes.copy()


def _event(row: Row) -> Row:
    return {
        "id": row["id"],
        "at": rfc3339(row["at"]),
        "kind": row["kind"],
        "attempt": row["attempt"],
        "actor": row["actor"],
        "sentence": sentence(row["kind"], row["actor"], row["data"]),
    }


def part_cancelled(data: Row) -> str:
    """Describe a cancel of array elements."""
    number = data["cancelled"] + data["stopped"]
    return f"{number} of its elements {'is' if number == 1 else 'are'} cancelled"


def sentence(kind: str, actor: str, data: Row) -> str:
    """Describe an event; an unknown kind becomes its name."""
    by = f" by {actor}" if actor else ""
    if kind == "scheduled":
        return "placed on " + ", ".join(sorted({rank["node"] for rank in data.get("placement", [])}))
    if kind == "ended":
        return reasons.sentence(data.get("reason", ""), data)
    if kind == "stopping":
        return f"is being stopped{by}: {reasons.sentence(data.get('reason', ''), {'by': actor, **data})}"
    if kind == "part_cancelled":
        return part_cancelled(data) + by
    if kind in ("idle_warning", "idle_would_end"):
        return reasons.sentence(data["reason"], data)
    if kind == "idle_over":
        return "its GPUs are used again, or it is exempt"
    if kind == "requeued" and "gpu_memory_mb" in data:
        return f"waits for another attempt with {data['gpu_memory_mb']:,} MiB of memory per GPU"
    if kind == "requeued":
        return "waits for another attempt"
    return f"{kind.replace('_', ' ')}{by}"


TOPICS = (
    Topic(
        "job",
        lambda requested, _: load({job_id for job_id, _viewer in requested}),
        lambda jobs, job_id, viewer: restrict(jobs.get(job_id), viewer.visible),
        key_of=key_by(re.compile(r"job:([1-9][0-9]{0,17})", re.ASCII), int),
        invalidated_by=frozenset({"jobs", "logs"}),
    ),
)
