"""The dispatcher with real replicas: processes that call gpusched.serve.serve(), reached through their Unix sockets."""

import asyncio
import signal

import psycopg
import pytest
from asgiref.sync import sync_to_async

from gpusched.lib.db import outages
from serving.batching import rounds, transfers
from serving.models import InferenceRequest, Use
from serving.requests import claims
from tests.serving.replicas import dispatching, ended, got, outcome, send, until
from tests.serving.requests import ask, make_endpoint

pytestmark = pytest.mark.django_db(transaction=True)


def run(replicas, endpoint, user, *texts, jobs=(1,), **fields):
    """Send requests with these texts to warm replicas, and return their outcomes."""

    async def serve_all():
        async with dispatching(replicas, endpoint, *jobs, **fields) as dispatcher:
            await until(lambda: len(dispatcher.warm_replicas()) == len(jobs))
            ids = await sync_to_async(send)(endpoint, user, *texts)
            dispatcher.wake()
            await until(ended(ids))
            return ids

    return [outcome(number) for number in asyncio.run(serve_all())]


def test_requests_are_batched_and_each_gets_its_result(replicas, tenant, user):
    endpoint = make_endpoint(tenant, user)
    texts = [str(number) for number in range(20)]
    assert run(replicas, endpoint, user, *texts) == [got(text) for text in texts]
    sizes = set(InferenceRequest.objects.values_list("batch_size", "flush_reason"))
    assert sizes >= {(8, "size")}
    assert Use.objects.get().requests == 20


def test_requests_are_shared_by_two_replicas(replicas, tenant, user):
    endpoint = make_endpoint(tenant, user)
    run(replicas, endpoint, user, *(str(number) for number in range(64)), jobs=(1, 2))
    assert set(InferenceRequest.objects.values_list("replica_job_id", flat=True)) == {1, 2}


@pytest.mark.parametrize(
    ("poison", "code"), [("error", "error"), ("one", "error"), ("few", "wrong_number_of_results"), ("hang", "timeout")]
)
def test_poisoned_request_fails_alone(replicas, tenant, user, poison, code):
    """A68"""
    endpoint = make_endpoint(tenant, user)
    replicas.start(3)  # takes over from one that hangs
    outcomes = run(replicas, endpoint, user, "a", poison, "b", jobs=(1, 2, 3), timeout_seconds=1.0)
    assert outcomes == [got("a"), code, got("b")]


def test_out_of_memory_halves_the_batch_and_loses_nothing(replicas, tenant, user):
    endpoint = make_endpoint(tenant, user)
    assert run(replicas, endpoint, user, "a", "b", "memory", "c") == [got("a"), got("b"), got("memory"), got("c")]


def test_request_that_runs_out_of_memory_alone_fails_alone(replicas, tenant, user):
    """A68"""
    endpoint = make_endpoint(tenant, user)
    assert run(replicas, endpoint, user, "a", "greedy", "b") == [got("a"), "out_of_memory", got("b")]
    tries = InferenceRequest.objects.order_by("id").values_list("attempt", "flush_reason")
    assert list(tries) == [(2, "memory")] * 3


def test_batches_stay_below_the_size_that_ran_out_of_memory(replicas, tenant, user):
    """A batch of 8 does not fit, one of 6 does: after the first failure, the batches grow from 4 to 7, and no further
    than the size that failed last."""
    endpoint = make_endpoint(tenant, user)
    texts = [f"large {number}" for number in range(120)]
    assert run(replicas, endpoint, user, *texts) == [got(text) for text in texts]
    done = list(InferenceRequest.objects.order_by("id").values_list("batch_size", "attempt", "flush_reason"))
    assert max(size or 0 for size, _, _ in done) == 6
    assert max(attempt for _, attempt, _ in done) == 2
    assert sum(attempt - 1 for _, attempt, _ in done) == 8 + 7  # requests of the two batches that failed
    assert {reason for size, _, reason in done if size in (4, 5, 6)} == {"memory"}


