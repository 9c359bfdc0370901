"""Reason codes, and the only place that turns code and evidence into a sentence and a next step."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from math import ceil, floor
from string import Formatter

from gpusched.protocol.exits import CLAUSES, NEXT_STEPS
from gpusched.protocol.times import TIMESTAMP, format_duration

Evidence = Mapping[str, str | int | float | bool | None]


class Pending(StrEnum):
    """The reasons for which a job waits; a closed list. Exactly one is dominant (the order: docs/rest.md)."""

    NEVER_FITS = "never_fits"
    HELD_BY_USER = "held_by_user"
    HELD_BY_ADMIN = "held_by_admin"
    DEPENDENCY = "dependency"
    NOT_BEFORE = "not_before"
    RETRY_BACKOFF = "retry_backoff"
    MAX_PARALLEL = "max_parallel"
    TENANT_LIMIT = "tenant_limit"
    BUDGET = "budget"
    USER_CAP = "user_cap"
    QUOTA_WAIT = "quota_wait"
    RECLAIM_PENDING = "reclaim_pending"
    PREEMPT_DELAY = "preempt_delay"
    PRIORITY = "priority"
    RESERVED = "reserved"
    RESERVED_SOON = "reserved_soon"
    RESERVATION_PENDING = "reservation_pending"
    RESERVATION_ENDED = "reservation_ended"
    MAINTENANCE = "maintenance"
    FRAGMENTED = "fragmented"
    TOPOLOGY = "topology"
    CAPACITY = "capacity"
    HOT = "hot"
    HEALTH = "health"
    CPU_MEMORY = "cpu_memory"
    CONSTRAINT = "constraint"
    TAINT = "taint"
    STARTING = "starting"
    SCHEDULER_BEHIND = "scheduler_behind"


class Notice(StrEnum):
    """A notice for the owner of a running job, in place of a waiting job's reason."""

    IDLE_GPUS = "idle_gpus"
    RESERVATION_ENDS = "reservation_ends"


