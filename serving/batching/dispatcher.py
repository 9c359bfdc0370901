"""Hand out requests to the replicas of this web process: one task forms batches, and one per replica runs them."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from django.db import connections

from gpusched.lib.cache import Cache
from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread
from serving.batching import rounds, transfers
from serving.batching.batch_limit import BatchLimit
from serving.former import Batch, Credit, Replica
from serving.replicas.connection import BatchFailed, ReplicaConnection, ReplicaExited, ReplicaHung, ReplicaLost, Stream
from serving.replicas.losses import ended_itself
from serving.replicas.scaling import smoothed
from serving.requests import claims
from serving.requests.claims import Claimed
from serving.requests.results import Outcome

logger = logging.getLogger(__name__)
RETRY_SECONDS = 1.0
CONNECT_SECONDS = 10.0
# A request that runs alone fails with its replica at this attempt, and sooner if it ended the programs of so many
# replicas. Not of one: something else may have killed that.
MAX_ATTEMPTS, MAX_CRASHES = 5, 2
# An agent reports the end of a process within this time, or is away.
EXPLAIN_SECONDS = 60.0
# Requests in progress that the dispatcher does not know of return to the queue this often, and after each failure.
RECONCILE_SECONDS = 10.0
_RATE_SECONDS = 1.0
# While a batch is being gathered, requests that arrive this close together need one round.
_GATHER_SECONDS = 0.003
OpenStream = Callable[[int], Awaitable[Stream]]


@dataclass
class ServedEndpoint:
    """An endpoint with replicas here, and what the dispatcher learns about it."""

    id: int
    name: str
    max_batch: int
    max_wait_seconds: float
    timeout_seconds: float
    is_draining: bool
    limit: BatchLimit = field(default_factory=BatchLimit)
    credit: Credit = field(default_factory=Credit)
    seconds_per_cost: float | None = None
    is_measured: bool = False  # since the last `learned`
    claimed: deque[tuple[float, int]] = field(default_factory=deque)

    def arrivals_per_second(self, now: float) -> float:
        while self.claimed and self.claimed[0][0] < now - _RATE_SECONDS:
            self.claimed.popleft()
        return sum(count for _, count in self.claimed) / _RATE_SECONDS


@dataclass(eq=False)
class _Worker:
    """A replica. `batches` is its inbox of at most one batch; `turns` its endpoints, the longest waiting first."""

    job_id: int
    turns: list[int]
    memory_mb: int | None
    max_batch: int | None = None
    is_free: bool = False
    # By the monotonic clock: since when it accepts batches, and the end of its latest one.
    warm_at: float | None = None
    busy_at: float | None = None
    batches: asyncio.Queue[tuple[Batch, list[Claimed]]] = field(default_factory=asyncio.Queue)
    task: asyncio.Task[None] | None = None
    requests: Sequence[Claimed] = ()  # of its batch, until they have outcomes or return to the queue


class Dispatcher:
    """All state belongs to the event loop. `id`: the row of its lease. `on_hung` replaces a replica's job."""

    def __init__(self, id: int, open_stream: OpenStream, on_hung: Callable[[int], None]) -> None:
        self.id = id
        self.endpoints: dict[int, ServedEndpoint] = {}
        self._open_stream, self._on_hung = open_stream, on_hung
        self._workers: dict[int, _Worker] = {}
        self._outcomes: list[Outcome] = []
        self._wake = asyncio.Event()
        self._reconciles_at = 0.0
        # The requests that each task returns to the queue, as (id, attempt).
        self._returning: dict[asyncio.Task[None], list[tuple[int, int]]] = {}
        self._again_at: float | None = None
        # By job: the endpoint and size of the batch in which its replica ended, and when.
        self._lost: dict[int, tuple[int, int, float]] = {}
        # By request: the replicas whose program ended while it ran alone.
        self._crashes = Cache[int, int](max_entries=10_000)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="serving")

    def wake(self) -> None:
        """Call it when requests may have arrived."""
        self._wake.set()

    def add_replica(self, job_id: int, endpoints: Sequence[int], memory_mb: int | None) -> None:
        """Serve the requests of these endpoints with a running job, until its connection ends. Call it again when its
        endpoints change: they keep their turns, and new ones come last."""
        if worker := self._workers.get(job_id):
            kept = [endpoint for endpoint in worker.turns if endpoint in endpoints]
            worker.turns = kept + [endpoint for endpoint in endpoints if endpoint not in kept]
        else:
            worker = self._workers[job_id] = _Worker(job_id, list(endpoints), memory_mb)
            worker.task = asyncio.get_running_loop().create_task(self._serve(worker), name=f"replica {job_id}")

    def keep_replicas(self, job_ids: Collection[int]) -> None:
        """Serve with no other replicas than these: their jobs stop, or another web process has them. One with a batch
        finishes it; call this again later to disconnect it."""
        for worker in self._workers.values():
            if worker.job_id not in job_ids:
                worker.turns = []  # it takes no other batch
                if worker.task and not worker.requests:
                    worker.is_free = False
                    worker.task.cancel()

    def warm_replicas(self) -> list[tuple[int, float, float | None]]:
        """Return the job of each warm replica, for how many seconds it has been warm, and how many seconds ago its
        latest batch ended; None: there was none."""
        now = time.monotonic()
        return [
            (worker.job_id, now - worker.warm_at, None if worker.busy_at is None else now - worker.busy_at)
            for worker in self._workers.values()
            if worker.warm_at is not None
        ]

    def learned(self) -> list[tuple[int, float]]:
        """Return the seconds per cost of the endpoints that were measured since the last call: an older value must not
        replace one that another web process measured meanwhile."""
        measured = [endpoint for endpoint in self.endpoints.values() if endpoint.is_measured]
        for endpoint in measured:
            endpoint.is_measured = False
        return [(e.id, e.seconds_per_cost) for e in measured if e.seconds_per_cost is not None]

    def lost_replicas(self) -> list[int]:
        """Return the jobs that ended in a batch lately and whose reason is not known yet; see `explain_loss`."""
        limit = time.monotonic() - EXPLAIN_SECONDS
        self._lost = {job_id: lost for job_id, lost in self._lost.items() if lost[2] > limit}
        return list(self._lost)

    def explain_loss(self, job_id: int, *, is_out_of_memory: bool) -> None:
        """Learn why a replica ended in a batch: one that was killed for its memory needs smaller batches."""
        endpoint_id, size, _ = self._lost.pop(job_id, (None, 0, 0.0))
        if is_out_of_memory and (endpoint := self.endpoints.get(endpoint_id or 0)):
            endpoint.limit.record_out_of_memory(size, time.monotonic())

    async def run(self) -> None:
        """Record results and hand out batches, until cancelled."""
        while True:
            await self._wait()
            outcomes, self._outcomes = self._outcomes, []
            now = time.monotonic()
            free = [w for w in self._workers.values() if w.is_free and any(e in self.endpoints for e in w.turns)]
            if now >= self._reconciles_at and not await self._reconcile(outcomes):
                self._outcomes = outcomes + self._outcomes
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if not outcomes and not free:
                continue
            replicas = [Replica(worker.job_id, worker.turns, worker.memory_mb) for worker in free]
            names = {endpoint for worker in free for endpoint in worker.turns if endpoint in self.endpoints}
            served = [self._served(self.endpoints[endpoint], now) for endpoint in sorted(names)]
            work = partial(rounds.run_round, self.id, outcomes, served, replicas, now)
            try:
                result = await run_in_thread(self._thread, work)
            except DatabaseAway:
                self._reconciles_at = 0.0  # the claim may have been committed
                self._outcomes = outcomes + self._outcomes
                await asyncio.sleep(RETRY_SECONDS)
            except WorkFailed:
                self._reconciles_at = 0.0
                await self._return({outcome.id: outcome.attempt for outcome in outcomes}, alone=True)
            else:
                self._hand_out(result, now)
                if not result.batches and result.again_at is not None:
                    await asyncio.sleep(min(_GATHER_SECONDS, max(0.0, result.again_at - time.monotonic())))

    async def close(self) -> None:
        """Disconnect the replicas; their requests in progress return to the queue once this lease is silent."""
        for worker in list(self._workers.values()):
            if worker.task:
                worker.task.cancel()
        await asyncio.gather(*(w.task for w in self._workers.values() if w.task), return_exceptions=True)
        self._thread.submit(connections.close_all)
        self._thread.shutdown()

    async def _wait(self) -> None:
        # Without endpoints nothing is in progress, and an idle process does not wake up.
        times = [self._again_at, self._reconciles_at if self.endpoints else None]
        due = min((at for at in times if at is not None), default=None)
        timeout = None if due is None else max(0.0, due - time.monotonic())
        try:
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()
        self._again_at = None

    def _served(self, endpoint: ServedEndpoint, now: float) -> rounds.Served:
        configured = self._configured_limit(endpoint)
        return rounds.Served(
            endpoint.id, endpoint.name, endpoint.limit.below(configured), endpoint.max_wait_seconds,
            endpoint.timeout_seconds, endpoint.arrivals_per_second(now), endpoint.is_draining, endpoint.credit,
            endpoint.limit.is_below(configured),
        )  # fmt: skip

    def _hand_out(self, result: rounds.Round, now: float) -> None:
        self._again_at = result.again_at
        for endpoint_id, credit in result.credits.items():
            self.endpoints[endpoint_id].credit = credit
        for batch, requests in result.batches:
            self.endpoints[batch.endpoint].claimed.append((now, len(requests)))
            worker = self._workers.get(batch.replica)
            if worker is None or not worker.is_free:  # it was lost meanwhile
                self._return_later(requests, alone=False)
                continue
            worker.is_free = False
            worker.turns = [endpoint for endpoint in worker.turns if endpoint != batch.endpoint] + [batch.endpoint]
            worker.requests = requests
            worker.batches.put_nowait((batch, requests))

    async def _serve(self, worker: _Worker) -> None:
        connection: ReplicaConnection | None = None
        try:
            stream = await self._open_stream(worker.job_id)
            connection = await ReplicaConnection.connect(stream, CONNECT_SECONDS)
            worker.max_batch = connection.max_batch
            worker.warm_at = time.monotonic()
            while True:
                worker.is_free = True
                self._wake.set()
                batch, requests = await self._next_batch(worker, connection)
                loaded, failed = await transfers.load(requests)
                self._outcomes += failed
                if loaded:
                    # Not `+= await`: the list that it adds to would be read before the batch runs.
                    outcomes = await transfers.store(await self._run(connection, batch, loaded))
                    self._outcomes += outcomes
                worker.requests = ()
                worker.busy_at = time.monotonic()
        except (ReplicaLost, OSError) as error:
            logger.info("the connection to replica %d ended: %s", worker.job_id, error)
            if isinstance(error, ReplicaHung):
                self._on_hung(worker.job_id)
        except Exception:
            logger.exception("serving with replica %d failed", worker.job_id)
        finally:
            worker.is_free = False
            self._workers.pop(worker.job_id, None)
            self._wake.set()
            if connection is not None:
                connection.close()

    async def _next_batch(self, worker: _Worker, connection: ReplicaConnection) -> tuple[Batch, list[Claimed]]:
        """Return the next batch. Raises ReplicaLost as soon as the idle connection ends, so that no batch goes to a
        replica that is gone; one that has arrived at that moment returns to the queue."""
        loop = asyncio.get_running_loop()
        lost, taken = loop.create_task(connection.lost()), loop.create_task(worker.batches.get())
        try:
            await asyncio.wait((lost, taken), return_when=asyncio.FIRST_COMPLETED)
            if not lost.done():
                return taken.result()
        finally:
            lost.cancel()
            taken.cancel()
            await asyncio.gather(lost, taken, return_exceptions=True)  # only one task may read from the connection
        if worker.requests:
            self._return_later(worker.requests, alone=False)
            worker.requests = ()
        return lost.result()

    async def _run(self, connection: ReplicaConnection, batch: Batch, requests: list[Claimed]) -> list[Outcome]:
        """Return the outcomes of a batch. A failed batch, or one whose replica is lost, returns to the queue, to be
        retried one by one; a request that fails alone fails."""
        endpoint, began = self.endpoints[batch.endpoint], time.monotonic()
        try:
            outcomes = await connection.run(endpoint.name, requests, endpoint.timeout_seconds)
        except BatchFailed as failure:
            if failure.code == "out_of_memory":
                endpoint.limit.record_out_of_memory(len(requests), time.monotonic())
            if len(requests) == 1:
                return [_failed(requests[0], failure.code, failure.message)]
            self._return_later(requests, alone=True)
            return []
        except ReplicaLost as lost:
            self._lost[batch.replica] = (batch.endpoint, len(requests), time.monotonic())
            if len(requests) == 1 and await self._is_at_fault(requests[0], batch.replica, lost):
                code = "timeout" if isinstance(lost, ReplicaHung) else "replica_lost"
                self._outcomes.append(_failed(requests[0], code, str(lost)))
            else:
                self._return_later(requests, alone=True)
            raise
        seconds = (time.monotonic() - began) / sum(request.cost for request in requests)
        endpoint.seconds_per_cost, endpoint.is_measured = smoothed(endpoint.seconds_per_cost, seconds), True
        endpoint.limit.record_success(len(requests), self._configured_limit(endpoint), time.monotonic())
        return outcomes

    async def _is_at_fault(self, request: Claimed, job_id: int, lost: ReplicaLost) -> bool:
        """Return whether a request that ran alone caused the loss of its replica."""
        if isinstance(lost, ReplicaHung) or request.attempt >= MAX_ATTEMPTS:
            return True
        if not request.runs_alone or not isinstance(lost, ReplicaExited):
            return False
        try:
            if not await run_in_thread(self._thread, partial(ended_itself, job_id)):
                return False
        except (DatabaseAway, WorkFailed):
            return False
        return self._crashes.update(request.id, lambda count: (count or 0) + 1) >= MAX_CRASHES

    def _configured_limit(self, endpoint: ServedEndpoint) -> int:
        """Return the most requests of a batch that each replica of the endpoint accepts, whatever memory they need."""
        limits = (worker.max_batch for worker in self._workers.values() if endpoint.id in worker.turns)
        return min([endpoint.max_batch, *(limit for limit in limits if limit)])

    def _return_later(self, requests: Sequence[Claimed], *, alone: bool) -> None:
        attempts = {request.id: request.attempt for request in requests}
        task = asyncio.get_running_loop().create_task(self._return(attempts, alone=alone))
        self._returning[task] = list(attempts.items())
        task.add_done_callback(self._returning.pop)

    async def _reconcile(self, outcomes: Sequence[Outcome]) -> bool:
        """Return the requests in progress that this dispatcher does not know of to the queue, such as those of a claim
        whose commit was not answered. `outcomes`: those about to be recorded. Return False if that failed."""
        # By attempt: one that was returned to the queue, and claimed again without an answer, is unknown.
        known = [(request.id, request.attempt) for worker in self._workers.values() for request in worker.requests]
        known += [(outcome.id, outcome.attempt) for outcome in (*outcomes, *self._outcomes)]
        known += [attempt for attempts in self._returning.values() for attempt in attempts]
        work = partial(claims.return_unknown, self.id, list(self.endpoints), known)
        try:
            await run_in_thread(self._thread, work)
        except (DatabaseAway, WorkFailed):
            return False
        self._reconciles_at = time.monotonic() + RECONCILE_SECONDS
        return True

    async def _return(self, attempts: dict[int, int], *, alone: bool) -> None:
        """Return requests to the queue, however long the database is away."""
        while True:
            try:
                await run_in_thread(self._thread, partial(claims.return_to_queue, self.id, attempts, alone=alone))
            except (DatabaseAway, WorkFailed):
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return self._wake.set()


def _failed(request: Claimed, code: str, message: str) -> Outcome:
    return Outcome(request.id, request.attempt, error_code=code, error=message)
