"""Shares over time: backlogs converge to the weights, use is forgotten, and weights may follow past use."""

from dataclasses import replace
from math import exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.model import Policy, Tenant
from scheduling.engine.queue.fairshare import entitlements, standings, why_entitled
from tests.engine.scenario import NOW, advance, cluster, decide, end_due, job, node

HOUR = 3600.0


class Week:
    """A cluster of eight GPUs in steps of half an hour, use decaying as the policy says; jobs of an hour or two."""

    def __init__(self, policy: Policy, *tenants: Tenant) -> None:
        self.policy, self.now, self.ids = policy, NOW, iter(range(1, 1_000_000))
        self.state = cluster(node(1), tenants=tenants)
        self.used = {tenant.id: 0.0 for tenant in tenants}
        self.ran = {tenant.id: 0.0 for tenant in tenants}

    def go(self, hours: float, *backlogged: int) -> dict[int, float]:
        """GPU-hours that each tenant got, with work waiting for these."""
        before = dict(self.ran)
        for _ in range(round(2 * hours)):
            self._step(backlogged)
        return {id: self.ran[id] - before[id] for id in self.ran}

    def _step(self, backlogged: tuple[int, ...]) -> None:
        self.state = end_due(self.state, self.now)
        waiting = tuple(
            replace(job(next(self.ids), tenant=tenant, minutes=60 * (1 + n % 2)), queued_at=self.now)
            for tenant in backlogged
            for n in range(12)
        )
        tenants = tuple(replace(tenant, usage_gpu_seconds=self.used[tenant.id]) for tenant in self.state.tenants)
        self.state = replace(self.state, jobs=waiting, tenants=tenants)
        self.state = advance(self.state, decide(self.state, self.policy, self.now), self.now)
        self._use()
        self.now += HOUR / 2

    def _use(self) -> None:
        decay = log(2) / self.policy.usage_half_life_seconds
        fade = exp(-decay * HOUR / 2)
        for tenant in self.used:
            gpus_held = sum(
                running_job.request.gpu_count for running_job in self.state.running if running_job.tenant_id == tenant
            )
            self.used[tenant] = self.used[tenant] * fade + gpus_held * (1 - fade) / decay
            self.ran[tenant] += gpus_held / 2


A, B = Tenant(1, "a", weight=1.0), Tenant(2, "b", weight=3.0)
DAY = Policy(usage_half_life_seconds=24 * HOUR)


def test_two_backlogs_converge_to_their_weights_while_use_decays() -> None:
    """A17: GPU-seconds 1:3 within 5 %, over a week of jobs of one and two hours."""
    shares = Week(DAY, A, B).go(168, 1, 2)
    assert shares[2] / shares[1] == pytest.approx(3, rel=0.05)
    assert sum(shares.values()) == 168 * 8


def test_absent_tenant_catches_up_and_then_gets_its_share() -> None:
    """A17: what was used counts half after a half-life, so a tenant that comes back is not paid back in full."""
    week = Week(DAY, A, B)
    week.go(72, 1)
    back = week.go(24, 1, 2)
    assert back[2] / back[1] > 6
    week.go(96, 1, 2)
    later = week.go(72, 1, 2)
    assert later[2] / later[1] == pytest.approx(3, rel=0.05)


def test_shorter_half_life_decays_use_sooner() -> None:
    """A17: after the same day alone, the other tenant's lead is smaller where use is forgotten in two hours."""
    leads = []
    for hours in (1, 96):
        week = Week(Policy(usage_half_life_seconds=hours * HOUR), A, replace(B, weight=1.0))
        week.go(24, 1)
        shares = week.go(12, 1, 2)
        leads.append(shares[2] - shares[1])
    assert leads[0] < leads[1] - 12


