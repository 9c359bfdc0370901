"""Serving in a web process, from a request without replicas to its result, and back to no replicas."""

import asyncio
import threading
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from gpusched.lib import histograms
from gpusched.lib.bus.listener import Listener
from gpusched.lib.db.threads import DatabaseAway
from jobs.models import Job
from serving import upkeep
from serving.endpoints import endpoints
from serving.hub import ServingHub
from serving.models import Dispatcher, InferenceRequest, Replica
from serving.replicas.reconcile import reconcile
from serving.requests.shared_reads import SharedReads
from serving.requests.submit import NewRequest, submit
from serving.requests.waiting_clients import WaitingClients
from tests.factories import identity_for, make_member, make_node, make_tenant, run_cycle
from tests.serving.replicas import dispatching, ended, got, outcome, send, until

pytestmark = pytest.mark.django_db(transaction=True)


def test_request_starts_a_replica_and_idle_time_ends_it(replicas):
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    node = make_node(gpus=1)
    template = {"command": ["serve"], "gpu_count": 1}
    fields = {"name": "embed", "template": template, "idle_seconds": 1}
    endpoint = endpoints.create(tenant.pk, fields, identity_for(user))
    [number] = send(endpoint, user, "a")

    def start_replicas():
        run_cycle()
        node.start_all()
        for job_id in Job.objects.filter(state="running").values_list("pk", flat=True):
            if job_id not in replicas.processes:
                replicas.start(job_id)
        return not InferenceRequest.objects.filter(ended_at=None).exists()

    async def serve():
        hub = ServingHub(replicas.open, lambda: [node.id], lambda job_id: None)
        hub.start()
        try:
            await until(start_replicas)
            await until(ended([number]))
            await until(lambda: not Replica.objects.filter(is_draining=False).exists())
        finally:
            await hub.stop()

    asyncio.run(serve())
    assert outcome(number) == got("a")
    replica = Replica.objects.get()
    assert replica.warm_at and replica.busy_at
    endpoint.refresh_from_db()
    assert endpoint.seconds_per_cost


def test_lease_is_renewed_while_old_files_are_deleted_slowly(replicas, monkeypatch):
    tenant = make_tenant("nlp")
    make_node(gpus=1)
    fields = {"name": "embed", "template": {"command": ["serve"], "gpu_count": 1}}
    endpoints.create(tenant.pk, fields, identity_for(make_member(tenant)))
    is_deleting, is_renewed, renewals = threading.Event(), threading.Event(), []
    renew = upkeep.renew_lease

    def renew_lease(dispatcher):
        renewals.append(is_deleting.is_set())
        return renew(dispatcher)

    def forget_old():
        is_deleting.set()
        is_renewed.wait(60)
        return True

    monkeypatch.setattr(upkeep, "renew_lease", renew_lease)
    monkeypatch.setattr(upkeep, "forget_old", forget_old)

    async def serve():
        hub = ServingHub(replicas.open, list, lambda job_id: None)
        hub.start()
        try:
            await until(lambda: any(renewals))
        finally:
            is_renewed.set()
            await hub.stop()

    asyncio.run(serve())


def test_web_process_leaves_a_replica_whose_agent_has_moved_to_another_one(replicas):
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    node = make_node(gpus=1)
    fields = {"name": "embed", "template": {"command": ["serve"], "gpu_count": 1}, "min_replicas": 1}
    endpoint = endpoints.create(tenant.pk, fields, identity_for(user))
    reconcile()
    run_cycle()
    node.start_all()
    job_id = Replica.objects.get().job_id
    replicas.start(job_id)
    nodes = {1: [node.id], 2: []}

    def has_dispatcher(hub):
        return lambda: Replica.objects.get().dispatcher == hub.dispatcher_id() and Replica.objects.get().warm_at

    async def move():
        first = ServingHub(replicas.open, lambda: nodes[1], lambda job_id: None)
        second = ServingHub(replicas.open, lambda: nodes[2], lambda job_id: None)
        first.start()
        second.start()
        try:
            await until(has_dispatcher(first))
            nodes[1], nodes[2] = nodes[2], nodes[1]
            await until(has_dispatcher(second))
            [number] = await sync_to_async(send)(endpoint, user, "a")
            old, new = first._dispatcher, second._dispatcher
            assert old and new
            new.wake()
            await until(ended([number]))
            await until(lambda: not old.warm_replicas())
            return number
        finally:
            await first.stop()
            await second.stop()

    assert outcome(asyncio.run(move())) == got("a")
    assert InferenceRequest.objects.get().attempt == 1


def test_web_process_writes_the_speed_of_an_endpoint_only_once(replicas):
    """Its replica may be with another web process by now, which measures newer ones."""
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    endpoint = endpoints.create(tenant.pk, {"name": "embed", "template": {"command": ["serve"]}}, identity_for(user))

    async def serve():
        async with dispatching(replicas, endpoint, 1) as dispatcher:
            await until(ended(await sync_to_async(send)(endpoint, user, "a")))
            return dispatcher.learned(), dispatcher.learned()

    [(number, seconds)], later = asyncio.run(serve())
    assert number == endpoint.pk and seconds > 0
    assert later == []


def test_waiting_client_wakes_when_its_request_ends():
    class Notifications(Listener):
        def subscribe(self, callback):
            self.notify = callback

    async def scenario():
        notifications = Notifications()
        clients = WaitingClients(notifications)
        with clients.watch([7, 8]) as changed, clients.watch([9]) as other:
            notifications.notify({"tasks": [8]})
            assert (changed.is_set(), other.is_set()) == (True, False)
            notifications.notify({"jobs": []})
            assert not other.is_set()
            notifications.notify({"tasks": []})
            assert other.is_set()
        assert clients._events == {}

    asyncio.run(scenario())


