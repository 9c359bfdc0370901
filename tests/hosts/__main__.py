"""Prove failover (A80): break hosts, links and processes of a cluster while jobs flow, and count what it costs.

    make test-hosts ROUNDS=50

Prints a summary; `--json` prints it as JSON. Exits with 1 if a job was lost, run twice or charged wrongly, if an answer
was a 5xx other than 503, or if a bound was missed."""

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import cast

import httpx
import psycopg

from gpusched.agent.processes import descendants, signal_all
from tests.hosts.cluster import Cluster
from tests.hosts.network import Host
from tests.system.chaos import JOBS, TIMES, Flow, is_over, moments, wrongly_charged
from tests.system.stack import Stack
from tests.waiting import until_random_moment, wait_for

# How long a fault lasts: longer than Patroni's ttl.
FAULT_SECONDS = (25.0, 40.0)
BOUNDS = {"database": 30.0, "head": 3.0}


@dataclass
class Fault:
    """The fault of a round. `loses`: "database" if it takes PostgreSQL's primary away, "head" for a head."""

    name: str
    loses: str
    begin: Callable[[], object]
    end: Callable[[], object]


@dataclass
class Outcome:
    """`lost` to `bad_answers` must be 0. Times in seconds from the fault until a submit succeeds again."""

    lost: int
    not_completed: int
    run_twice: int
    ledger_wrong: int
    bad_answers: int
    jobs: int
    rounds: int
    write_gaps: dict[str, list[float]]
    database_p50: float
    database_max: float
    head_max: float
    statuses: dict[int, int]
    seconds: float

    def failures(self) -> list[str]:
        names = ("lost", "not_completed", "run_twice", "ledger_wrong", "bad_answers")
        broken = [f"{name}: {getattr(self, name)}" for name in names if getattr(self, name)]
        late = {"database": self.database_max, "head": self.head_max}
        return broken + [
            f"{name}: {late[name]:.1f} s > {bound} s" for name, bound in BOUNDS.items() if late[name] > bound
        ]


def faults(cluster: Cluster, chance: random.Random) -> list[Fault]:
    """Return one fault of each kind, for the present primary."""
    primary = cluster.primary()
    frozen: list[int] = []

    def freeze(pids: list[int]) -> None:
        frozen.extend(pids)
        signal_all(frozen, signal.SIGSTOP)

    def thaw() -> None:
        signal_all(frozen, signal.SIGCONT)

    def cut(name: str, loses: str, host: Host, direction: str = "both") -> Fault:
        return Fault(name, loses, lambda: host.cut(direction), host.mend)  # type: ignore[arg-type]

    def kill(name: str, loses: str, host: Host) -> Fault:
        service = cluster.services[host.name]
        return Fault(name, loses, service.kill, service.start)

    postmaster = cluster.postgres_of(primary)
    machine = cluster.services[primary.name].pids()
    head, node, member = chance.choice(cluster.heads), chance.choice(cluster.nodes), chance.choice(cluster.etcd)
    return [
        Fault("kill the primary", "database", lambda: signal_all([postmaster], signal.SIGKILL), lambda: None),
        kill("kill the primary and Patroni", "database", primary),
        Fault("freeze the primary", "database", lambda: freeze([postmaster, *descendants(postmaster)]), thaw),
        Fault("freeze the host of the primary", "database", lambda: freeze(machine), thaw),
        cut("cut the primary off", "database", primary),
        cut("cut what the primary receives", "database", primary, "in"),
        cut("cut what the primary sends", "database", primary, "out"),
        cut("cut a member of etcd off", "", member),
        kill("kill a member of etcd", "", member),
        kill("kill a head", "head", head),
        cut("cut a node off", "", node),
    ]


