"""Every waiting job has a reason: each code from its own cause, as a complete sentence."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from gpusched.protocol import reasons
from scheduling.engine.affinity import Expression, Taint
from scheduling.engine.explain.explain import count_in_words
from scheduling.engine.model import Booking, Device, DeviceHold, Job, Node, RankPlacement, RunningJob, Snapshot, Tenant
from tests.engine.scenario import NOW, ask, cluster, decide, gpu, job, node, occupy, reason, running_on


def fragmented() -> Snapshot:
    state = running_on(cluster(node(1), node(2)), job(8, gpus=5), job(9, gpus=6))
    return replace(state, jobs=(job(1, gpus=4),))


def full() -> Snapshot:
    state = running_on(cluster(node(1), node(2)), job(8, gpus=8), job(9, gpus=7))
    return replace(state, jobs=(job(2, gpus=8, tenant=1, age=9999), job(1, gpus=4)))


def limited(limit: int) -> Snapshot:
    state = running_on(cluster(node(1), tenants=[Tenant(1, "nlp", max_gpus=limit)]), job(9, gpus=2))
    return replace(state, jobs=(job(1, gpus=8),))


def promised() -> Snapshot:
    state = running_on(cluster(node(1)), job(9, gpus=4, minutes=60))
    return replace(state, jobs=(job(2, gpus=8, age=9999), job(1, gpus=2)))


def alone(*nodes: Node, gpus: int = 1, **shape: object) -> Snapshot:
    return cluster(*nodes, jobs=[job(1, request=replace(ask(gpus), **shape))])  # type: ignore[arg-type]


ML, SPOT = Taint("dedicated", "ml", "NoSchedule"), Taint("spot", "", "NoSchedule")
SPENT = Tenant(
    1, "nlp", budget_gpu_hours=100.0, budget_used_gpu_hours=100.5, budget_period="the last 30 days", max_gpus=8
)


def later(code: str, at: float = NOW + 60) -> Snapshot:
    return cluster(node(1), jobs=[replace(job(1), eligible_at=at, eligible_reason=code)])


def paired() -> list[Device]:
    """Return four GPUs, connected two by two."""
    return [gpu(n, island=n // 2, numa=0) for n in range(4)]


def divided() -> Snapshot:
    """Hold one GPU of each pair."""
    state = cluster(node(1, gpus=paired()))
    holders = [running_job(id, (RankPlacement(0, 1, 1000, 0, (DeviceHold(2 * id),)),)) for id in (0, 1)]
    nodes = tuple(occupy(each_node, [rank for holder in holders for rank in holder.ranks]) for each_node in state.nodes)
    return replace(state, nodes=nodes, running=tuple(holders), jobs=(job(1, gpus=2, topology="nvlink"),))


def running_job(id: int, ranks: tuple[RankPlacement, ...]) -> RunningJob:
    return RunningJob(50 + id, 1, ask(1), ranks, NOW)


def apart() -> Snapshot:
    state = running_on(cluster(node(1)), job(9, apart="web"))
    return replace(state, jobs=(job(1, apart="web"),))


def booked(starts_in: float, waiting_job: Job) -> Snapshot:
    """Make a node with one GPU, which tenant 2 has booked for its user 3 for an hour."""
    ranks = (RankPlacement(0, 1, 8000, 1000, (DeviceHold(100),)),)
    booking = Booking(5, 2, NOW + starts_in, NOW + starts_in + 3600, ranks, frozenset({3}))
    return replace(cluster(node(1, gpus=1), jobs=[waiting_job], tenants=[Tenant(2, "t2")]), bookings=(booking,))


SICK = [gpu(n, is_healthy=n > 1) for n in range(4)]
NODE = "8 GPUs of 80000 MiB with 64 CPU cores and 256000 MiB of memory on one node"
CASES = {
    "no node at all": (alone(), "constraint", "no node matches the request: none has joined yet"),
    "devices booked ahead": (
        booked(600, job(1, gpus=1)),
        "reserved_soon",
        "1 suitable GPU is free but part of a reservation of another tenant from 1970-01-12 13:56:40 UTC to "
        "1970-01-12 14:56:40 UTC",
    ),
    "devices booked now by its own tenant for another user": (
        booked(-600, job(1, gpus=1, tenant=2, user=4)),
        "reserved_soon",
        "1 suitable GPU is free but part of reservation 5 from 1970-01-12 13:36:40 UTC to 1970-01-12 14:36:40 UTC",
    ),
    "insists on a booking that has not started": (
        booked(600, replace(job(1, gpus=1, tenant=2, user=3), booking_id=5)),
        "reservation_pending",
        "waits for room in its reservation 5, which lasts from 1970-01-12 13:56:40 UTC to 1970-01-12 14:56:40 UTC",
    ),
    "insists on a booking that is over": (
        booked(-6000, replace(job(1, gpus=1, tenant=2, user=3), booking_id=5)),
        "reservation_ended",
        "reservation 5, in which alone it may start, has ended",
    ),
    "insists on the booking of others": (
        booked(-600, replace(job(1, gpus=1), booking_id=5)),
        "constraint",
        "no node matches the request: reservation 5 is for others",
    ),
    "insists on a booking that is too small": (
        booked(-600, replace(job(1, gpus=2, tenant=2, user=3), booking_id=5)),
        "constraint",
        "no node matches the request: reservation 5 has 1 GPU",
    ),
    "no such label": (
        alone(node(1), node_selector=(("zone", "b"),)),
        "constraint",
        "no node matches label zone=b",
    ),
    "no such model": (
        alone(node(1), gpu_models=("H100", "H200")),
        "constraint",
        "no node matches GPU model H100 or H200; present: NVIDIA A100-SXM4-80GB",
    ),
    "more GPUs than a node has": (
        alone(node(1), node(2), gpus=9),
        "never_fits",
        "can never start: it asks for 9 GPUs with 1 CPU core and 0 MiB of memory on one node; "
        f"the largest possible is {NODE}",
    ),
    "more memory than a device has": (
        alone(node(1), gpu_memory_mb=90_000),
        "never_fits",
        "can never start: it asks for 1 GPU of 90000 MiB with 1 CPU core and 0 MiB of memory on one node; "
        f"the largest possible is {NODE}",
    ),
    "more than all nodes": (
        alone(node(1), node(2), gpus=17, gang=True),
        "never_fits",
        "can never start: it asks for 17 GPUs with 1 CPU core and 0 MiB of memory over all nodes; the largest "
        "possible is 16 GPUs of 80000 MiB with 128 CPU cores and 512000 MiB of memory over 2 nodes",
    ),
    "more CPU than a node has": (
        alone(node(1), gpus=0, cpu_milli=65_000),
        "never_fits",
        "can never start: it asks for 65 CPU cores and 0 MiB of memory on one node; "
        "the largest possible is 64 CPU cores and 256000 MiB of memory on one node",
    ),
    "more GPUs than reach each other": (
        alone(node(1, gpus=paired()), gpus=4, topology="nvlink"),
        "never_fits",
        "can never start: it asks for 4 GPUs with 1 CPU core and 0 MiB of memory on one node, with topology nvlink; the "
        "largest possible is 2 GPUs of 80000 MiB with 64 CPU cores and 256000 MiB of memory on one node",
    ),
    "free GPUs that do not reach each other": (
        divided(),
        "topology",
        "2 suitable GPUs are free, but no node has 2 joined as topology nvlink asks",
    ),
    "no node meets a required expression": (
        alone(node(1), required=(Expression("zone", "in", ("a", "b")),), node_selector=(("rack", "r1"),)),
        "constraint",
        "no node matches label rack=r1 with label zone in (a, b)",
    ),
    "every node has a taint that it does not tolerate": (
        alone(node(1, taints=[ML]), node(2, taints=[ML, SPOT]), node(3, gpus=0)),
        "taint",
        "excluded from the 1 node that would fit by taints that it does not tolerate: dedicated=ml:NoSchedule",
    ),
    "a job that it keeps apart from is everywhere": (
        apart(),
        "constraint",
        "no node matches the request: jobs of web run apart from each other",
    ),
    "free but slowed down by heat": (
        alone(node(1, gpus=[gpu(n, is_slowed=n > 1) for n in range(4)]), gpus=3),
        "hot",
        "free but slowed down by heat, so not used until they cool: 2 suitable GPUs",
    ),
    "ranks that do not divide the GPUs": (
        alone(node(1), gpus=3, gang=True, ranks=2),
        "never_fits",
        f"can never start: 2 ranks do not divide 3 GPUs evenly; the largest possible is {NODE}",
    ),
    "not before": (later("not_before"), "not_before", "not to start before 1970-01-12 13:47:40 UTC"),
    "not before the end of time": (
        later("not_before", datetime.max.replace(tzinfo=UTC).timestamp()),
        "not_before",
        "not to start before 9999-12-31 23:59:59 UTC",
    ),
    "a retry's pause": (
        later("retry_backoff"),
        "retry_backoff",
        "its next attempt waits until 1970-01-12 13:47:40 UTC",
    ),
    "more than the limit": (
        limited(6),
        "tenant_limit",
        "requests 8 GPUs, more than the limit of 6 of tenant nlp",
    ),
    "a budget that is used up": (
        cluster(node(1), jobs=[job(1)], tenants=[SPENT]),
        "budget",
        "the budget of tenant nlp is used up: 100 of 100 GPU-hours in the last 30 days",
    ),
    "more than is left of the limit": (
        limited(9),
        "quota_wait",
        "quota exceeded for tenant nlp: GPUs requested=8, limit=9, in use=2",
    ),
    "promised to another": (
        promised(),
        "reserved",
        "4 suitable GPUs are free but reserved for job 2, which starts at 1970-01-12 14:46:40 UTC at the latest",
    ),
    "the only node that fits is closed": (
        alone(node(1, is_open=False), node(2, gpus=2), gpus=4),
        "maintenance",
        "cordoned, draining or not reporting: 1 node that would fit",
    ),
    "the node that would be free is closed": (
        replace(fragmented(), nodes=(*fragmented().nodes, node(3, is_open=False))),
        "maintenance",
        "cordoned, draining or not reporting: 1 node that would fit",
    ),
    "devices out of service": (alone(node(1, gpus=SICK), gpus=3), "health", "out of service: 2 suitable GPUs"),
    "devices out of service and closed": (
        alone(node(1, gpus=SICK), node(2, gpus=1, is_open=False), gpus=3),
        "health",
        "out of service: 2 suitable GPUs",
    ),
    "the device that would be free is out of service": (
        replace(running_on(cluster(node(1, gpus=SICK)), job(9, gpus=2)), jobs=(job(1),)),
        "health",
        "out of service: 2 suitable GPUs",
    ),
    "GPUs here and there": (fragmented(), "fragmented", "5 suitable GPUs are free, but no node has 4 together"),
    "GPUs without CPU": (
        replace(running_on(cluster(node(1)), job(9, gpus=1, cpu_milli=63_000)), jobs=(job(1, cpu_milli=2500),)),
        "cpu_memory",
        "no suitable node has 2.5 CPU cores and 0 MiB of memory free together",
    ),
    "CPU alone": (
        replace(
            running_on(cluster(node(1)), job(9, gpus=0, memory_mb=250_000)), jobs=(job(1, gpus=0, memory_mb=9000),)
        ),
        "cpu_memory",
        "no suitable node has 1 CPU core and 9000 MiB of memory free together",
    ),
    "the room went to one that comes first": (
        cluster(node(1), jobs=[job(2, gpus=6, age=9999), job(1, gpus=4)]),
        "priority",
        "the capacity of this cycle went to 1 job (6 GPUs) ahead of it: 4 GPUs requested, 2 suitable remain",
    ),
    "no room": (
        full(),
        "capacity",
        "waits for 4 GPUs: 1 of 16 suitable are free; 1 job (8 GPUs) ahead",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_cause_has_its_code_and_its_sentence(name: str) -> None:
    """A20"""
    snapshot, code, sentence = CASES[name]
    result = reason(decide(snapshot), 1)
    assert result.code == code
    assert reasons.sentence(result.code, result.evidence) == sentence


def test_every_reason_code_of_the_engine_has_a_case() -> None:
    not_the_engine_s = {"held_by_user", "held_by_admin", "dependency", "max_parallel", "starting", "scheduler_behind"}
    # Their cases stand with the rules that give them: preemption and limits per user.
    elsewhere = {"reclaim_pending", "preempt_delay", "user_cap"}
    assert {code for _, code, _ in CASES.values()} == set(reasons.Pending) - not_the_engine_s - elsewhere


def test_jobs_of_one_request_share_their_evidence() -> None:
    """The evidence becomes JSON once per request, not once per job."""
    state = running_on(cluster(node(1)), job(9, gpus=8))
    new_plan = decide(replace(state, jobs=tuple(job(id, gpus=2) for id in range(1, 100))))
    assert len({id(entry.evidence) for entry in new_plan.reasons}) == 1


def test_counts_above_ten_are_rounded_to_avoid_rewriting_a_long_queue() -> None:
    """A60"""
    state = running_on(cluster(node(1)), job(9, gpus=8))
    jobs = [job(id, gpus=2) for id in range(1, 38)]
    new_plan = decide(replace(state, jobs=(*jobs, job(99, gpus=1))))
    assert reason(new_plan, 99).evidence["jobs_ahead"] == "more than 30"
    assert reason(new_plan, 99).evidence["gpus_ahead"] == "more than 70"
    assert reasons.sentence("capacity", reason(new_plan, 99).evidence) == (
        "waits for 1 GPU: 0 of 8 suitable are free; more than 30 jobs ahead"
    )


def test_free_gpus_above_ten_are_rounded_down_as_more_than() -> None:
    """A60: 15 of 16 are free."""
    state = running_on(cluster(node(1), node(2)), job(9))
    result = reason(decide(replace(state, jobs=(job(1, gpus=16, gang=True),))), 1)
    assert reasons.sentence(result.code, result.evidence) == (
        "waits for 16 GPUs: more than 10 of 16 suitable are free; no job is ahead of it"
    )


def test_a_count_is_exact_or_a_true_lower_bound_that_seldom_changes() -> None:
    """A60"""
    shown = [count_in_words(count) for count in range(100_000)]
    for count, words in enumerate(shown):
        if isinstance(words, int):
            assert words == count
        else:
            bound = int(words.removeprefix("more than "))
            assert bound < count < bound + 10 ** (len(str(count)) - 1)
    assert sum(entry != other for entry, other in pairwise(shown)) < 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"free": 1, "per_node": 2}, "1 suitable GPU is free, but no node has 2 together"),
        ({"free": 11, "per_node": 21}, "11 suitable GPUs are free, but no node has 21 together"),
        ({"free": 2.1, "per_node": 1}, "2.1 suitable GPUs are free, but no node has 1 together"),
    ],
)
def test_sentence_uses_the_singular_for_one(text, message):
    assert reasons.sentence("fragmented", text) == message


@pytest.mark.parametrize(
    ("change", "seconds", "sentence"),
    [
        ("wait_seconds", 7, "in 7 s"),
        ("wait_seconds", 86_399, "in 24 h"),
        ("wait_seconds", 86_401, "in 1 d 1 h"),
        ("wait_seconds", 3601, "in 1 h 1 min"),
        ("max_runtime_seconds", 5279, "with a time limit of 1 h 27 min"),
        ("max_runtime_seconds", 119.9, "with a time limit of 1 min 59 s"),
    ],
)
def test_time_in_a_sentence_is_rounded_for_people(change: str, seconds: float, sentence: str) -> None:
    assert reasons.change_sentence(change, seconds) == f"{sentence} it would start"


@pytest.mark.parametrize(
    ("code", "evidence", "text"),
    [
        ("not_before", {"at": "2030-01-31T08:00:00Z"}, "not to start before 2030-01-31 08:00:00 UTC"),
        ("retry_backoff", {"at": "2030-01-31T09:00:00+01:00"}, "its next attempt waits until 2030-01-31 08:00:00 UTC"),
        ("node_fault", {"node": "n1"}, "node n1 failed under it"),
        ("node_fault", {"node": "n1", "detail": "no disk"}, "node n1 failed under it: no disk"),
        ("node_fault", {"node": "n1", "detail": "GPU 3 was lost"}, "GPU 3 was lost on node n1"),
        (
            "exited",
            {"node": "n1", "exit_code": 1, "detail": "GPU 3: Xid 31: the program touched memory that is not its own"},
            "exited with code 1 (GPU 3: Xid 31: the program touched memory that is not its own)",
        ),
    ],
)
def test_a_sentence_writes_times_for_people_and_names_the_device_that_failed(
    code: str, evidence: reasons.Evidence, text: str
) -> None:
    """A60"""
    assert reasons.sentence(code, evidence) == text


@pytest.mark.parametrize(
    ("evidence", "step"),
    [
        ({"nodes": 2, "lost": 0}, "uncordon a node, or wait"),
        ({"nodes": 2, "lost": 2}, "bring a lost node back: start it and its agent, or wait"),
        ({"nodes": 2, "lost": 1}, "bring a lost node back (start it and its agent), uncordon a closed one, or wait"),
        ({"nodes": 2}, "bring a lost node back (start it and its agent), uncordon a closed one, or wait"),
    ],
)
def test_next_step_of_a_maintenance_reason_names_a_remedy(evidence, step):
    assert reasons.next_step("maintenance", evidence) == step


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("waits for 2 GPUs: 1 of 8 suitable are free", "it would wait for 2 GPUs: 1 of 8 suitable are free"),
        ("out of service: 2 suitable GPUs", "it would wait: out of service: 2 suitable GPUs"),
        ("", "it would wait"),
    ],
)
def test_reason_names_the_awaited_resource_once(reason, sentence):
    assert reasons.would_wait(reason) == sentence


@pytest.mark.parametrize("change", ["victims_ended", "dependencies_ended"])
def test_change_by_the_end_of_one_job_is_in_the_singular(change):
    sentence = reasons.change_sentence(change, 1)
    assert "the 1 job " in sentence and " have " not in sentence
