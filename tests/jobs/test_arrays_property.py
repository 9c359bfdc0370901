"""Property test of arrays: each element runs once per try, all are counted, max_parallel holds."""

from collections import Counter
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusched.lib.api.problems import Problem
from gpusched.protocol.agent_messages import Stop
from gpusched.protocol.arrays import ArrayRequest, format_ranges, multirange, to_ranges
from gpusched.protocol.states import FINAL, LIVE, JobState
from jobs.actions import job_actions
from jobs.arrays.elements import list_elements
from jobs.listing import representation
from jobs.models import Job
from tests.factories import identity_for, make_member, make_node, make_tenant, run_cycle, submit

pytestmark = pytest.mark.django_db

PART = st.sets(st.integers(0, 5), min_size=1, max_size=4).map(sorted)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("cycle")),
        st.tuples(st.just("cycle")),
        st.tuples(st.just("start")),
        st.tuples(st.just("start")),
        st.tuples(st.just("end"), st.sampled_from([0, 0, 1])),
        st.tuples(st.just("end"), st.sampled_from([0, 0, 1])),
        st.tuples(st.just("cancel"), PART),
        st.tuples(st.just("retry"), PART),
        st.tuples(st.just("retry_failed")),
        st.tuples(st.just("requeue")),
        st.tuples(st.just("hold")),
        st.tuples(st.just("release")),
    ),
    min_size=6,
    max_size=18,
)


class World:
    """An array of six elements on a node with three GPUs. `tries`: the expected runs of each element."""

    def __init__(self, max_parallel: int | None) -> None:
        self.tenant = make_tenant()
        self.user = make_member(self.tenant)
        self.identity = identity_for(self.user)
        self.node = make_node(gpus=3)
        self.max_parallel = max_parallel
        self.array = submit(self.user, self.tenant, array=ArrayRequest(count=6, max_parallel=max_parallel))
        self.tries, self.ran, self.started_keys = [1] * 6, [0] * 6, set[str]()

    def element_of(self, key: str) -> int:
        number = Job.objects.get(pk=int(key.split(".")[0])).array_index
        assert number is not None
        return number

    def states(self) -> dict[int, str]:
        return {one["index"]: one["state"] for one in list_elements(self.array, "{(,)}", list(JobState), 100)}

    def cycle(self) -> None:
        run_cycle()

    def start(self) -> None:
        for key in self.node.start_all():
            assert key not in self.started_keys, "started twice"
            self.started_keys.add(key)
            self.ran[self.element_of(key)] += 1

    def end(self, code: int) -> None:
        """End the oldest process, and all that were ordered to stop."""
        stops = {order.key: order.reason for order in self.node.sync().assignments if isinstance(order, Stop)}
        for key, reason in stops.items():
            self.node.end(key, reason=reason, exit_code=None, signal=15)
        if self.node.held:
            self.node.end(self.node.held[0], exit_code=code)

    def cancel(self, part: list[int]) -> None:
        states = self.states()
        job_actions.cancel(self.array, self.identity, format_ranges(to_ranges(part)))
        if representation.select("j.id = %s", [self.array])[0]["state"] not in FINAL or states != self.states():
            for number in part:
                if states[number] not in FINAL:
                    self.tries[number] = self.ran[number]

    def retry(self, part: list[int]) -> None:
        self._retry(
            format_ranges(to_ranges(part)), {n for n, state in self.states().items() if n in part and state in FINAL}
        )

    def retry_failed(self) -> None:
        self._retry("failed", {n for n, state in self.states().items() if state == JobState.FAILED})

    def _retry(self, text: str, expected: set[int]) -> None:
        try:
            job_actions.retry(self.array, self.identity, text)
        except Problem as refused:
            assert not expected or "held" in refused.detail  # noqa: PT017 - either is right
            return
        for number in expected:
            self.tries[number] = self.ran[number] + 1

    def requeue(self) -> None:
        live = Job.objects.filter(array_id=self.array, state="running").order_by("pk").first()
        if live is not None and live.array_index is not None:
            job_actions.requeue(live.pk, self.identity)
            self.tries[live.array_index] = self.ran[live.array_index] + 1

    def hold(self) -> None:
        self._if_possible(job_actions.hold)

    def release(self) -> None:
        self._if_possible(job_actions.release)

    def _if_possible(self, action: Any) -> None:
        try:
            action(self.array, self.identity)
        except Problem as refused:
            assert refused.status == 409  # noqa: PT017 - either is right

    def check(self) -> None:
        states = Counter(self.states().values())
        represented = representation.select("j.id = %s", [self.array])[0]
        assert dict(states) == represented["array"]["by_state"]
        assert sum(states.values()) == 6
        live = sum(states[state] for state in LIVE)
        assert live <= (self.max_parallel or 3)
        assert (represented["state"] in FINAL) <= (set(states) <= FINAL)

    def drain(self) -> None:
        """Run all elements that can run to their end."""
        self.release()
        for _ in range(60):
            if set(self.states().values()) <= FINAL:
                break
            self.cycle()
            self.start()
            self.check()
            self.end(0)
        self.cycle()
        assert self.ran == self.tries
        assert set(self.states().values()) <= FINAL
        assert representation.select("j.id = %s", [self.array])[0]["state"] in FINAL


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from([None, 1, 2]), STEPS)
def test_each_element_runs_once_per_try_within_max_parallel(max_parallel, steps):
    """A02, A06, A31. Submits, placements, ends, cancels and retries of parts, requeues, holds, in any order."""
    with transaction.atomic():
        world = World(max_parallel)
        for name, *arguments in steps:
            getattr(world, name)(*arguments)
            world.check()
        world.drain()
        transaction.set_rollback(True)


def test_multirange_is_formatted_like_postgresqls():
    assert multirange(to_ranges([0, 1, 5])) == "{[0,2),[5,6)}"
