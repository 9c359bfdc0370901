"""A storm over inference requests: kills replicas, the agents, web, workers and PostgreSQL at random while requests are
submitted, served and cancelled. Then counts requests that were lost, doubled, stuck or wrongly answered, and errors of
the cost ledger and of the token bucket."""

import random
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg

from gpusched.agent.processes import signal_all
from gpusched.client.errors import GpuschedError
from tests.system.chaos import RESTART, Agents, kill_part, storm_stack
from tests.system.stack import Stack
from tests.waiting import until_random_moment, wait_for

NAME, MARK = "chaos", "replica-of-the-storm"
# Single parts come more often than the whole control plane ("").
VICTIMS = (
    "replica", "replica", "replica", "agent", "daphne", "daphne", "worker cycles", "worker housekeeping", "postgres",
    RESTART, "",
)  # fmt: skip
REPLICA = """
import time
from gpusched.serve import serve

def work(requests):
    time.sleep(0.002 + 0.001 * len(requests))
    return [2 * number for number in requests]

serve(work)
"""
SUBMITTERS, CANCELLED_PART = 4, 0.02
STUCK_SECONDS = 180.0


@dataclass
class Outcome:
    """The outcome of a storm. The first eight must be 0. `lost`: acknowledged requests that do not exist; `doubled`:
    those whose submit was not acknowledged; `stuck`: without an end; `not_completed`: failed, expired or refused;
    `wrong_results`: completed ones with another result; `twice`: more results in the cost ledger than completed
    requests."""

    lost: int
    doubled: int
    stuck: int
    not_completed: int
    wrong_results: int
    twice: int
    cost_wrong: float
    tokens_wrong: float
    requests: int
    completed: int
    cancelled: int
    attempts: int
    kills: int
    killed: str
    seconds: float

    @property
    def failures(self) -> int:
        counts = (self.lost, self.doubled, self.stuck, self.not_completed, self.wrong_results, self.twice)
        return sum(counts) + (self.cost_wrong != 0) + (self.tokens_wrong != 0)


def serving_storm(requests: int, seconds: float, seed: int) -> Outcome:
    """Submit about evenly over the time, kill a part every few seconds, wait for all requests, and count."""
    began = time.monotonic()
    with storm_stack(10.0) as agents:
        stack = agents.stack
        _prepare(stack, requests)
        flow = Flow(stack, requests, seconds, seed)
        kills = _kill_until(agents, flow, random.Random(seed + 1))
        flow.finish()
        with suppress(TimeoutError):
            wait_for(lambda: _open(stack) == 0, STUCK_SECONDS, "all requests to end", pause=0.5)
        outcome = _outcome(stack, flow, kills, began)
        agents.close()
        return outcome


def _prepare(stack: Stack, requests: int) -> None:
    template = {"command": [sys.executable, "-c", REPLICA, MARK], "gpu_count": 1}
    with stack.client() as client:
        client.create_bucket("default", scope="tenant", rate_per_second=0, burst=_burst(requests))
        client.create_endpoint(
            NAME, template, min_replicas=2, max_replicas=3, max_batch=16, max_queue=100_000, timeout_seconds=900
        )
        wait_for(lambda: client.endpoint(NAME).warm, 60, "a warm replica")


def _burst(requests: int) -> float:
    return 4.0 * requests


