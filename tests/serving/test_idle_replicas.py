"""A dispatcher and its idle replicas: one that ends, or that another web process has, gets no requests."""

import asyncio

import pytest
from asgiref.sync import sync_to_async

from serving.batching.dispatcher import Dispatcher
from serving.models import InferenceRequest
from tests.factories import make_member, make_tenant
from tests.serving.replicas import UnixStream, dispatching, ended, got, outcome, send, until
from tests.serving.requests import make_endpoint

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def user():
    return make_member(make_tenant("nlp"))


@pytest.fixture
def endpoint(user):
    return make_endpoint(make_tenant("llm"), user)


class EndingStream(UnixStream):
    """A stream whose replica ends when `is_ended` is set, after its first message."""

    def __init__(self, stream, is_ended):
        super().__init__(stream.reader, stream.writer)
        self.is_ended, self.is_ready = is_ended, False

    async def read(self):
        if self.is_ready:
            await self.is_ended.wait()
            return b""
        self.is_ready = True
        return await super().read()


def test_idle_replicas_that_end_get_no_request(replicas, endpoint, user):
    """Each of them would take an attempt from the request, until it counts as the cause."""

    async def end_all_but_one():
        async with dispatching(replicas, endpoint, *range(1, 7)) as dispatcher:
            await until(lambda: len(dispatcher.warm_replicas()) == 6)
            for job_id in range(1, 6):
                replicas.processes[job_id].kill()
            await until(lambda: [job_id for job_id, _, _ in dispatcher.warm_replicas()] == [6])
            [number] = await sync_to_async(send)(endpoint, user, "a")
            dispatcher.wake()
            await until(ended([number]))

    asyncio.run(end_all_but_one())
    request = InferenceRequest.objects.get()
    assert (outcome(request.pk), request.attempt, request.replica_job_id) == (got("a"), 1, 6)


def test_batch_for_an_idle_replica_that_ends_at_that_moment_returns_to_the_queue(replicas, endpoint, user, monkeypatch):
    monkeypatch.setattr("serving.batching.dispatcher.RECONCILE_SECONDS", 1000.0)
    is_ended, open_stream, hand_out = asyncio.Event(), replicas.open, Dispatcher._hand_out

    def end_with_the_batch(self, result, now):
        hand_out(self, result, now)
        if result.batches:
            is_ended.set()

    async def open_ending(job_id):
        stream = await open_stream(job_id)
        return EndingStream(stream, is_ended) if job_id == 1 else stream

    async def end_one():
        async with dispatching(replicas, endpoint, 1) as dispatcher:
            await until(lambda: len(dispatcher.warm_replicas()) == 1)
            [number] = await sync_to_async(send)(endpoint, user, "a")
            dispatcher.wake()
            await until(lambda: not dispatcher.warm_replicas())
            replicas.start(2)
            dispatcher.add_replica(2, [endpoint.pk], None)
            await until(ended([number]))

    monkeypatch.setattr(Dispatcher, "_hand_out", end_with_the_batch)
    monkeypatch.setattr(replicas, "open", open_ending)
    asyncio.run(end_one())
    request = InferenceRequest.objects.get()
    assert (outcome(request.pk), request.attempt, request.runs_alone) == (got("a"), 2, False)


def test_replica_that_is_not_kept_finishes_its_batch_and_leaves(replicas, endpoint, user):
    """Its job stops, or another web process has it."""

    async def leave():
        async with dispatching(replicas, endpoint, 1) as dispatcher:
            await until(lambda: len(dispatcher.warm_replicas()) == 1)
            [number] = await sync_to_async(send)(endpoint, user, "slow")
            dispatcher.wake()
            await until(lambda: InferenceRequest.objects.filter(state="running").exists())
            dispatcher.keep_replicas([])
            await until(ended([number]))
            [waiting] = await sync_to_async(send)(endpoint, user, "b")
            dispatcher.wake()
            await asyncio.sleep(0.3)
            assert not await sync_to_async(ended([waiting]))()
            dispatcher.keep_replicas([])
            await until(lambda: dispatcher.warm_replicas() == [])
            dispatcher.add_replica(1, [endpoint.pk], None)
            await until(ended([waiting]))
            return [number, waiting]

    assert [outcome(number) for number in asyncio.run(leave())] == [got("slow"), got("b")]
    assert set(InferenceRequest.objects.values_list("attempt", flat=True)) == {1}


def test_limit_of_a_replica_ends_with_it(replicas, endpoint, user):
    """A newer version of its program, which has no limit, gets full batches."""
    texts = [str(number) for number in range(8)]
    replicas.start(1, max_batch=2)

    async def serve_all():
        async with dispatching(replicas, endpoint, 1) as dispatcher:
            await until(lambda: len(dispatcher.warm_replicas()) == 1)
            limited = await sync_to_async(send)(endpoint, user, *texts)
            dispatcher.wake()
            await until(ended(limited))
            replicas.start(2)
            dispatcher.add_replica(2, [endpoint.pk], None)
            dispatcher.keep_replicas([2])
            await until(lambda: [replica[0] for replica in dispatcher.warm_replicas()] == [2])
            later = await sync_to_async(send)(endpoint, user, *texts)
            dispatcher.wake()
            await until(ended(later))
            return limited, later

    sizes = [
        set(InferenceRequest.objects.filter(pk__in=ids).values_list("batch_size", flat=True))
        for ids in asyncio.run(serve_all())
    ]
    assert sizes == [{2}, {8}]
