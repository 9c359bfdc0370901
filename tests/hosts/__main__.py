"""Prove failover (A80, A82): break hosts, links and processes of a cluster while jobs flow, and count what it costs.

    make test-hosts ROUNDS=50

Prints a summary; `--json` prints it as JSON. Exits with 1 if a job was lost, run twice or charged wrongly, if an answer
was a 5xx other than 503, if a page ends wrong, or if a bound was missed."""

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import psycopg

from tests.hosts.cluster import Cluster
from tests.hosts.faults import Fault, faults
from tests.hosts.observers import Pages, Submits, seconds_until_agents, seconds_until_cycle
from tests.system.chaos import JOBS, TIMES, Flow, is_over, moments, wrongly_charged
from tests.system.stack import Stack
from tests.waiting import until_random_moment, wait_for

# In seconds: writes after the loss of the primary (all, and their median), and what follows the loss of a head or worker.
BOUNDS = {"writes": 30.0, "pages": 3.0, "agents": 3.0, "cycles": 2.0}
WRITES_P50 = 20.0
# Within which the jobs of a round are submitted, without the time in which none can be.
ROUND_SECONDS = 25.0
Seconds = dict[str, dict[str, list[float]]]


@dataclass
class Outcome:
    """`lost` to `pages_wrong` must be 0. `ledger_wrong`: attempts that are charged for less than their processes ran, or
    for over a second more; `ledger_differs`: for another time than the attempt's. `seconds`: for each kind of fault,
    what it took until writes, pages, agents and cycles were back."""

    lost: int
    not_completed: int
    run_twice: int
    ledger_wrong: int
    ledger_differs: int
    bad_answers: int
    pages_wrong: int
    jobs: int
    rounds: int
    seconds: Seconds
    writes_p50: float
    statuses: dict[int, int]
    duration: float

    def failures(self) -> list[str]:
        names = (
            "lost", "not_completed", "run_twice", "ledger_wrong", "ledger_differs", "bad_answers", "pages_wrong",
        )  # fmt: skip
        broken = [f"{name}: {getattr(self, name)}" for name in names if getattr(self, name)]
        broken += [
            f"{fault}: {what} after {max(each):.1f} s > {BOUNDS[what]} s"
            for fault, kinds in self.seconds.items()
            for what, each in kinds.items()
            if max(each) > BOUNDS[what]
        ]
        return broken + ([f"writes: p50 {self.writes_p50} s"] if self.writes_p50 > WRITES_P50 else [])


class Rounds:
    """Break one thing per round, each kind as often as the others, while jobs flow and pages are open."""

    def __init__(self, cluster: Cluster, seed: int, only: str) -> None:
        self._cluster, self._chance, self._only = cluster, random.Random(seed), only
        self._order: list[int] = []
        self.count = 0
        self.seconds: Seconds = defaultdict(lambda: defaultdict(list))
        self.lost_primary: list[float] = []

    def run(self, submits: Submits, pages: Pages) -> None:
        wait_for(self._cluster.is_healthy, 300, "a healthy cluster", pause=0.5)
        fault = self._next()
        print(f"{fault.name}: ", end="", file=sys.stderr, flush=True)
        at, since, leader = time.monotonic(), datetime.now(UTC), self._cluster.leader()
        fault.begin()
        took = self._recover(fault, since, leader)
        until_random_moment(self._chance, *fault.seconds)
        fault.end()
        wait_for(self._cluster.is_ready, 120, "the cluster after the fault", pause=0.2)
        now = time.monotonic()
        took["writes"] = submits.gap_after(at, now)
        if fault.loses == "database":
            self.lost_primary.append(took["writes"])
        if fault.loses == "head":
            took["pages"] = pages.delay(submits.between(at, now))
        for what, seconds in took.items():
            self.seconds[fault.name][what].append(round(seconds, 2))
        self.count += 1
        shown = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in took.items())
        print(f"{shown}, since {since:%H:%M:%S}", file=sys.stderr, flush=True)

    def _next(self) -> Fault:
        choices = [fault for fault in faults(self._cluster, self._chance) if self._only in fault.name]
        self._order = self._order or self._chance.sample(range(len(choices)), len(choices))
        return choices[self._order.pop()]

    def _recover(self, fault: Fault, since: datetime, leader: int) -> dict[str, float]:
        took: dict[str, float] = {}
        if fault.takes_leader:
            took["cycles"] = seconds_until_cycle(self._cluster, since, leader)
        if fault.loses == "head":
            took["agents"] = seconds_until_agents(self._cluster, since)
        return took