class Submits:
    """The times of acknowledged submits, from a submitter of its own that needs no idle moment."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.at = cluster, [time.monotonic()]
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        headers = {"Authorization": f"Bearer {self.cluster.token()}"}
        body = {"tenant": "default", "command": ["true"], "gpu_count": 0}
        while not self._has_ended.wait(0.2):
            # A new connection each time, as a new client has; each try has its own key, as it is never repeated.
            with suppress(httpx.HTTPError):
                answer = httpx.post(f"{self.cluster.url}/api/v1/jobs", json=body, headers=headers, timeout=3)
                if answer.status_code == 201:
                    self.at.append(time.monotonic())

    def gap_after(self, moment: float, until: float) -> float:
        """Return the longest time without a successful submit between these moments."""
        times = [moment, *(at for at in self.at if moment <= at <= until), until]
        return max(later - earlier for earlier, later in pairwise(times))

    def close(self) -> None:
        self._has_ended.set()
        self._thread.join()


def run(cluster: Cluster, rounds: int, jobs: int, seed: int, only: str) -> Outcome:
    """Break one thing per round, each kind as often as the others, or only the faults with `only` in their names."""
    began, chance = time.monotonic(), random.Random(seed)
    gaps: dict[str, list[float]] = defaultdict(list)
    lost_gaps: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="gpusched-ran-") as name:
        ran = Path(name) / "ran"
        stack = cast(Stack, cluster)  # for what Flow and is_over use of it
        flow = Flow(stack, ran, jobs, rounds * 50.0, random.Random(seed))
        submits = Submits(cluster)
        order: list[int] = []
        try:
            for number in range(rounds):
                wait_for(cluster.is_healthy, 180, "a healthy cluster", pause=0.5)
                choices = [fault for fault in faults(cluster, chance) if only in fault.name]
                order = order or chance.sample(range(len(choices)), len(choices))
                fault = choices[order.pop()]
                print(f"{number + 1}/{rounds} {fault.name}: ", end="", file=sys.stderr, flush=True)
                at = time.monotonic()
                started = datetime.now(UTC)
                fault.begin()
                until_random_moment(chance, *FAULT_SECONDS)
                fault.end()
                wait_for(cluster.is_ready, 120, "the cluster after the fault", pause=0.2)
                gap = submits.gap_after(at, time.monotonic())
                gaps[fault.name].append(round(gap, 2))
                lost_gaps[fault.loses].append(gap)
                print(f"{gap:.1f} s without writes, since {started:%H:%M:%S}", file=sys.stderr, flush=True)
        finally:
            submits.close()
            for host in cluster.network.hosts:
                host.mend()
        acknowledged = flow.finish()
        wait_for(lambda: is_over(stack), 600, "all jobs to end", pause=1.0)
        counts = count(cluster, acknowledged, ran)
    return Outcome(
        **counts, bad_answers=sum(count for status, count in flow.statuses.items() if status >= 500 and status != 503), jobs=len(set(acknowledged)), rounds=rounds, write_gaps=dict(gaps),
        database_p50=round(statistics.median(lost_gaps["database"] or [0.0]), 2),
        database_max=round(max(lost_gaps["database"], default=0.0), 2),
        head_max=round(max(lost_gaps["head"], default=0.0), 2),
        statuses=dict(flow.statuses), seconds=round(time.monotonic() - began, 1),
    )  # fmt: skip


def count(cluster: Cluster, acknowledged: list[int], ran: Path) -> dict[str, int]:
    """Count the jobs that are missing, unfinished, run twice or charged wrongly."""
    lines = [line.split() for line in ran.read_text().splitlines()]
    begun = Counter(attempt for mark, attempt, _ in lines if mark == "begin")
    marks = moments(lines)
    with psycopg.connect(cluster.database_url()) as database:
        states: dict[int, str] = dict(database.execute(JOBS, [acknowledged]).fetchall())
        charged = database.execute(TIMES).fetchall()
        completed = database.execute(
            "SELECT count(*) FROM (SELECT job_id FROM jobs_attempt WHERE reason = 'exited' AND exit_code = 0"
            " GROUP BY 1 HAVING count(*) > 1) AS twice"
        ).fetchone()
    assert completed is not None
    return {
        "lost": len(set(acknowledged) - states.keys()),
        "not_completed": sum(state != "completed" for state in states.values()),
        "run_twice": sum(times > 1 for times in begun.values()) + int(completed[0]),
        "ledger_wrong": wrongly_charged(charged, marks),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patroni", type=Path, required=True, help="the program patroni")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument(
        "--databases",
        type=int,
        default=3,
        help="with 2, nothing can be written while one is lost: see docs/operations.md",
    )
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="TEXT", help="only the faults whose names contain this")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    with Cluster(options.patroni, options.databases, options.agents) as cluster:
        outcome = run(cluster, options.rounds, options.jobs, options.seed, options.only)
    print(json.dumps(asdict(outcome)) if options.json else "\n".join(f"{k}: {v}" for k, v in asdict(outcome).items()))
    for failure in outcome.failures():
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if outcome.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
