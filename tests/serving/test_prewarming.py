"""A74: pre-warming keeps or starts a replica when requests are likely, counts what it does, and stops at its budget."""

import random
from dataclasses import replace

import pytest
from django.test import override_settings

from gpusched.env import read
from gpusched.lib.db.sql import execute, query
from serving.endpoints.representation import represent_endpoints
from serving.models import Arrival as Row
from serving.models import Endpoint, Prewarming
from serving.prewarming import demo_history, rounds
from serving.prewarming.gaps import WEEK_SECONDS, Arrival, Chances
from serving.prewarming.keeping import (
    WASTE_SHARE,
    chance_of_use,
    chosen_worth,
    fixed_score,
    is_within_budget,
    is_worth_it,
    score,
)
from serving.replicas.reconcile import reconcile
from serving.replicas.scaling import Decision, decide
from tests.factories import make_member, make_node, make_tenant, submit
from tests.serving.requests import ask
from tests.serving.test_replicas import live, make, make_warm, run_idle_replica
from tests.serving.test_scaling import demand
from tests.serving.test_scaling import live as replicas

START = 2_000 * WEEK_SECONDS
HOUR = 3600.0


def hourly(weeks: int) -> list[Arrival]:
    """Return arrivals at five past each hour, each after a gap of 50 minutes."""
    return [Arrival(START + n * HOUR + 300, 3000.0) for n in range(int(weeks * 168))]


def test_replica_is_wanted_shortly_before_a_regular_arrival_only() -> None:
    now = START + 5 * WEEK_SECONDS
    chances, idle_since = Chances(hourly(5), now), now - 2700

    def is_wanted(at: float, *, is_warm: bool) -> bool:
        return is_worth_it(chance_of_use(chances, idle_since, at, is_warm=is_warm, cold_start_seconds=120), 600.0)

    assert is_wanted(now + 290, is_warm=True)
    assert is_wanted(now + 150, is_warm=False), "it starts ahead"
    assert not is_wanted(now - 1200, is_warm=True)
    assert not is_wanted(now - 1200, is_warm=False)


def test_chosen_worth_is_no_worse_than_a_fixed_keep_alive_on_both_axes() -> None:
    """A74"""
    now = START + 6 * WEEK_SECONDS
    worth = chosen_worth(hourly(6), now, float("inf"))
    assert worth is not None
    last = [arrival for arrival in hourly(6) if arrival.at > now - WEEK_SECONDS]
    result, fixed = score(Chances(hourly(5), now - WEEK_SECONDS), worth, last), fixed_score(last)
    assert result.misses <= fixed.misses / 2
    assert result.wasted_seconds <= fixed.wasted_seconds


def test_nothing_is_chosen_without_history_or_beyond_the_budget() -> None:
    """A74: then the fixed keep-alive stays."""
    now = START + 6 * WEEK_SECONDS
    assert chosen_worth([], now, float("inf")) is None
    assert chosen_worth(hourly(6), now, 0.0) is None
    assert is_within_budget(WASTE_SHARE * 100, 100)
    assert not is_within_budget(WASTE_SHARE * 100 + 1, 100)


def test_kept_replica_is_started_and_stays_but_yields_to_waiting_jobs() -> None:
    kept = demand(is_prewarmed=True, is_kept=True)
    assert decide(kept) == Decision(1, ())
    assert decide(replace(kept, replicas=replicas(900))) == Decision(0, ())
    assert decide(replace(kept, replicas=replicas(900), are_gpus_needed=True)) == Decision(0, (1,))
    assert decide(demand(is_prewarmed=True, replicas=replicas(11))) == Decision(0, (1,)), "not after idle_seconds"
    assert decide(demand(replicas=replicas(11))) == Decision(0, ())


@pytest.fixture
def endpoint():
    make_node(gpus=4)
    tenant = make_tenant("nlp")
    return make(tenant, make_member(tenant))


def let_pass(endpoint: Endpoint, seconds: float) -> None:
    """Let the last round and the last request be so long ago."""
    execute(
        "UPDATE serving_prewarming SET seen_at = seen_at - make_interval(secs => %(s)s),"
        " active_at = active_at - make_interval(secs => %(s)s) WHERE endpoint_id = %(id)s",
        {"s": seconds, "id": endpoint.pk},
    )


def store_hourly_arrivals(endpoint: Endpoint) -> None:
    """Store six weeks of arrivals, each hour a minute from now."""
    execute(
        """INSERT INTO serving_arrival (endpoint_id, at, gap_seconds, was_warm, gpus, kept_seconds, idle_seconds)
           SELECT %s, now() + interval '60 s' - n * interval '1 hour', 3000, false, 1, 0, 300
             FROM generate_series(1, 6 * 168 - 1) AS n""",
        [endpoint.pk],
    )


def use_gpus(endpoint: Endpoint, hours: float) -> None:
    execute(
        """INSERT INTO tenants_usageentry (tenant_id, job_id, attempt, rank, node, gpu_model, gpus, started_at,
                                           ended_at, cause)
           VALUES (%s, 1, 1, 0, 'n1', 'A100', 1, now() - make_interval(secs => %s), now(), 'exited')""",
        [endpoint.tenant_id, hours * 3600],
    )