class EndReason(StrEnum):
    """The reasons for the end of a rank or an attempt. Only the agent and the control plane produce them."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    REQUEUED = "requeued"
    PREEMPTED = "preempted"
    RANK_FAILED = "rank_failed"
    LAUNCH_FAILED = "launch_failed"
    NO_ACCOUNT = "no_account"
    NODE_LOST = "node_lost"
    NODE_FAULT = "node_fault"
    NODE_REBOOTED = "node_rebooted"
    SUPERVISOR_LOST = "supervisor_lost"
    AGENT_STOPPED = "agent_stopped"
    HELD_IDLE = "held_idle"
    DEPENDENCY_FAILED = "dependency_failed"
    ARRAY_ENDED = "array_ended"
    SUPERSEDED = "superseded"


# Ends caused by the machinery alone: the job is requeued (if it may be), and no retry is used up.
NODE_FAULTS = frozenset(
    {
        EndReason.NODE_LOST,
        EndReason.NODE_FAULT,
        EndReason.NODE_REBOOTED,
        EndReason.SUPERVISOR_LOST,
        EndReason.AGENT_STOPPED,
        EndReason.NO_ACCOUNT,
    }
)

# code -> (sentence, next step). Placeholders are the evidence that the engine passes with the code.
PENDING: dict[str, tuple[str, str]] = {
    Pending.NEVER_FITS: (
        "can never start: {what}; the largest possible is {largest}",
        "request less, or add a node that fits",
    ),
    Pending.HELD_BY_USER: ("held by its owner", "release it"),
    Pending.HELD_BY_ADMIN: ("held by an admin", "ask an admin to release it"),
    Pending.DEPENDENCY: ("waits for {on} to end", "nothing to do; it becomes eligible then"),
    Pending.NOT_BEFORE: ("not to start before {at}", "nothing to do; it becomes eligible then"),
    Pending.RETRY_BACKOFF: ("its next attempt waits until {at}", "nothing to do; it retries then"),
    Pending.MAX_PARALLEL: (
        "of this array, {in_use} placed or running and {ahead} waiting before it; at most {limit} may be at once",
        "nothing to do; the next one starts when one of them ends",
    ),
    Pending.TENANT_LIMIT: (
        "requests {requested} {dimension}, more than the limit of {limit} of tenant {tenant}",
        "request less, or ask an admin to raise the quota",
    ),
    Pending.BUDGET: (
        "the budget of tenant {tenant} is used up: {used} of {limit} GPU-hours in {period}",
        "wait until it is renewed, or ask an admin for a larger budget",
    ),
    Pending.USER_CAP: (
        "quota exceeded for its owner in tenant {tenant}: GPUs requested={requested}, limit per user={user_limit}, "
        "in use={in_use}",
        "wait for its owner's other jobs to end, or ask an admin to raise the limit per user",
    ),
    Pending.QUOTA_WAIT: (
        "quota exceeded for {whose}: {dimension} requested={requested}, limit={limit}, in use={in_use}",
        "wait for the tenant's own jobs to end, or ask an admin to raise the quota",
    ),
    Pending.RECLAIM_PENDING: (
        "waits for {gpus} GPUs of {victims} jobs, being stopped for it by rule {rule}; free at {at} at the latest",
        "nothing to do; it starts there when they have ended",
    ),
    Pending.PREEMPT_DELAY: (
        "may preempt {victims} jobs from {at} on",
        "nothing to do; it starts in their place then, or earlier if GPUs become free",
    ),
    Pending.PRIORITY: (
        "the capacity of this cycle went to {jobs_ahead} jobs ({gpus_ahead} GPUs) ahead of it: "
        "{requested} GPUs requested, {free} suitable remain",
        "wait for its turn, or submit with a higher priority",
    ),
    Pending.RESERVED: (
        "{free} suitable GPUs are free but reserved for {holder}, which starts at {at} at the latest",
        "set a time limit that ends before then, and it may start first",
    ),
    Pending.RESERVED_SOON: (
        "{free} suitable GPUs are free but part of {holder} from {at} to {until}",
        "set a time limit that ends before the reservation starts, or wait until it has ended",
    ),
    Pending.RESERVATION_PENDING: (
        "waits for room in its reservation {reservation}, which lasts from {at} to {until}",
        "nothing to do; it starts there then, or submit it without a reservation",
    ),
    Pending.RESERVATION_ENDED: (
        "reservation {reservation}, in which alone it may start, has ended",
        "cancel it, and submit it in another reservation or without one",
    ),
    Pending.MAINTENANCE: (
        "cordoned, draining or not reporting: {nodes} nodes that would fit",
        "bring a lost node back (start it and its agent), uncordon a closed one, or wait",
    ),
    Pending.FRAGMENTED: (
        "{free} suitable GPUs are free, but no node has {per_node} together",
        "request fewer GPUs, or let the gang span nodes (gang_scheduling with ranks)",
    ),
    Pending.TOPOLOGY: (
        "{free} suitable GPUs are free, but no node has {per_node} joined as topology {topology} asks",
        "make the topology a preference (prefer_nvlink, prefer_numa), or request fewer GPUs",
    ),
    Pending.CAPACITY: (
        "waits for {requested} GPUs: {free} of {total} suitable are free; {jobs_ahead} jobs ({gpus_ahead} GPUs) ahead",
        "nothing to do; it starts when GPUs become free",
    ),
    Pending.HOT: (
        "free but slowed down by heat, so not used until they cool: {devices} suitable GPUs",
        "wait, or see what heats them on the Nodes page",
    ),
    Pending.HEALTH: ("out of service: {devices} suitable GPUs", "see what is wrong with them on the Nodes page"),
    Pending.CPU_MEMORY: (
        "no suitable node has {cpu_cores} CPU cores and {memory_mb} MiB of memory free together",
        "request less CPU or memory, or wait",
    ),
    Pending.CONSTRAINT: ("no node matches {constraint}", "relax the constraint, or add a node that matches"),
    Pending.TAINT: (
        "excluded from the {nodes} nodes that would fit by taints that it does not tolerate: {taints}",
        "submit it with a toleration (--toleration) if it may run there, or ask an admin to remove the taint",
    ),
    Pending.STARTING: ("placed; the agent of {node} starts it", "nothing to do"),
    Pending.SCHEDULER_BEHIND: (
        "the scheduler has not looked at it yet",
        "if this lasts, see the scheduler on the Overview",
    ),
}

NOTICES: dict[str, tuple[str, str]] = {
    Notice.IDLE_GPUS: (
        "its {gpus} GPUs have been under {percent} % since {since}; {then}",
        "use them or end the job; an admin can exempt it",
    ),
    Notice.RESERVATION_ENDS: (
        "its reservation {reservation} ends at {at}; then it is stopped and {then}",
        "save its state, or renew the reservation (gpusched lease renew)",
    ),
}

ENDED: dict[str, str] = {
    EndReason.EXITED: "exited with code {exit_code}",
    EndReason.SIGNALLED: "ended by signal {signal}",
    EndReason.TIME_LIMIT: "reached its time limit of {max_runtime_minutes} min",
    EndReason.CANCELLED: "cancelled by {by}",
    EndReason.REQUEUED: "requeued by {by}",
    EndReason.PREEMPTED: "preempted for {by}, which {why}",
    EndReason.RANK_FAILED: "rank {rank} failed first",
    EndReason.LAUNCH_FAILED: "could not be started: {detail}",
    EndReason.NO_ACCOUNT: "node {node} has no user to run it as: {detail}",
    EndReason.NODE_LOST: "node {node} stopped reporting",
    EndReason.NODE_FAULT: "node {node} failed under it",
    EndReason.NODE_REBOOTED: "node {node} rebooted",
    EndReason.SUPERVISOR_LOST: "its supervisor process on {node} was killed",
    EndReason.AGENT_STOPPED: "the agent of {node} was stopped together with its jobs",
    EndReason.HELD_IDLE: "its {gpus} GPUs were under {percent} % since {since}, {warnings} warnings changed nothing",
    EndReason.DEPENDENCY_FAILED: "can never start: job {on}, after which it was to start if that {wanted}, is {ended}",
    EndReason.ARRAY_ENDED: (
        "of its elements {completed} completed, {failed} failed, {cancelled} were cancelled, {preempted} preempted"
    ),
    EndReason.SUPERSEDED: "a newer attempt exists, or a restore of the database has undone its start",
}


# change -> the condition; the clause that "it would start" follows.
CHANGES: dict[str, str] = {
    "gpu_count": "with {to} GPUs",
    "gpu_memory_mb": "with {to} MiB of memory per GPU",
    "gpu_model": "with any GPU model",
    "cpu_cores": "with {to} CPU cores",
    "memory_mb": "with {to} MiB of memory",
    "cpu_and_memory_percent": "with {to} % of its CPU cores and memory",
    "gang_scheduling": "if its gang could span nodes (gang_scheduling without ranks)",
    "ranks": "without a fixed number of ranks",
    "node_selector": "without its node selector",
    "node_affinity": "without its required node affinity",
    "tolerations": "with a toleration of {to}",
    "topology": "with topology {to}",
    "apart": "if it could share a node with the jobs of its anti-affinity",
    "max_runtime_seconds": "with a time limit of {to}",
    "workload_class": "with workload_class {to}",
    "booking": "without its reservation",
    "comes_first": "if it came first in the queue",
    "wait_seconds": "in {to}",
    "jobs_ended": "after the end of {whom}",
    "victims_ended": "after the end of the {to} jobs being stopped",
    "limit": "with a limit of {to} {dimension} for its tenant",
    "user_limit": "with a limit of {to} GPUs per user of its tenant",
    "budget": "with a budget of {to} GPU-hours for its tenant",
    "nodes_opened": "with {whom} back in service",
    "devices_well": "with {to} faulty devices{on} back in service",
    "devices_cool": "if {to} devices{on} were not slowed down by heat",
    "node_added": "with one more node, empty and large enough",
    "max_parallel": "with max_parallel {to}",
    "released": "once it is released",
    "dependencies_ended": "after the required end of the {to} jobs that it waits for",
}


class _Gaps(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "?"


# Matches "1 GPUs", but not the 1 of "2.1 GPUs" or "11 GPUs".
_SINGULAR = re.compile(r"(?<![\d.])1 ((?:[a-z]+ )?(?:GPU-hour|GPU|CPU core|job|node|device|warning))s\b( are)?")


def fix_plurals(text: str) -> str:
    """Return the text with counts of one in the singular: "1 job is in the queue"."""
    return _SINGULAR.sub(lambda match: f"1 {match[1]}{' is' if match[2] else ''}", text)


def sentence(code: str, evidence: Evidence) -> str:
    """Return a sentence without a full stop. An unknown code is shown as it is rather than hidden."""
    values = {name: _in_words(value) for name, value in evidence.items()}
    text = fix_plurals((_template(code) or code.replace("_", " ")).format_map(_Gaps(values)))
    text = _without_empty_counts(text, evidence)
    if code == EndReason.NODE_FAULT and (detail := str(evidence.get("detail") or "")):
        text = f"{detail} on node {evidence.get('node')}" if detail.startswith("GPU ") else f"{text}: {detail}"
    if code in (EndReason.EXITED, EndReason.SIGNALLED) and "Xid" in str(evidence.get("detail", "")):
        text = f"{text} ({evidence['detail']})"
    if code == Pending.CONSTRAINT and (present := evidence.get("present")):
        text = f"{text}; present: {present}"
    is_waiting = code in PENDING
    if clause := CLAUSES.get(str(evidence.get("class"))):
        clause += memory_clause(evidence)
        return f"{text} (the last one: {clause})" if is_waiting else f"{text}: {clause}"
    if times := evidence.get("in_a_row"):
        return f"{text} (faults of nodes in a row: {times})" if is_waiting else f"{text}, {times} times in a row"
    return text


def memory_clause(evidence: Evidence) -> str:
    """Return why a job with `gpu_memory_mb: "auto"` that ran out of GPU memory is not retried with more; else an
    empty text."""
    had = evidence.get("had_gpu_memory_mb")
    texts = {
        "used": f", again with {had} MiB after one retry with more",
        "no_larger_gpu": f", and no suitable GPU has more than the {had} MiB that it had",
    }
    return texts.get(str(evidence.get("memory_retry")), "")


def _without_empty_counts(sentence: str, evidence: Evidence) -> str:
    """Leave out meaningless counts: no GPU, no job or element ahead, and the GPUs beside "more than 30 jobs"."""
    if evidence.get("jobs_ahead") == 0:
        return sentence.replace("; 0 jobs (0 GPUs) ahead", "; no job is ahead of it")
    if evidence.get("gpus") == 0:  # the jobs that are stopped hold CPU cores and memory
        sentence = sentence.replace("waits for 0 GPUs of ", "waits for ")
    if evidence.get("free") == 0 and "holder" in evidence:  # the job wants no GPUs
        sentence = sentence.replace("0 suitable GPUs are free but ", "CPU cores and memory are free but ")
    if not evidence.get("ahead"):  # missing in what an earlier version wrote
        sentence = re.sub(r" and [0?] waiting before it;", ";", sentence)
    if isinstance(gpus := evidence.get("gpus_ahead"), str):
        return sentence.replace(f" ({gpus} GPUs) ahead", " ahead")
    return sentence


def _in_words(value: object) -> object:
    """Format a value of the evidence for a sentence: "2030-01-31 08:00:00 UTC", and 90 instead of 90.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not (isinstance(value, str) and TIMESTAMP.fullmatch(value)):
        return value
    return f"{datetime.fromisoformat(value).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def would_wait(reason: str) -> str:
    """Return what would happen to a job that is not submitted yet, from its reason's sentence; empty: unknown."""
    if reason.startswith("waits for "):
        return f"it would wait{reason.removeprefix('waits')}"
    return f"it would wait: {reason}" if reason else "it would wait"


