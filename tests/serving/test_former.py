"""The batch former: properties over random queues and replicas, and the behaviours that users notice."""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from serving.former import Batch, Credit, Flush, Formed, Queue, Replica, Waiting, form

NOW = 100.0


def waiting(number: int, user: int = 1, cost: float = 1.0, age: float = 0.0, **fields: Any) -> Waiting:
    return replace(Waiting(number, user, cost, NOW - age), **fields)


def queue(requests: list[Waiting], **fields: Any) -> Queue:
    return replace(Queue(1, requests, max_batch=8, max_wait_seconds=0.01, arrivals_per_second=1e6), **fields)


@st.composite
def queues(draw: st.DrawFn) -> list[Queue]:
    numbers = iter(range(10_000))
    result = []
    for endpoint in range(draw(st.integers(1, 3))):
        requests = [
            Waiting(
                next(numbers),
                draw(st.integers(1, 4)),
                draw(st.sampled_from([1.0, 5.0, 10.0, 0.3])),
                NOW - draw(st.floats(0, 0.02)),
                draw(st.integers(0, 50)),
                draw(st.booleans()) and draw(st.booleans()),
            )
            for _ in range(draw(st.integers(0, 20)))
        ]
        result.append(
            Queue(
                endpoint,
                requests,
                draw(st.integers(1, 8)),
                0.01,
                draw(st.sampled_from([0.0, 1e6])),
                draw(st.booleans()),
            )
        )
    return result


@st.composite
def replicas(draw: st.DrawFn) -> list[Replica]:
    memory = st.one_of(st.none(), st.integers(0, 120))
    return [Replica(n, draw(st.permutations([0, 1, 2])), draw(memory)) for n in range(draw(st.integers(0, 4)))]


def requests_of(waiting_queues: list[Queue]) -> dict[int, tuple[int, Waiting]]:
    return {request.id: (each.endpoint, request) for each in waiting_queues for request in each.requests}


@given(queues(), replicas())
def test_batch_has_one_endpoint_and_fits_its_replica(waiting_queues, free):
    """A65"""
    requests = requests_of(waiting_queues)
    memory = {replica.id: replica.memory_mb for replica in free}
    maximum = {each.endpoint: each.max_batch for each in waiting_queues}
    for batch in form(waiting_queues, free, NOW).batches:
        assert {requests[number][0] for number in batch.requests} == {batch.endpoint}
        assert 1 <= len(batch.requests) <= maximum[batch.endpoint]
        used = sum(requests[number][1].memory_mb for number in batch.requests)
        assert memory[batch.replica] is None or used <= memory[batch.replica]
        assert len(batch.requests) == 1 or not any(requests[number][1].is_alone for number in batch.requests)


@given(queues(), replicas())
def test_request_and_replica_are_in_one_batch_at_most(waiting_queues, free):
    batches = form(waiting_queues, free, NOW).batches
    assert max(Counter(number for batch in batches for number in batch.requests).values(), default=1) == 1
    assert max(Counter(batch.replica for batch in batches).values(), default=1) == 1


@given(queues(), replicas())
def test_requests_of_a_user_keep_their_order(waiting_queues, free):
    """A65"""
    requests = requests_of(waiting_queues)
    taken: dict[tuple[int, int], list[int]] = defaultdict(list)
    for batch in form(waiting_queues, free, NOW).batches:
        for number in batch.requests:
            endpoint, request = requests[number]
            taken[endpoint, request.user].append(number)
    for (endpoint, user), numbers in taken.items():
        own = [number for number, (of, request) in requests.items() if (of, request.user) == (endpoint, user)]
        assert numbers == own[: len(numbers)]


@given(queues(), replicas())
def test_no_replica_idles_beside_a_due_batch(waiting_queues, free):
    """A65"""
    formed = form(waiting_queues, free, NOW)
    rest = without(waiting_queues, formed)
    busy = {batch.replica for batch in formed.batches}
    idle = [replica for replica in free if replica.id not in busy]
    assert form(rest, idle, NOW).batches == ()
    for replica in idle:
        for each in rest:
            heads = first_requests(each)
            fitting = [head for head in heads if replica.memory_mb is None or head.memory_mb <= replica.memory_mb]
            waited = any(NOW - head.queued_at > each.max_wait_seconds + 1e-9 for head in heads)
            assert not (fitting and (waited or each.is_draining or len(each.requests) >= 8 * len(heads)))