@dataclass
class Flow:
    """Submits groups of requests over a few connections, each until it is acknowledged, and cancels some of them."""

    stack: Stack
    requests: int
    seconds: float
    seed: int
    acknowledged: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._groups = self._split()
        self._pause = SUBMITTERS * self.seconds / len(self._groups)
        self._has_failed = threading.Event()
        self.threads = [threading.Thread(target=self._work) for _ in range(SUBMITTERS)]
        for thread in self.threads:
            thread.start()

    def is_over(self) -> bool:
        return not any(thread.is_alive() for thread in self.threads)

    def finish(self) -> None:
        for thread in self.threads:
            thread.join()

    def _split(self) -> list[range]:
        groups, start = [], 0
        mean = max(1, self.requests // 200)
        while start < self.requests:
            end = min(self.requests, start + self._rng.randint(1, 2 * mean))
            groups.append(range(start, end))
            start = end
        return groups

    def _work(self) -> None:
        headers = {"Authorization": f"Bearer {self.stack.token()}"}
        with httpx.Client(base_url=f"{self.stack.url}/api/v1", headers=headers, timeout=10) as http:
            while self._groups:
                try:
                    inputs = self._groups.pop()
                except IndexError:
                    return
                due = time.monotonic() + self._pause
                ids = self._submit(http, inputs)
                self.acknowledged |= dict(zip(ids, inputs, strict=True))
                self._cancel(http, ids)
                self._has_failed.wait(max(0.0, due - time.monotonic()))

    def _submit(self, http: httpx.Client, inputs: range) -> list[int]:
        body = {"endpoint": NAME, "inputs": list(inputs), "units": 1 + inputs.start % 3}
        key = {"Idempotency-Key": uuid.uuid4().hex}
        while True:
            with suppress(httpx.HTTPError):  # not acknowledged: the same key again
                answer = http.post("/tasks", json=body, headers=key)
                if answer.status_code == 201:
                    return [task["id"] for task in answer.json()["items"]]
                if answer.status_code < 500:
                    raise RuntimeError(answer.text)
            self._has_failed.wait(0.1)

    def _cancel(self, http: httpx.Client, ids: list[int]) -> None:
        """Cancel a few, of which some still wait and some run. Whether it happened is read from the database."""
        for number in ids:
            if self._rng.random() < CANCELLED_PART:
                with suppress(httpx.HTTPError):
                    http.post(f"/tasks/{number}/cancel")


def _kill_until(agents: Agents, flow: Flow, rng: random.Random) -> Counter[str]:
    """Kill each part in a random order, again and again, until the flow ends; return how often each was killed."""
    kills: Counter[str] = Counter()
    victims: list[str] = []
    while not flow.is_over():
        until_random_moment(rng, 1.0, 3.0)
        victims = victims or rng.sample(VICTIMS, len(VICTIMS))
        victim = victims.pop()
        if victim == "replica":
            signal_all(_replicas(), signal.SIGKILL)
        else:
            kill_part(agents, victim, rng)
        kills[victim or "everything"] += 1
    return kills


def _replicas() -> list[int]:
    """Return the processes of the replicas' programs, without their supervisors."""
    pids = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().endswith(f"\x00{MARK}\x00".encode()):
                pids.append(int(entry.name))
    return pids


def _open(stack: Stack) -> int:
    try:
        endpoint = stack.client().endpoint(NAME)
    except GpuschedError:
        return -1
    return endpoint.queued + endpoint.running


_TASKS = """
    SELECT id, state, cost, attempt, convert_from(result, 'UTF8'), attempt = 0 FROM serving_inferencerequest
"""
_USE = "SELECT coalesce(sum(requests), 0)::bigint, coalesce(sum(cost), 0) FROM serving_use"


def _outcome(stack: Stack, flow: Flow, kills: Counter[str], began: float) -> Outcome:
    with psycopg.connect(stack.database_url()) as database:
        rows = database.execute(_TASKS).fetchall()
        used: Any = database.execute(_USE).fetchone()
        level: Any = database.execute("SELECT level FROM tenants_bucketlevel").fetchone()
    completed = [row for row in rows if row[1] == "completed"]
    cancelled = [row for row in rows if row[1] == "cancelled"]
    unfinished = [row for row in rows if row[1] in ("queued", "running")]
    ids = {row[0] for row in rows}
    taken = sum(row[2] for row in rows) - sum(row[2] for row in cancelled if row[5])
    return Outcome(
        lost=len(flow.acknowledged.keys() - ids),
        doubled=len(ids - flow.acknowledged.keys()),
        stuck=len(unfinished),
        not_completed=len(rows) - len(completed) - len(cancelled) - len(unfinished),
        wrong_results=sum(row[4] != str(2 * flow.acknowledged.get(row[0], -1)) for row in completed),
        twice=abs(used[0] - len(completed)),
        cost_wrong=used[1] - sum(row[2] for row in completed),
        tokens_wrong=level[0] - (_burst(flow.requests) - taken),
        requests=len(rows),
        completed=len(completed),
        cancelled=len(cancelled),
        attempts=sum(row[3] for row in rows),
        kills=kills.total(),
        killed=", ".join(f"{part} {times}" for part, times in sorted(kills.items())),
        seconds=time.monotonic() - began,
    )
