"""A small world for tests of the ledger: nodes whose clocks are wrong, jobs, what befalls them, and what is true of
it."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import count, pairwise
from typing import Any

from django.db import transaction
from django.utils import timezone
from hypothesis import strategies as st

from gpusched.lib.db.sql import execute, query
from gpusched.protocol.agent_messages import Ended, Run, Started
from gpusched.protocol.reasons import EndReason
from jobs.actions import job_actions
from jobs.lifecycle import states
from jobs.models import Job
from nodes.models import ListenerLease, Node
from nodes.ranks import agent_clock
from tenants.models import UsageEntry
from tests.factories import FakeAgent, identity_for, make_member, make_node, make_tenant, run_cycle, submit

_names = count(1)
TOLERANCE = 1.0


@cache
def _times() -> dict[str, list[str]]:
    """The columns that hold moments, by table; asked once, as no test changes them."""
    rows = query(
        """SELECT table_name AS t, column_name AS c FROM information_schema.columns
            WHERE data_type = 'timestamp with time zone' AND table_schema = current_schema()
              AND table_name NOT IN (SELECT viewname FROM pg_views WHERE schemaname = current_schema())
              AND (table_name LIKE 'jobs\\_%%' OR table_name LIKE 'nodes\\_%%' OR table_name LIKE 'tenants\\_usage%%')"""
    )
    tables: dict[str, list[str]] = {}
    for row in rows:
        tables.setdefault(row["t"], []).append(row["c"])
    return tables


class Time:
    """True time: that of the machine, and what the history was made older by."""

    def __init__(self) -> None:
        self.passed = 0.0

    def now(self) -> float:
        return time.time() + self.passed

    def let_pass(self, seconds: float) -> None:
        """Makes all that the database knows older, as if so much time had gone by."""
        with transaction.atomic():
            execute("SET LOCAL session_replication_role = replica")  # append-only tables, too
            for table, names in _times().items():
                execute(f"UPDATE {table} SET " + ", ".join(f"{n} = {n} - interval '{seconds} s'" for n in names))
        self.passed += seconds

    def set_servers_clock_back(self, seconds: float) -> None:
        """All that the database knows becomes later than it was. The clocks of the nodes stay."""
        self.let_pass(-seconds)
        self.passed += seconds

    def text(self, moment: float) -> str:
        """A moment, as it is written down in the time of the database."""
        return datetime.fromtimestamp(moment - self.passed, UTC).isoformat()


@dataclass
class Rank:
    """A process as it truly was. `wall`: what its node's clock showed at the start; `counted_to`: as the ledger
    should."""

    gpus: float
    began: float
    wall: float
    ended: float | None = None
    reason: str = "exited"
    code: int | None = 0
    is_start_heard: bool = False
    is_end_heard: bool = False
    counted_to: float | None = None


class Machine:
    """A node whose clock is wrong by `off` seconds. An old agent does not say how long ago something was."""

    def __init__(self, time: Time, label: str, *, is_old: bool) -> None:
        self.time, self.is_old = time, is_old
        self.agent: FakeAgent = make_node(gpus=2)
        Node.objects.filter(pk=self.agent.id).update(admin_labels={"ledger": label})
        self.off, self.heard_at = 0.0, time.now()
        self.ranks: dict[str, Rank] = {}
        self.unstarted: set[str] = set()

    def sync(self) -> None:
        reports = [report for key in self.ranks for report in self._reports(key)]
        unstarted = [
            Ended(key=key, at=self.time.text(self.time.now() + self.off), reason="cancelled") for key in self.unstarted
        ]
        held = [key for key, rank in self.ranks.items() if not rank.is_end_heard]
        running = [key for key in held if self.ranks[key].ended is None]
        at = self.time.text(self.time.now() + self.off)
        answer = self.agent.sync(*reports, *reports, *unstarted, at=at, held=held, running=running)
        self.heard_at = self.time.now()
        for report in reports:
            rank = self.ranks[report.key]
            rank.is_start_heard, rank.is_end_heard = True, rank.is_end_heard or isinstance(report, Ended)
        for order in answer.assignments:
            if isinstance(order, Run) and order.key not in self.ranks and order.key not in self.unstarted:
                part = (order.spec.gpu_memory_mb or 81920) / 81920
                now = self.time.now()
                self.ranks[order.key] = Rank(len(order.spec.device_uuids) * part, now, now + self.off)
            elif not isinstance(order, Run):
                self._stop(order.key, order.reason)

    def _stop(self, key: str, reason: str) -> None:
        if key not in self.ranks:
            self.unstarted.add(key)
        elif self.ranks[key].ended is None:
            self.end(key, reason, None)

    def end(self, key: str, reason: str, code: int | None) -> None:
        rank = self.ranks[key]
        rank.ended, rank.reason, rank.code = self.time.now(), reason, code

    def _reports(self, key: str) -> list[Started | Ended]:
        rank, now = self.ranks[key], self.time.now()
        if rank.is_end_heard:
            return []
        started = self.time.text(rank.wall)
        if rank.ended is None:
            ago = None if self.is_old else now - rank.began
            return [] if rank.is_start_heard else [Started(key=key, at=started, pid=1, seconds_ago=ago)]
        # The supervisor measures how long it ran by a monotonic clock.
        at = self.time.text(rank.wall + rank.ended - rank.began)
        ago = None if self.is_old else now - rank.ended
        signal = 15 if rank.code is None else None
        return [
            Ended(key=key, at=at, reason=rank.reason, exit_code=rank.code, signal=signal, started_at=started, seconds_ago=ago)
        ]  # fmt: skip


class World:
    """Two nodes of two GPUs, one tenant, and what happens to them."""

    def __init__(self, *, is_old: bool = False, off: float = 0.0) -> None:
        self.time, self.label, self.is_old = Time(), f"world-{next(_names)}", is_old
        self.tenant = make_tenant()
        self.user = make_member(self.tenant)
        self.machines = [Machine(self.time, self.label, is_old=is_old) for _ in range(2)]
        for machine in self.machines:
            machine.off = off
        # Of an old agent, a clock that is nearly right is believed, also where a loss of the node cuts its time short.
        self.tolerance = (
            agent_clock.TOLERATED_SECONDS if is_old and abs(off) <= agent_clock.TOLERATED_SECONDS else TOLERANCE
        )

    def submit(self, kind: str) -> None:
        kinds: dict[str, dict[str, Any]] = {
            "whole": {"gpu_count": 2},
            "shared": {"gpu_count": 1, "gpu_sharing": "shared", "gpu_memory_mb": 20480},
            "gang": {"gpu_count": 4, "gang_scheduling": True},
        }
        submit(self.user, self.tenant, node_selector={"ledger": self.label}, max_retries=1, **kinds[kind])
        run_cycle()

    def sync(self, number: int) -> None:
        self.machines[number].sync()

    def let_pass(self, seconds: float) -> None:
        self.time.let_pass(seconds)

    def set_clock(self, number: int, seconds: float) -> None:
        if not self.is_old:
            self.machines[number].off += seconds

    def exit(self, number: int, code: int) -> None:
        """The oldest process of a node ends by itself."""
        for key, rank in self.machines[number].ranks.items():
            if rank.ended is None:
                return self.machines[number].end(key, "exited", code)
        return None

    def act(self, verb: str) -> None:
        """On the oldest live job."""
        live = Job.objects.filter(tenant=self.tenant, state__in=["scheduled", "running"]).order_by("id").first()
        if live is None:
            return
        if verb == "preempt":
            evidence = {"by": "job 0", "why": "is a test", "rule": "priority"}
            with transaction.atomic():
                states.stop([live.pk], EndReason.PREEMPTED, evidence, "scheduler")
        else:
            getattr(job_actions, verb)(live.pk, identity_for(self.user))

    def lose(self, number: int) -> None:
        """Silence one node, while the other reports."""
        lost, other = self.machines[number], self.machines[1 - number]
        self.time.let_pass(20)
        other.sync()
        now = timezone.now()
        ListenerLease.objects.update_or_create(
            id=1, defaults={"since": now - timedelta(hours=1), "seen_at": now + timedelta(seconds=5)}
        )
        run_cycle()
        ListenerLease.objects.all().delete()
        for rank in lost.ranks.values():
            if not rank.is_end_heard and rank.counted_to is None:
                # The ledger knows only the last report of the node.
                rank.counted_to = lost.heard_at if rank.is_start_heard else rank.began

    def finish(self) -> None:
        """End everything and report it."""
        for _ in range(3):
            for job in Job.objects.filter(tenant=self.tenant, ended_at=None):
                job_actions.cancel(job.pk, identity_for(self.user))
            for machine in self.machines * 2:
                machine.sync()
        assert not Job.objects.filter(tenant=self.tenant, ended_at=None).exists()

    def check(self) -> None:
        charged: dict[str, float] = {}
        entries = list(UsageEntry.objects.filter(tenant=self.tenant).order_by("started_at", "ended_at"))
        for e in entries:
            key = f"{e.job_id}.{e.attempt}.{e.rank}"
            charged[key] = charged.get(key, 0.0) + e.gpus * (e.ended_at - e.started_at).total_seconds()
            assert e.started_at <= e.ended_at <= timezone.now()
        expected = {
            key: rank.gpus * max(0.0, (rank.counted_to or rank.ended or 0.0) - rank.began)
            for machine in self.machines
            for key, rank in machine.ranks.items()
        }
        wrong = {
            key: (charged.get(key, 0.0), expected.get(key, 0.0))
            for key in charged.keys() | expected.keys()
            if abs(charged.get(key, 0.0) - expected.get(key, 0.0)) > self.tolerance * 2  # GPUs
        }
        assert not wrong, "(charged, true) GPU-seconds"
        self._check_nobody_had_a_device_twice(entries)

    def _check_nobody_had_a_device_twice(self, entries: list[UsageEntry]) -> None:
        exclusive: dict[int | None, list[UsageEntry]] = {}
        for e in entries:
            if e.memory_mb is None:
                exclusive.setdefault(e.device_id, []).append(e)
        for uses in exclusive.values():
            for first, then in pairwise(uses):
                assert (then.started_at - first.ended_at).total_seconds() > -self.tolerance


NODE = st.integers(0, 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from(["whole", "shared", "gang"])),
        st.tuples(st.just("sync"), NODE),
        st.tuples(st.just("sync"), NODE),
        st.tuples(st.just("let_pass"), st.integers(1, 7200)),
        st.tuples(st.just("exit"), NODE, st.sampled_from([0, 3])),
        st.tuples(st.just("set_clock"), NODE, st.sampled_from([3600, -3600, 90, -90, 4, -4])),
        st.tuples(st.just("act"), st.sampled_from(["preempt", "requeue", "cancel"])),
        st.tuples(st.just("lose"), NODE),
    ),
    min_size=8,
    max_size=30,
)


def live(world: World, steps: Iterable[tuple[Any, ...]]) -> None:
    """Lets it happen, ends everything and compares the ledger with the truth."""
    for name, *arguments in steps:
        getattr(world, name)(*arguments)
    world.finish()
    world.check()