def test_use_counts_half_after_a_half_life() -> None:
    """A17: two tenants in one state but for it, one half-life apart, stand alike."""
    new_state, faded = Tenant(1, "a", usage_gpu_seconds=500.0), Tenant(2, "b", usage_gpu_seconds=1000.0 / 2)
    result = standings((new_state, faded), DAY)
    assert result[1].share == result[2].share


USED_TO_THE_FULL = Policy(dynamic_share_bound=0.2)


def tenant(id: int, weight: float, history: float) -> Tenant:
    return Tenant(id, f"t{id}", weight=weight, history_gpu_seconds=history)


def test_weights_count_as_they_are_without_the_bound_or_without_a_history() -> None:
    idle, busy = tenant(1, 1.0, 0.0), tenant(2, 3.0, 900.0)
    assert [entry.effective for entry in entitlements((idle, busy), Policy()).values()] == [1.0, 3.0]
    unused = (idle, replace(busy, history_gpu_seconds=0.0))
    assert [entry.effective for entry in entitlements(unused, USED_TO_THE_FULL).values()] == [1.0, 3.0]


def test_a_weight_follows_past_use_up_to_the_bound() -> None:
    """Used none: 20 % less; just its part: as it is; half as much again: half the bound; twice or more: 20 % more."""
    result = entitlements((tenant(1, 1.0, 0.0), tenant(2, 1.0, 300.0), tenant(3, 1.0, 150.0)), USED_TO_THE_FULL)
    assert [result[id].effective for id in (1, 2, 3)] == pytest.approx([0.8, 1.2, 1.0])
    result = entitlements((tenant(1, 1.0, 150.0), tenant(2, 1.0, 50.0)), USED_TO_THE_FULL)
    assert [result[id].effective for id in (1, 2)] == pytest.approx([1.1, 0.9])


@settings(deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.floats(0, 1e12)), min_size=1, max_size=6),
    st.floats(0, 1),
)  # fmt: skip
def test_no_weight_leaves_its_bounds(given_tenants: list[tuple[float, float]], bound: float) -> None:
    tenants = tuple(tenant(id, weight, used) for id, (weight, used) in enumerate(given_tenants, 1))
    for entry in entitlements(tenants, Policy(dynamic_share_bound=bound)).values():
        assert entry.weight * (1 - bound) - 1e-9 <= entry.effective <= entry.weight * (1 + bound) + 1e-9


def test_extreme_weights_cause_no_division_by_zero() -> None:
    huge = [tenant(1, 1e308, 150.0), tenant(2, 1e308, 50.0), tenant(3, float("inf"), 0.0), tenant(4, 1e-300, 0.0)]
    result = entitlements(huge, USED_TO_THE_FULL)
    assert sum(entry.entitled for entry in result.values()) == pytest.approx(1.0)
    assert all(0 < entry.effective < 1e10 for entry in result.values())


def test_entitlement_sentence_names_the_change_and_its_cause() -> None:
    result = entitlements((tenant(1, 1.0, 150.0), tenant(2, 1.0, 50.0)), USED_TO_THE_FULL)
    assert why_entitled(result[1], USED_TO_THE_FULL) == (
        "It used 75% of the GPU time of late with 50% of the weights, so its weight of 1 counts as 1.1 "
        "(+10 %; at most 20% more or less)."
    )
    assert why_entitled(result[1], Policy()).startswith("Its weight of 1 counts as it is")


def test_effective_weight_decides_the_order_of_tenants() -> None:
    """Equal weights and equal use of late; the one that used its part all along gets more of the next GPUs."""
    tenants = (tenant(1, 1.0, 0.0), tenant(2, 1.0, 1000.0))
    jobs = [job(id, tenant=1 + id % 2) for id in range(1, 21)]
    state = cluster(node(1, gpus=10), tenants=tenants, jobs=jobs)
    for bound, maximum in ((0.0, 5), (0.5, 7)):
        new_plan = decide(state, Policy(dynamic_share_bound=bound))
        of_second = sum(placement.job_id % 2 for placement in new_plan.placements)
        assert of_second == maximum