@pytest.mark.django_db
def test_round_records_a_request_after_a_gap(endpoint) -> None:
    rounds.update()
    let_pass(endpoint, 1000)
    ask(endpoint, endpoint.owner)
    rounds.update()
    [arrival] = Row.objects.all()
    assert (arrival.was_warm, arrival.gpus) == (False, 1)
    assert arrival.gap_seconds == pytest.approx(1000, abs=5)
    let_pass(endpoint, 5)
    rounds.update()
    assert Row.objects.count() == 1, "it is still active"


@pytest.mark.django_db
def test_cold_start_that_is_shorter_than_a_round_is_a_miss(endpoint) -> None:
    rounds.update()
    let_pass(endpoint, 1000)
    rounds.update()
    let_pass(endpoint, rounds.ROUND_SECONDS + 1)
    ask(endpoint, endpoint.owner)
    reconcile()
    [job_id] = live()
    make_warm(job_id, 3)
    execute("UPDATE serving_prewarming SET seen_at = seen_at - interval '11 s'")
    rounds.update()
    assert [arrival.was_warm for arrival in Row.objects.all()] == [False]


@pytest.mark.django_db
def test_replica_is_started_before_a_likely_request_and_counted(endpoint) -> None:
    """A74: and what it costs to keep it is counted."""
    store_hourly_arrivals(endpoint)
    use_gpus(endpoint, 160)
    rounds.update()
    let_pass(endpoint, 3000)
    reconcile()
    [job_id] = live()
    make_warm(job_id, 30)
    let_pass(endpoint, 20)
    ask(endpoint, endpoint.owner)
    rounds.update()
    arrival = Row.objects.latest("at")
    assert arrival.was_warm and arrival.gap_seconds > 3000


@pytest.mark.django_db
def test_kept_time_is_counted_while_a_warm_replica_is_idle(endpoint) -> None:
    store_hourly_arrivals(endpoint)
    use_gpus(endpoint, 160)
    rounds.update()
    let_pass(endpoint, 3000)
    reconcile()
    [job_id] = live()
    make_warm(job_id, 30)
    before = Prewarming.objects.get().kept_seconds
    let_pass(endpoint, 40)
    rounds.update()
    assert Prewarming.objects.get().kept_seconds == pytest.approx(before + 40, abs=5)


@pytest.mark.django_db
@pytest.mark.parametrize("off", ["endpoint", "server", "budget", "use"])
def test_nothing_is_kept_when_prewarming_is_off_or_over_budget(endpoint, off: str) -> None:
    """A74: by the endpoint, by the server, beyond 5 % waste, or in a tenant that hardly uses GPUs."""
    store_hourly_arrivals(endpoint)
    use_gpus(endpoint, 0.01 if off == "use" else 160)
    if off == "endpoint":
        Endpoint.objects.update(prewarming=False)
    if off == "budget":
        execute("UPDATE serving_arrival SET kept_seconds = 3000")
    settings = {"GPUSCHED_PREWARMING": "0"} if off == "server" else {}
    with override_settings(ENV=read(settings)):
        rounds.update()
        let_pass(endpoint, 3000)
        reconcile()
    assert live() == []
    assert query("SELECT is_kept FROM serving_prewarming")[0]["is_kept"] is False


@pytest.mark.django_db
def test_replica_without_gpus_is_kept_beyond_the_budget_and_while_jobs_wait_for_gpus() -> None:
    """A74: it wastes no GPU-hours, and has no GPUs to yield."""
    tenant, node = make_tenant("nlp"), make_node(gpus=4)
    user = make_member(tenant)
    job_id = run_idle_replica(tenant, user, node, template={"gpu_count": 0}, idle_seconds=1)
    store_hourly_arrivals(Endpoint.objects.get())
    execute("UPDATE serving_prewarming SET judged_at = NULL")
    let_pass(Endpoint.objects.get(), 3000)
    waiting = submit(user, tenant, gpu_count=4)
    execute("UPDATE jobs_job SET submitted_at = now() - interval '5 s', reason = 'capacity' WHERE id = %s", [waiting])
    reconcile()
    assert live() == [job_id]
    Endpoint.objects.update(prewarming=False)
    reconcile()
    assert live() == []


@pytest.mark.django_db
def test_demo_history_is_what_prewarming_keeps_warm(endpoint) -> None:
    """A74: `make demo` shows an endpoint kept warm, and the pages why."""
    Endpoint.objects.update(template={"command": ["serve"]})
    rounds.update()
    now = query("SELECT date_part('epoch', now()) AS now")[0]["now"]
    demo_history.store(endpoint.pk, now, random.Random(1))
    stored = Row.objects.count()
    demo_history.store(endpoint.pk, now, random.Random(1))
    assert Row.objects.count() == stored, "a restart of the demo adds none"
    for seconds in (15, 40, 100):
        let_pass(endpoint, seconds)
        reconcile()
        [row] = represent_endpoints(None, [endpoint.pk])
        assert row["is_kept_warm"] and row["request_chance"] >= row["keep_from_chance"] > 0
    assert len(live()) == 1
    # About as many: the history depends on the present time of day.
    assert row["cold_starts_avoided"] > 0.9 * row["prewarming_misses"] > 100
    assert row["gpu_hours_wasted"] == 0