def test_request_that_kills_its_replica_fails_alone(replicas, tenant, user):
    """A68: one replica is lost with the batch, and two more with the request alone."""
    endpoint = make_endpoint(tenant, user)
    outcomes = run(replicas, endpoint, user, "a", "killed", "b", jobs=range(1, 5))
    assert outcomes == [got("a"), "replica_lost", got("b")]
    assert list(InferenceRequest.objects.order_by("id").values_list("attempt", flat=True)) == [2, 3, 2]


def test_request_whose_replicas_are_stopped_is_retried(replicas, tenant, user, monkeypatch):
    """A replica whose job is preempted or cancelled says nothing about its request."""
    monkeypatch.setattr("serving.batching.dispatcher.ended_itself", lambda job_id: False)
    endpoint = make_endpoint(tenant, user)
    assert run(replicas, endpoint, user, "killed", jobs=range(1, 6)) == ["replica_lost"]
    assert InferenceRequest.objects.get().attempt == 5


def test_request_is_at_fault_only_for_replicas_that_ended_while_it_ran_alone(replicas, tenant, user, monkeypatch):
    """Lost agents and stopped jobs raise its attempts, too: they are no reason to fail it at its first crash."""
    is_own = "serving.batching.dispatcher.ended_itself"
    monkeypatch.setattr(is_own, lambda job_id: InferenceRequest.objects.get().attempt > 2)
    endpoint = make_endpoint(tenant, user)
    assert run(replicas, endpoint, user, "killed", jobs=range(1, 6)) == ["replica_lost"]
    assert InferenceRequest.objects.get().attempt == 4


def test_replica_killed_for_its_memory_halves_the_batches(replicas, tenant, user):
    endpoint = make_endpoint(tenant, user)

    async def lose_a_batch():
        async with dispatching(replicas, endpoint, 1) as dispatcher:
            await until(lambda: dispatcher.warm_replicas() != [])
            await sync_to_async(send)(endpoint, user, "a", "b", "c", "killed")
            dispatcher.wake()
            await until(lambda: dispatcher.lost_replicas() == [1])
            dispatcher.explain_loss(1, is_out_of_memory=True)
            assert dispatcher.lost_replicas() == []
            return dispatcher.endpoints[endpoint.pk].limit.below(8)

    assert asyncio.run(lose_a_batch()) == 2


def test_replica_that_exits_in_a_batch_loses_no_request(replicas, tenant, user):
    """A68"""
    endpoint = make_endpoint(tenant, user)
    assert run(replicas, endpoint, user, "a", "exit", "b", jobs=(1, 2)) == [got("a"), got("exit"), got("b")]


def test_hung_replica_is_reported_for_replacement(replicas, tenant, user):
    run(replicas, make_endpoint(tenant, user), user, "hang", timeout_seconds=0.5)
    assert replicas.hung == [1]


def test_replica_finishes_its_batch_and_ends_at_sigterm(replicas, tenant, user):
    """A65"""
    endpoint = make_endpoint(tenant, user)

    async def stop_during_a_batch():
        async with dispatching(replicas, endpoint, 1) as dispatcher:
            ids = await sync_to_async(send)(endpoint, user, "slow")
            dispatcher.wake()
            await until((replicas.folder / "slow").exists)
            replicas.processes[1].send_signal(signal.SIGTERM)
            await until(ended(ids))
            return ids

    [number] = asyncio.run(stop_during_a_batch())
    assert (outcome(number), InferenceRequest.objects.get().attempt) == (got("slow"), 1)
    assert replicas.processes[1].wait(10) == 0


def test_idle_replica_ends_at_sigterm(replicas, tenant, user):
    run(replicas, make_endpoint(tenant, user), user, "a")
    replicas.processes[1].send_signal(signal.SIGTERM)
    assert replicas.processes[1].wait(10) == 0