def test_reads_that_arrive_during_a_query_share_the_next_one():
    queries, began, may_end = [], threading.Event(), threading.Event()

    def read(ids):
        queries.append(ids)
        began.set()
        may_end.wait(10)
        return {number: {"id": number} for number in ids if number != 4}

    async def scenario():
        reads = SharedReads(read)
        first = asyncio.create_task(reads.rows([1]))
        await asyncio.to_thread(began.wait, 10)
        others = [asyncio.create_task(reads.rows(ids)) for ids in ([2, 3], [3, 4])]
        gone = asyncio.create_task(reads.rows([5]))
        await asyncio.sleep(0)
        gone.cancel()
        may_end.set()
        assert [sorted(rows) for rows in await asyncio.gather(first, *others)] == [[1], [2, 3], [3]]

    asyncio.run(scenario())
    assert queries == [[1], [2, 3, 4, 5]]


def test_hub_without_a_database_goes_on_when_it_is_back(replicas, monkeypatch):
    calls = []

    def away(**_):
        calls.append(1)
        if len(calls) < 3:
            raise DatabaseAway

    monkeypatch.setattr(upkeep, "is_used", lambda: True)
    monkeypatch.setattr(upkeep, "keep_queue", away)
    monkeypatch.setattr("serving.ticks.TICK_SECONDS", 0.01)

    async def scenario():
        hub = ServingHub(replicas.open, list, lambda job_id: None)
        hub.start()
        await until(lambda: len(calls) > 5)
        await hub.stop()

    asyncio.run(scenario())


def test_clients_of_all_web_processes_wait_through_an_outage(replicas, monkeypatch):
    """A59: after it, each of them is silent until its next tick, and the first one must not take requests of others."""
    tenant = make_tenant("nlp")
    identity = identity_for(make_member(tenant))
    fields = {"name": "chat", "template": {"command": ["serve"]}, "protocol": "openai", "port": 8000}
    endpoint = endpoints.create(tenant.pk, fields, identity)
    ticks, is_away, keep_queue = [], [False], upkeep.keep_queue

    def is_used():
        if is_away[0]:
            ticks.append(1)
            raise DatabaseAway
        return True

    def count(**values):
        ticks.append(1)
        keep_queue(**values)

    monkeypatch.setattr(upkeep, "is_used", is_used)
    monkeypatch.setattr(upkeep, "keep_queue", count)
    monkeypatch.setattr("serving.ticks.TICK_SECONDS", 0.01)
    monkeypatch.setattr("serving.hub.RENEW_SECONDS", 0.0)

    async def next_ticks():
        seen = len(ticks)
        await until(lambda: len(ticks) > seen + 3)

    async def scenario():
        hub = ServingHub(replicas.open, list, lambda job_id: None)
        hub.start()
        try:
            await next_ticks()
            other = await Dispatcher.objects.acreate()
            for web in (hub.dispatcher_id(), other.pk):
                await sync_to_async(submit)(endpoint, [NewRequest(b"", "")], identity, web)
            is_away[0] = True
            await next_ticks()
            await Dispatcher.objects.aupdate(seen_at=timezone.now() - timedelta(minutes=1))
            is_away[0] = False
            await next_ticks()
        finally:
            await hub.stop()

    asyncio.run(scenario())
    assert list(InferenceRequest.objects.values_list("state", flat=True)) == ["queued", "queued"]


def test_hub_writes_nothing_on_a_server_without_endpoints(replicas, monkeypatch):
    checks, writes, is_used = [], [], upkeep.is_used

    def check():
        checks.append(1)
        return is_used()

    monkeypatch.setattr(upkeep, "is_used", check)
    for name in ("renew_lease", "save", "keep_queue", "adopt"):
        monkeypatch.setattr(upkeep, name, lambda *_, name=name, **__: writes.append(name))
    monkeypatch.setattr("serving.ticks.TICK_SECONDS", 0.01)

    async def scenario():
        hub = ServingHub(replicas.open, list, lambda job_id: None)
        hub.start()
        await until(lambda: len(checks) > 5)
        await hub.stop()

    asyncio.run(scenario())
    assert writes == []


def test_hub_writes_pending_counts(replicas, monkeypatch):
    """Also on a server without endpoints: streams and buckets are counted, too."""
    pending = histograms.Pending()
    monkeypatch.setattr(histograms, "pending", pending)
    monkeypatch.setattr("serving.ticks.TICK_SECONDS", 0.01)
    pending.add("counted", "label", 1.0)

    async def scenario():
        hub = ServingHub(replicas.open, list, lambda job_id: None)
        hub.start()
        await until(lambda: not pending)
        await hub.stop()

    asyncio.run(scenario())
    assert sum(histograms.read("counted")["label"][0]) == 1


def test_request_of_a_new_process_waits_for_its_lease(replicas):
    """The hub starts with the first request of its process, so that request always comes before the lease."""

    async def first_request():
        hub = ServingHub(replicas.open, list, lambda job_id: None)
        assert hub.wait_for_lease(0) is None
        hub.start()
        try:
            lease = await asyncio.to_thread(hub.wait_for_lease, 30)
            assert lease is not None and lease == hub.dispatcher_id()
        finally:
            await hub.stop()

    asyncio.run(first_request())