@given(queues(), replicas())
def test_next_batch_becomes_due_at_the_returned_time(waiting_queues, free):
    formed = form(waiting_queues, free, NOW)
    if formed.again_at is not None:
        busy = {batch.replica for batch in formed.batches}
        idle = [replica for replica in free if replica.id not in busy]
        assert formed.again_at > NOW
        assert form(without(waiting_queues, formed), idle, formed.again_at + 1e-9).batches


def without(waiting_queues: list[Queue], formed: Formed) -> list[Queue]:
    taken = {number for batch in formed.batches for number in batch.requests}
    return [
        replace(each, requests=[r for r in each.requests if r.id not in taken], credit=formed.credits[each.endpoint])
        for each in waiting_queues
    ]


def first_requests(each: Queue) -> list[Waiting]:
    return list({request.user: request for request in reversed(each.requests)}.values())


def run(each: Queue, batches: int, memory_mb: int | None = None) -> list[Batch]:
    """Form this many batches one after the other, all for one replica."""
    result: list[Batch] = []
    for _ in range(batches):
        formed = form([each], [Replica(1, [each.endpoint], memory_mb)], NOW)
        result += formed.batches
        [each] = without([each], formed)
    return result


def reason_of(each: Queue, memory_mb: int | None = None) -> Flush | None:
    formed = form([each], [Replica(1, [1], memory_mb)], NOW)
    return formed.batches[0].reason if formed.batches else None


def test_reason_of_a_batch():
    one = [waiting(1)]
    assert reason_of(queue(one)) is None
    assert reason_of(queue([waiting(n) for n in range(8)])) is Flush.SIZE
    assert reason_of(queue([waiting(1, age=0.01)])) is Flush.WAIT
    assert reason_of(queue(one, arrivals_per_second=1.0)) is Flush.IDLE
    assert reason_of(queue(one, is_draining=True)) is Flush.DRAIN
    assert reason_of(queue([waiting(n, memory_mb=40) for n in range(3)]), memory_mb=100) is Flush.MEMORY
    assert reason_of(queue([waiting(1, is_alone=True)])) is Flush.SIZE
    assert reason_of(queue([waiting(1), waiting(2, is_alone=True)])) is Flush.SIZE
    assert reason_of(queue([waiting(1, is_alone=True)], is_short_of_memory=True)) is Flush.MEMORY
    assert reason_of(queue([waiting(n) for n in range(4)], max_batch=4, is_short_of_memory=True)) is Flush.MEMORY


def test_newcomer_waits_for_one_batch_at_most():
    """A66"""
    crowd = [waiting(n, user=1, age=1.0) for n in range(10_000)]
    [first] = run(queue(crowd), 1)
    rest = [request for request in crowd if request.id not in first.requests]
    batches = run(queue([*rest, waiting(10_001, user=2)]), 2)
    assert 10_001 in batches[0].requests


def test_newcomer_waits_for_one_batch_at_most_beside_expensive_requests():
    """A66"""
    crowd = [waiting(n, user=1, cost=1.0 if n % 2 else 100.0, age=1.0) for n in range(1_000)]
    batches = run(queue([*crowd, waiting(10_001, user=2, cost=1.0)]), 2)
    assert any(10_001 in batch.requests for batch in batches)


def test_users_get_equal_cost_for_an_unequal_offer():
    """A66"""
    heavy = [waiting(n, user=1, cost=1.0) for n in range(10_000)]
    light = [waiting(10_000 + n, user=2, cost=5.0) for n in range(1_000)]
    costs = {request.id: (request.user, request.cost) for request in [*heavy, *light]}
    total: dict[int, float] = defaultdict(float)
    for batch in run(queue([*heavy, *light]), 400):
        for number in batch.requests:
            user, cost = costs[number]
            total[user] += cost
    assert abs(total[1] - total[2]) <= 0.02 * total[1]


def test_user_without_waiting_requests_saves_no_credit():
    credit = Credit({1: 0.5, 9: 1000.0}, 9)
    formed = form([queue([waiting(1, age=1.0)], credit=credit)], [Replica(1, [1])], NOW)
    assert formed.credits[1].by_user.get(9) is None


def test_endpoints_take_turns_in_the_order_of_the_replica():
    both = [Queue(n, [Waiting(n, 1, 1.0, NOW - 1)], 8, 0.01) for n in (1, 2)]
    assert form(both, [Replica(1, [2, 1])], NOW).batches[0].endpoint == 2


def test_request_larger_than_the_free_memory_leaves_the_replica_to_others():
    requests = [waiting(1, user=1, memory_mb=500, age=1.0), waiting(2, user=2, memory_mb=10, age=1.0)]
    [batch] = form([queue(requests)], [Replica(1, [1], 100)], NOW).batches
    assert batch.requests == (2,)
