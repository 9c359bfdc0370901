"""The tools that read: each composes a few calls of the REST API into an answer that is short enough for a model."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import Meta

from frontend.mcp.rest_calls import RestCalls
from gpusched.lib.api.rest import MAX_LIMIT, encode_cursor

Answer = dict[str, Any]
JobId = Annotated[int, Meta(ge=1, description="Id of the job.")]
MAX_ITEMS, MAX_LOG_BYTES = 50, 16_384
_LAST_ATTEMPTS = 3
Limit = Annotated[int, Meta(ge=1, le=MAX_ITEMS)]
_RESERVATION_FIELDS = (
    "id", "state", "kind", "lease", "tenant", "user", "gpus", "used_gpus", "starts_at", "ends_at", "note", "problem",
)  # fmt: skip
_JOB_FIELDS = (
    "id", "state", "tenant", "user", "name", "reason", "gpu_count", "gpu_model", "priority", "submitted_at",
    "started_at", "ended_at", "exit_code", "nodes",
)  # fmt: skip


class Arguments(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """No arguments."""


@dataclass(frozen=True)
class Tool:
    """A tool. `arguments`: their types; their JSON schema is generated from it."""

    name: str
    description: str
    arguments: type[Arguments]
    run: Callable[[RestCalls, Any], Answer]

    def represent(self, *, is_read_only: bool = True) -> Answer:
        """Return the tool as `tools/list` has it."""
        schema = dict(msgspec.json.schema(self.arguments)["$defs"][self.arguments.__name__])
        for name in ("title", "description"):
            schema.pop(name, None)
        hints = {"readOnlyHint": is_read_only, "destructiveHint": not is_read_only, "openWorldHint": False}
        return {"name": self.name, "description": self.description, "inputSchema": schema, "annotations": hints}


def _whoami(rest: RestCalls, arguments: Arguments) -> Answer:
    status = rest.get("cluster/status")
    return {**rest.get("me"), "cluster_is_simulated": status["pretend"], "version": status["version"]}


class JobsArguments(Arguments, kw_only=True):
    state: Annotated[str, Meta(description="pending, running, failed, …, or waiting, live, final; by comma.")] = ""
    tenant: str = ""
    user: str = ""
    name: Annotated[str, Meta(description="Part of the name.")] = ""
    limit: Limit = 20
    cursor: Annotated[str, Meta(description="next_cursor of the previous page.")] = ""


def _jobs(rest: RestCalls, arguments: JobsArguments) -> Answer:
    page = rest.get("jobs", **msgspec.structs.asdict(arguments))
    items = [{name: job[name] for name in _JOB_FIELDS if job.get(name) not in (None, [])} for job in page["items"]]
    return {"items": items, "next_cursor": page["next_cursor"]}


class JobArguments(Arguments, kw_only=True):
    job_id: JobId


def _explain(rest: RestCalls, arguments: JobArguments) -> Answer:
    answer: Answer = rest.get(f"jobs/{arguments.job_id}/explain")
    answer["history"] = answer["history"][-5:]
    return answer


def _triage(rest: RestCalls, arguments: JobArguments) -> Answer:
    """Return how the last attempts ended, with the class of the failure, and the end of the log."""
    job = rest.get(f"jobs/{arguments.job_id}")
    # The list begins with the oldest attempt.
    cursor = encode_cursor("attempts", max(0, job["attempt"] - _LAST_ATTEMPTS))
    attempts = rest.get(f"jobs/{arguments.job_id}/attempts", cursor=cursor, limit=_LAST_ATTEMPTS)["items"]
    fields = ("number", "state", "reason", "sentence", "class", "exit_code", "signal", "started_at", "ended_at")
    return {
        "job": {name: job[name] for name in (*_JOB_FIELDS, "command", "retries_used", "max_retries")},
        "attempts": [
            {**{name: attempt[name] for name in fields}, "nodes": [rank["node"] for rank in attempt["ranks"]]}
            for attempt in attempts
        ],
        "explanation": _explain(rest, arguments)["sentence"],
        "log": _log(rest, LogArguments(job_id=arguments.job_id, max_bytes=2048)) if attempts else None,
    }


class LogArguments(Arguments, kw_only=True):
    job_id: JobId
    max_bytes: Annotated[int, Meta(ge=1, le=MAX_LOG_BYTES)] = 4096
    attempt: Annotated[int | None, Meta(description="By default the latest.")] = None
    rank: Annotated[int, Meta(ge=0)] = 0


def _log(rest: RestCalls, arguments: LogArguments) -> Answer:
    text, headers = rest.text(
        f"jobs/{arguments.job_id}/logs", tail=arguments.max_bytes, attempt=arguments.attempt, rank=arguments.rank
    )
    is_complete = headers["X-Log-Complete"] == "true"
    return {"text": text, "total_bytes": int(headers["X-Log-Size"]), "job_has_ended": is_complete}


class SimulateArguments(Arguments, kw_only=True):
    request: Annotated[
        dict[str, Any],
        Meta(description="Body of POST /api/v1/jobs: command, gpu_count, tenant, gpu_memory_mb, gpu_model, …"),
    ]


def _simulate(rest: RestCalls, arguments: SimulateArguments) -> Answer:
    request = arguments.request
    # Room can be checked before there is a command.
    placeholder = {} if request.keys() & {"command", "script"} else {"command": ["true"]}
    answer: Answer = rest.simulate({**placeholder, **request})
    return answer


class AvailabilityArguments(Arguments, kw_only=True):
    model: Annotated[str, Meta(description="Part of the GPU model; empty: all.")] = ""
    gpus: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Also find the next slot for so many GPUs of one node to reserve."),
    ] = None
    minutes: Annotated[int, Meta(ge=1, description="Length of the slot.")] = 60


def _availability(rest: RestCalls, arguments: AvailabilityArguments) -> Answer:
    """Return free, used and unusable GPUs by model, the most that are free on one node, open reservations, and the next
    free slot for a shape."""
    models: dict[tuple[str, int], Counter[str]] = {}
    free_by_node: dict[tuple[str, int], Counter[str]] = {}
    for gpu in rest.get("gpus")["items"]:
        if arguments.model.lower() in gpu["model"].lower():
            key = gpu["model"], gpu["memory_mb"]
            is_free = gpu["held"] == "free"
            use = "unusable" if gpu["health"] not in ("ok", "hot") else "free" if is_free else "used"
            models.setdefault(key, Counter())[use] += 1
            free_by_node.setdefault(key, Counter())[gpu["node"]] += use == "free"
    return {
        "models": [
            {"model": key[0], "gpu_memory_mb": key[1], **{use: counts[use] for use in ("free", "used", "unusable")},
             "most_free_on_one_node": max(free_by_node[key].values())}
            for key, counts in sorted(models.items())
        ],
        "pending_jobs": rest.get("cluster/status")["pending_jobs"],
        "reservations": _reservations(rest),
        "next_slot": _next_slot(rest, arguments),
    }  # fmt: skip


def _reservations(rest: RestCalls) -> list[Answer]:
    """Return the open reservations that the caller sees, those that begin first. REST lists the newest, which of a
    series are the last."""
    page = rest.get("reservations", state="planned,active", limit=MAX_LIMIT)
    items = sorted(page["items"], key=lambda item: str(item["starts_at"]))[:MAX_ITEMS]
    return [{name: item[name] for name in _RESERVATION_FIELDS if item[name] not in (None, "")} for item in items]


def _next_slot(rest: RestCalls, arguments: AvailabilityArguments) -> Answer | None:
    if arguments.gpus is None:
        return None
    shape = {"gpus": arguments.gpus, "for_seconds": arguments.minutes * 60, "gpu_model": arguments.model or None}
    answer: Answer = rest.get("reservations/next-slot", **shape)
    return answer


class TenantArguments(Arguments, kw_only=True):
    tenant: str


def _quota(rest: RestCalls, arguments: TenantArguments) -> Answer:
    shares = rest.get("scheduling/shares")["items"]
    share = next((share for share in shares if share["tenant"] == arguments.tenant), None)
    return {"quota": rest.get(f"tenants/{quote(arguments.tenant, safe='')}/quota"), "share": share}


class UsageArguments(TenantArguments, kw_only=True):
    from_day: Annotated[str, Meta(description="2030-01-31; by default the first of the month.")] = ""
    to_day: Annotated[str, Meta(description="Not included; by default now.")] = ""
    by: Annotated[str, Meta(description="day, user, job, …")] = "day"


def _usage(rest: RestCalls, arguments: UsageArguments) -> Answer:
    answer: Answer = rest.get(
        f"tenants/{quote(arguments.tenant, safe='')}/usage",
        **{"from": arguments.from_day, "to": arguments.to_day, "by": arguments.by, "limit": MAX_ITEMS},
    )
    return answer


def _idle(rest: RestCalls, arguments: Arguments) -> Answer:
    """Return the GPUs that jobs hold while their readings are under the utilisation that counts as idle. A GPU whose
    utilisation is unknown, such as a MIG instance, is not idle."""
    percent = rest.get("scheduling/policy")["held_idle_percent"]
    idle = [
        {"job_ids": gpu["jobs"], "node": gpu["node"], "gpu": gpu["index"],
         "utilisation_percent": gpu["reading"]["utilisation_percent"], "read_at": gpu["reading"]["read_at"]}
        for gpu in rest.get("gpus")["items"]
        if gpu["held"] != "free" and gpu["reading"]
        and gpu["reading"]["utilisation_percent"] is not None and gpu["reading"]["utilisation_percent"] < percent
    ]  # fmt: skip
    return {"idle_below_percent": percent, "total": len(idle), "gpus": idle[:MAX_ITEMS]}


class IncidentsArguments(Arguments, kw_only=True):
    open_only: bool = True
    limit: Limit = 20


def _incidents(rest: RestCalls, arguments: IncidentsArguments) -> Answer:
    page: Answer = rest.get("incidents", limit=arguments.limit, open="true" if arguments.open_only else None)
    return page


READING = (
    Tool("whoami", "Your user, scopes and roles in tenants, and whether the GPUs are simulated.", Arguments, _whoami),
    Tool("jobs", "List jobs that you can see, newest first.", JobsArguments, _jobs),
    Tool(
        "explain",
        "Why a job is in its state: the reason with evidence, what would help, and when it may start.",
        JobArguments,
        _explain,
    ),
    Tool("triage", "Why a job failed: its last attempts, class of failure, end of its log.", JobArguments, _triage),
    Tool("log_tail", "The end of a job's output.", LogArguments, _log),
    Tool("simulate", "What would happen to a job submitted now. Submits nothing.", SimulateArguments, _simulate),
    Tool(
        "availability",
        "GPUs by model: free, used, unusable; open reservations; the next free slot.",
        AvailabilityArguments,
        _availability,
    ),
    Tool("quota", "Limits, guarantee and current share of a tenant.", TenantArguments, _quota),
    Tool("usage", "GPU-hours and cost of a tenant.", UsageArguments, _usage),
    Tool("idle_report", "GPUs that jobs hold but do not use now.", Arguments, _idle),
    Tool("incidents", "Faults of nodes and GPUs, newest first (admins).", IncidentsArguments, _incidents),
)  # fmt: skip