def run(cluster: Cluster, rounds: int, minutes: float, jobs: int, seed: int, only: str) -> Outcome:
    """Break things for `rounds` rounds, and begin none after `minutes`, while `jobs` jobs flow; wait for all jobs, and
    count."""
    began, broken = time.monotonic(), Rounds(cluster, seed, only)
    stack = cast(Stack, cluster)  # for what Flow and is_over use of it
    with tempfile.TemporaryDirectory(prefix="gpusched-ran-") as name, ExitStack() as observers:
        ran = Path(name) / "ran"
        pages = Pages(cluster)
        observers.callback(pages.close)
        submits = Submits(cluster)
        flow = Flow(stack, ran, jobs, rounds * ROUND_SECONDS, random.Random(seed))
        try:
            while broken.count < rounds and time.monotonic() - began < 60 * minutes:
                print(f"{broken.count + 1}/{rounds} ", end="", file=sys.stderr)
                broken.run(submits, pages)
        finally:
            submits.close()
            for host in cluster.network.hosts:
                host.mend()
            acknowledged = flow.finish() if broken.count == rounds else flow.end()
        wait_for(lambda: is_over(stack), 600, "all jobs to end", pause=1.0)
        counts = count(cluster, acknowledged, ran)
        pages_wrong = pages.wrong()
    return Outcome(
        **counts, bad_answers=sum(count for status, count in flow.statuses.items() if status >= 500 and status != 503),
        pages_wrong=pages_wrong, jobs=len(set(acknowledged)), rounds=broken.count,
        seconds={fault: dict(kinds) for fault, kinds in broken.seconds.items()},
        writes_p50=round(statistics.median(broken.lost_primary or [0.0]), 2),
        statuses=dict(flow.statuses), duration=round(time.monotonic() - began, 1),
    )  # fmt: skip


def count(cluster: Cluster, acknowledged: list[int], ran: Path) -> dict[str, int]:
    """Count the jobs that are missing, unfinished, run twice or charged wrongly."""
    lines = [line.split() for line in ran.read_text().splitlines()]
    begun = Counter(attempt for mark, attempt, _ in lines if mark == "begin")
    marks = moments(lines)
    with psycopg.connect(cluster.database_url()) as database:
        states: dict[int, str] = dict(database.execute(JOBS, [acknowledged]).fetchall())
        # Without the jobs of Submits, which have no GPU and write no lines.
        charged = [row for row in database.execute(TIMES) if f"{row[0]}.{row[1]}" in marks]
        completed = database.execute(
            "SELECT count(*) FROM (SELECT job_id FROM jobs_attempt WHERE reason = 'exited' AND exit_code = 0"
            " GROUP BY 1 HAVING count(*) > 1) AS twice"
        ).fetchone()
    assert completed is not None
    for job, number, wall, ledger in charged:
        span = marks.get(f"{job}.{number}", {})
        if "end" in span and wrongly_charged([(job, number, wall, ledger)], {f"{job}.{number}": span}):
            ran_for = span["end"] - span["begin"]
            print(f"job {job}: charged {ledger} s, attempt of {wall:.3f} s, ran {ran_for:.3f} s", file=sys.stderr)
    return {
        "lost": len(set(acknowledged) - states.keys()),
        "not_completed": sum(state != "completed" for state in states.values()),
        "run_twice": sum(times > 1 for times in begun.values()) + int(completed[0]),
        "ledger_wrong": len(wrongly_charged(charged, marks)),
        "ledger_differs": sum(abs((ledger or 0.0) - (wall or 0.0)) > 0.001 for _, _, wall, ledger in charged),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patroni", type=Path, required=True, help="the program patroni")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=120, help="begin no round after this time")
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
        outcome = run(cluster, options.rounds, options.minutes, options.jobs, options.seed, options.only)
    print(json.dumps(asdict(outcome)) if options.json else "\n".join(f"{k}: {v}" for k, v in asdict(outcome).items()))
    for failure in outcome.failures():
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if outcome.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