@cache
def evidence_fields(code: str) -> frozenset[str]:
    """Return the fields of evidence in the sentence of a code."""
    return frozenset(name for _, name, _, _ in Formatter().parse(_template(code)) if name)


def _template(code: str) -> str:
    """Return the sentence's template; empty if the code is unknown."""
    texts = PENDING.get(code) or NOTICES.get(code)
    return texts[0] if texts else ENDED.get(code, "")


# Round so that the sentence holds: a longer wait, a shorter request.
_SECONDS: dict[str, Callable[[float], int]] = {"wait_seconds": ceil, "max_runtime_seconds": floor}


def change_sentence(
    change: str,
    to: str | int | float | bool | None,
    dimension: str = "",
    then: str = "",
    names: Sequence[object] = (),
) -> str:
    """Return the change needed, and its effect: the job starts, or it would wait for `then`. `names`: of the nodes, or
    of the jobs, visible to the reader, that must end."""
    if change in _SECONDS and isinstance(to, int | float):
        to = format_duration(to, _SECONDS[change])
    whom = listed("node", names, len(names)) if names else f"{to} closed nodes"
    if change == "jobs_ended":
        whom = listed_jobs(names, int(to or 0))
    on = f" on {listed('node', names, len(names))}" if names else ""
    clause = fix_plurals(CHANGES[change].format(to=to, dimension=dimension, whom=whom, on=on))
    return f"{clause} it would wait for another reason: {then}" if then else f"{clause} it would start"