def test_lone_request_is_not_delayed_until_max_wait(replicas, tenant, user):
    endpoint = make_endpoint(tenant, user)
    [number] = ask(endpoint, user)

    async def serve_one():
        async with dispatching(replicas, endpoint, 1, max_wait_seconds=60.0) as dispatcher:
            dispatcher.wake()
            await until(ended([number]))

    asyncio.run(serve_one())
    assert InferenceRequest.objects.get().flush_reason == "idle"


def test_results_of_a_batch_survive_a_longer_batch_of_another_replica(replicas, tenant, user, monkeypatch):
    """Results wait in memory until they are recorded. A batch that began earlier ends while they wait."""
    monkeypatch.setattr("serving.batching.dispatcher.RETRY_SECONDS", 1.0)
    run_round = rounds.run_round
    rounds_with_results: list[int] = []

    def refuse_second_results(dispatcher, outcomes, *arguments):
        rounds_with_results.extend([len(outcomes)] if outcomes else [])
        if outcomes and len(rounds_with_results) == 2:
            error = psycopg.OperationalError("server closed the connection unexpectedly")
            outages.note_connection(error, None)
            raise error
        return run_round(dispatcher, outcomes, *arguments)

    monkeypatch.setattr(rounds, "run_round", refuse_second_results)
    endpoint = make_endpoint(tenant, user)
    answers = run(replicas, endpoint, user, "slow", "b", "c", jobs=(1, 2), max_batch=1)
    assert answers == [got("slow"), got("b"), got("c")]
    assert set(InferenceRequest.objects.values_list("attempt", flat=True)) == {1}


def test_batch_with_an_unexpected_failure_is_retried(replicas, tenant, user, monkeypatch):
    store = transfers.store
    failures: list[str] = []

    async def fail_once(outcomes):
        if not failures:
            failures.append("store")
            raise RuntimeError("unexpected")
        return await store(outcomes)

    monkeypatch.setattr(transfers, "store", fail_once)
    monkeypatch.setattr("serving.batching.dispatcher.RECONCILE_SECONDS", 0.2)
    endpoint = make_endpoint(tenant, user)
    assert run(replicas, endpoint, user, "a", jobs=(1, 2)) == [got("a")]


def test_claim_whose_commit_was_not_answered_returns_to_the_queue(replicas, tenant, user, monkeypatch):
    """The database goes away while it answers: the batch is claimed, and its dispatcher does not know of it."""
    run_round = rounds.run_round
    unanswered: list[int] = []

    def commit_without_answer(*arguments):
        result = run_round(*arguments)
        if result.batches and not unanswered:
            unanswered.extend(request.id for _, requests in result.batches for request in requests)
            error = psycopg.OperationalError("server closed the connection unexpectedly")
            outages.note_connection(error, None)
            raise error
        return result

    monkeypatch.setattr(rounds, "run_round", commit_without_answer)
    monkeypatch.setattr("serving.batching.dispatcher.RETRY_SECONDS", 0.05)
    endpoint = make_endpoint(tenant, user)
    assert run(replicas, endpoint, user, "a", "b", "c") == [got("a"), got("b"), got("c")]
    assert set(InferenceRequest.objects.filter(pk__in=unanswered).values_list("attempt", flat=True)) == {2}


def test_request_whose_return_to_the_queue_was_skipped_returns_later(replicas, tenant, user, monkeypatch):
    """A return skips rows that another transaction has locked. The replica that failed the batch gets no other one."""
    returned: list[dict[int, int]] = []

    def skip_first(dispatcher, attempts, *, alone):
        returned.append(attempts)
        if len(returned) > 1:
            return_to_queue(dispatcher, attempts, alone=alone)

    return_to_queue = claims.return_to_queue
    monkeypatch.setattr(claims, "return_to_queue", skip_first)
    monkeypatch.setattr("serving.batching.dispatcher.RECONCILE_SECONDS", 0.2)
    endpoint = make_endpoint(tenant, user)
    assert run(replicas, endpoint, user, "a", "few") == [got("a"), "wrong_number_of_results"]