def listed(noun: str, names: Sequence[object], total: int) -> str:
    """Return the first three names, and the number of further ones: "jobs 1, 2, 3 and 4 more"."""
    parts = [str(name) for name in names[:3]]
    if total > len(parts):
        parts.append(f"{total - len(parts)} more")
    text = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"{noun}{'s' * (total > 1)} {text}"


def listed_jobs(job_ids: Sequence[object], total: int) -> str:
    """Return the list of jobs that must end; jobs of other tenants are counted, not named."""
    return listed("job", job_ids, total) if job_ids else f"the {total} jobs in its way"


def next_step(code: str, evidence: Evidence | None = None) -> str:
    """Return the reader's next step; for an end, the one of its class, empty if there is none."""
    if code == Pending.DEPENDENCY and (held := (evidence or {}).get("held")):
        whom = "ask an admin to release" if (evidence or {}).get("held_by") == Pending.HELD_BY_ADMIN else "release"
        return f"{whom} job {held}, which is held and must end before this one starts"
    if code == Pending.CONSTRAINT and "container runtime" in str((evidence or {}).get("constraint")):
        return "install podman, docker or apptainer on a node, then ask its agent: gpusched-agent doctor"
    if code == Pending.MAINTENANCE and (evidence or {}).get("lost") == 0:
        return "uncordon a node, or wait"
    if code == Pending.MAINTENANCE and evidence and evidence.get("lost") == evidence.get("nodes"):
        return "bring a lost node back: start it and its agent, or wait"
    if texts := PENDING.get(code) or NOTICES.get(code):
        return texts[1]
    return NEXT_STEPS.get(str((evidence or {}).get("class")), "")
