"""Taints, tolerations and affinity: which nodes they exclude, which they prefer, and the reasons of waiting jobs."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.affinity import Expression, Preference, Taint, Toleration, is_met, is_tolerated
from scheduling.engine.board.node_index import NodeIndex, taints_and_weight
from scheduling.engine.explain.feasibility import why_never_fits
from scheduling.engine.model import Node, Policy, Request, Snapshot, Tenant
from scheduling.engine.whatif.changes import Change, apply
from scheduling.engine.whatif.counterfactual import alternatives, obstacles
from scheduling.engine.whatif.replay import record, why_not
from tests.engine import oracle, states
from tests.engine.scenario import NOW, ask, cluster, decide, gpu, job, node, nodes_of, reason, running_on, started
from tests.engine.test_invariants import in_small_states

ML = Taint("dedicated", "ml", "NoSchedule")
SPOT = Taint("spot", "", "NoSchedule")
LARGE = Taint("min-gpus", "4", "NoSchedule")
AVOID = Taint("slow", "", "PreferNoSchedule")
ZONE_A = Expression("zone", "in", ("a",))
TENANT = Tenant(1, "t1")


@pytest.mark.parametrize(
    ("expression", "labels", "met"),
    [
        (Expression("zone", "in", ("a", "b")), {"zone": "b"}, True),
        (Expression("zone", "in", ("a", "b")), {"zone": "c"}, False),
        (Expression("zone", "in", ("a", "b")), {}, False),
        (Expression("zone", "notin", ("a",)), {"zone": "a"}, False),
        (Expression("zone", "notin", ("a",)), {"zone": "b"}, True),
        (Expression("zone", "notin", ("a",)), {}, True),
        (Expression("zone", "exists"), {"zone": ""}, True),
        (Expression("zone", "exists"), {}, False),
        (Expression("zone", "doesnotexist"), {}, True),
        (Expression("zone", "doesnotexist"), {"zone": "a"}, False),
    ],
)
def test_expression_is_met_as_kubernetes_defines_it(expression: Expression, labels: dict[str, str], met: bool) -> None:
    assert is_met(expression, labels) is met


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration("dedicated", "ml", "NoSchedule"), True),
        (Toleration("dedicated", "ml"), True),
        (Toleration("dedicated"), True),
        (Toleration(), True),
        (Toleration("dedicated", "web", "NoSchedule"), False),
        (Toleration("dedicated", "ml", "PreferNoSchedule"), False),
        (Toleration("dedicated", ""), False),
        (Toleration("spot"), False),
    ],
)
def test_toleration_covers_a_taint_as_kubernetes_defines_it(toleration: Toleration, tolerated: bool) -> None:
    assert is_tolerated(ML, [toleration], 1) is tolerated


@in_small_states
@given(states.snapshots())
def test_index_agrees_with_the_oracle_on_each_node(snapshot: Snapshot) -> None:
    """A10: the nodes that the index selects are those that the oracle allows, and as welcome as the oracle rates them."""
    index = NodeIndex(snapshot.nodes)
    for waiting_job in snapshot.jobs:
        request = waiting_job.request
        allowed = {
            position
            for position, node in enumerate(snapshot.nodes)
            if all(node.labels.get(key) == value for key, value in request.node_selector)
            and oracle.meets_affinity(request, node)
            and oracle.tolerates(request, node, "NoSchedule")
        }
        selected = index.selected(request)
        assert (set(range(len(snapshot.nodes))) if selected is None else selected) == allowed
        welcome = [oracle.welcome(request, node) for node in snapshot.nodes]
        penalties = index.penalties(request)
        if penalties is None:
            assert len(set(welcome)) <= 1
        else:
            assert [(taints, -weight) for taints, weight in map(taints_and_weight, penalties)] == welcome


@in_small_states
@given(states.snapshots(), states.policies, st.integers(0, 2**40))
def test_job_takes_the_most_welcome_node_that_can_hold_it(snapshot: Snapshot, policy: Policy, seed: int) -> None:
    """Alone, without limits and heat, no legal node is more welcome to a job than the chosen one."""
    rng = Random(seed)
    wishes = tuple(Preference(rng.choice([1, 50]), expression) for expression in states.EXPRESSIONS)
    request = replace(snapshot.jobs[0].request, gpu_count=1, ranks=None, gpu_models=(), preferred=wishes)
    alone = replace(snapshot.jobs[0], eligible_at=0.0, request=request)
    tenants = tuple(Tenant(tenant.id, tenant.name) for tenant in snapshot.tenants)
    nodes = tuple(_welcoming(node, rng) for node in snapshot.nodes)
    snapshot = replace(snapshot, jobs=(alone,), nodes=nodes, tenants=tenants, reserved_job_id=None)
    welcome = {node.id: oracle.welcome(request, node) for node in nodes}
    for placement in decide(snapshot, replace(policy, online_percent=0)).placements:
        for other in oracle.legal_placements(request, nodes, policy, snapshot.running):
            assert welcome[placement.ranks[0].node_id] <= welcome[other[0].node_id]


def _welcoming(node: Node, rng: Random) -> Node:
    """Return the node with other labels, and with taints that exclude no job."""
    labels = {name: value for name, value in (("zone", "a"), ("zone", "b"), ("rack", "r1")) if rng.random() < 0.5}
    taints = tuple(taint for taint in states.TAINTS if taint.effect == "PreferNoSchedule" and rng.random() < 0.3)
    devices = tuple(replace(device, is_hot=False, is_healthy=True) for device in node.devices)
    return replace(node, labels=labels, taints=taints, devices=devices, is_open=True)


def test_taint_keeps_off_jobs_that_do_not_tolerate_it() -> None:
    state = cluster(
        node(1, taints=[ML]),
        node(2, gpus=1),
        jobs=[job(1), job(2, tolerations=(Toleration("dedicated", "ml"),)), job(3)],
    )
    new_plan = decide(state)
    assert nodes_of(new_plan, 1) == [2] and nodes_of(new_plan, 2) == [1]
    assert reason(new_plan, 3).code == "priority"


def test_taint_stops_no_running_job() -> None:
    state = running_on(cluster(node(1)), job(9))
    state = replace(state, nodes=(replace(state.nodes[0], taints=(ML,)),), jobs=(job(1, priority=1000),))
    new_plan = decide(state)
    assert not new_plan.preemptions and reason(new_plan, 1).code == "taint"


def test_preemption_stops_no_job_on_a_node_with_a_taint_that_is_not_tolerated() -> None:
    old = NOW - 4000
    state = running_on(cluster(node(1), node(2)), job(8, gpus=8, priority=100), job(9, gpus=8, priority=300), now=old)
    first = next(running_job.ranks[0].node_id for running_job in state.running if running_job.job_id == 8)
    nodes = tuple(replace(each_node, taints=(ML,)) if each_node.id == first else each_node for each_node in state.nodes)
    waiting = job(1, gpus=8, priority=1000, age=500)
    assert [preemption.victims for preemption in decide(replace(state, jobs=(waiting,))).preemptions] == [(8,)]
    new_plan = decide(replace(state, nodes=nodes, jobs=(waiting,)))
    assert [preemption.victims for preemption in new_plan.preemptions] == [(9,)]


def test_promise_waits_for_a_node_without_the_taint() -> None:
    state = running_on(cluster(node(1), node(2)), job(8, gpus=8, minutes=10), job(9, gpus=8, minutes=60))
    soon = next(running_job.ranks[0].node_id for running_job in state.running if running_job.job_id == 8)
    nodes = tuple(replace(each_node, taints=(ML,)) if each_node.id == soon else each_node for each_node in state.nodes)
    new_plan = decide(replace(state, nodes=nodes, jobs=(job(1, gpus=8),)))
    assert new_plan.reservation is not None and new_plan.reservation.at == NOW + 3600


def test_preferred_node_wins_over_a_better_score() -> None:
    state = cluster(node(1, gpus=1), node(2, labels={"zone": "a"}), jobs=[job(1)])
    assert nodes_of(decide(state), 1) == [1]
    preferring = replace(state, jobs=(job(1, preferred=(Preference(1, ZONE_A),)),))
    assert nodes_of(decide(preferring), 1) == [2]


def test_preference_keeps_no_job_waiting() -> None:
    state = cluster(node(1), jobs=[job(1, preferred=(Preference(100, ZONE_A),))])
    assert nodes_of(decide(state), 1) == [1]


def test_weights_of_preferences_add_up() -> None:
    rack = Expression("rack", "exists")
    nodes = (node(1, labels={"zone": "a"}), node(2, labels={"rack": "r1", "fast": "yes"}))
    wants = (Preference(10, ZONE_A), Preference(6, rack), Preference(6, Expression("fast", "exists")))
    assert nodes_of(decide(cluster(*nodes, jobs=[job(1, preferred=wants)])), 1) == [2]
    assert nodes_of(decide(cluster(*nodes, jobs=[job(1, preferred=wants[:2])])), 1) == [1]


def test_node_with_an_avoided_taint_comes_last_unless_it_is_tolerated() -> None:
    nodes = (node(1, taints=[AVOID], labels={"zone": "a"}), node(2))
    wants = (Preference(100, ZONE_A),)
    new_plan = decide(cluster(*nodes, jobs=[job(n, gpus=8, preferred=wants) for n in (1, 2)]))
    assert (nodes_of(new_plan, 1), nodes_of(new_plan, 2)) == ([2], [1])
    tolerant = job(1, preferred=wants, tolerations=(Toleration("slow"),))
    assert nodes_of(decide(cluster(*nodes, jobs=[tolerant])), 1) == [1]


def test_hot_devices_stay_last_even_on_a_preferred_node() -> None:
    nodes = (node(1, gpus=[gpu(1, is_hot=True)], labels={"zone": "a"}), node(2))
    assert nodes_of(decide(cluster(*nodes, jobs=[job(1, preferred=(Preference(100, ZONE_A),))])), 1) == [2]


def test_gang_takes_the_most_welcome_of_equally_wide_nodes() -> None:
    nodes = (node(1), node(2, labels={"zone": "a"}), node(3), node(4, labels={"zone": "a"}))
    gang = job(1, gpus=16, gang=True, preferred=(Preference(1, ZONE_A),))
    assert set(nodes_of(decide(cluster(*nodes, jobs=[gang])), 1)) == {2, 4}


def test_plan_is_the_same_in_another_order_of_taints_and_labels() -> None:
    """A21"""
    labels = {"zone": "a", "rack": "r1"}
    taints = (AVOID, ML)
    wants = ask(preferred=(Preference(3, ZONE_A),), tolerations=(Toleration("dedicated"),))
    nodes = (node(1, labels=labels, taints=taints), node(2))
    turned = (node(1, labels=dict(reversed(labels.items())), taints=taints[::-1]), node(2))
    plans = {repr(decide(cluster(*entry, jobs=[job(1, request=wants), job(2)]))) for entry in (nodes, turned)}
    assert len(plans) == 1


def test_taint_makes_no_request_impossible() -> None:
    """A04: an admin may remove it, as one may uncordon a node."""
    assert why_never_fits(ask(8), TENANT, [node(1, taints=[ML]), node(2, gpus=4)]) is None


def test_expression_is_judged_at_submit_as_a_selector_is() -> None:
    """A04"""
    nodes = [node(1, gpus=4, labels={"zone": "a"}), node(2)]
    result = why_never_fits(ask(8, required=(ZONE_A,)), TENANT, nodes)
    assert result is not None and result.code == "never_fits"
    assert why_never_fits(ask(8, required=(Expression("zone", "in", ("b",)),)), TENANT, nodes) is None


def test_reason_names_no_taint_that_could_stay() -> None:
    """A20: one more GPU than the open node has; of the closed ones, the node with fewer taints would do."""
    nodes = (node(1, gpus=4), node(2, taints=[ML, SPOT]), node(3, taints=[SPOT]))
    new_plan = decide(cluster(*nodes, jobs=[job(1, gpus=8)]))
    assert reason(new_plan, 1).code == "taint"
    assert reason(new_plan, 1).evidence == {"taints": "spot:NoSchedule", "nodes": 1}


@pytest.mark.parametrize("shape", [{"gpus": 8}, {"gpus": 24, "gang": True}])
def test_named_toleration_starts_the_job(shape: dict[str, object]) -> None:
    """A20"""
    nodes = (node(1, gpus=4), node(2, taints=[ML, AVOID]), node(3, taints=[SPOT]), node(4, taints=[ML]))
    state = cluster(*nodes, jobs=[job(1, request=ask(**shape))])  # type: ignore[arg-type]
    [step] = obstacles(state, Policy(), NOW, 1)
    assert (step.reason.code, step.change and step.change.change, step.starts) == ("taint", "tolerations", True)
    assert step.change is not None and step.change.to == step.reason.evidence["taints"]


def test_toleration_is_an_alternative_while_open_nodes_are_full() -> None:
    state = running_on(cluster(node(1)), job(9, gpus=8))
    state = replace(state, nodes=(*state.nodes, node(2, taints=[ML, SPOT])), jobs=(job(1, gpus=4),))
    new_plan = decide(state)
    assert reason(new_plan, 1).code == "capacity" and reason(new_plan, 1).evidence["total"] == 8
    [result] = alternatives(state, Policy(), NOW, 1)
    assert result == Change("tolerations", "dedicated=ml:NoSchedule, spot:NoSchedule")
    assert 1 in started(decide(apply(state, 1, result)))


def test_min_gpus_taint_keeps_smaller_jobs_off_and_larger_ones_need_no_toleration() -> None:
    nodes = (node(1, taints=[LARGE]), node(2, gpus=4))
    new_plan = decide(cluster(*nodes, jobs=[job(1, gpus=3), job(2, gpus=3), job(3, gpus=4)]))
    assert set(started(new_plan)) == {1, 3}
    assert nodes_of(new_plan, 1) == [2] and nodes_of(new_plan, 3) == [1]


def test_all_gpus_of_a_gang_count_for_a_min_gpus_taint() -> None:
    nodes = (node(1, gpus=2, taints=[LARGE]), node(2, gpus=2, taints=[LARGE]))
    assert nodes_of(decide(cluster(*nodes, jobs=[job(1, gpus=4, gang=True)])), 1) == [1, 2]


def test_large_jobs_take_the_reserve_first_and_then_other_nodes() -> None:
    nodes = (node(1), node(2, taints=[LARGE]), node(3))
    new_plan = decide(cluster(*nodes, jobs=[job(1, gpus=8), job(2, gpus=8)]))
    assert (nodes_of(new_plan, 1), nodes_of(new_plan, 2)) == ([2], [1])


def test_preference_of_a_large_job_counts_more_than_the_reserve() -> None:
    nodes = (node(1, labels={"zone": "a"}), node(2, taints=[LARGE]))
    wants = job(1, gpus=8, preferred=(Preference(2, ZONE_A),))
    assert nodes_of(decide(cluster(*nodes, jobs=[wants])), 1) == [1]


def test_smaller_jobs_take_a_preferred_reserve_last() -> None:
    nodes = (node(1, taints=[Taint("min-gpus", "4", "PreferNoSchedule")]), node(2, gpus=2))
    new_plan = decide(cluster(*nodes, jobs=[job(1, gpus=2), job(2, gpus=2)]))
    assert (nodes_of(new_plan, 1), nodes_of(new_plan, 2)) == ([2], [1])


@pytest.mark.parametrize("value", ["", "many", "²", "-4"])
def test_min_gpus_taint_without_a_number_is_tolerated_by_name_alone(value: str) -> None:
    taint = Taint("min-gpus", value, "NoSchedule")
    assert not is_tolerated(taint, [], 8)
    assert is_tolerated(taint, [Toleration("min-gpus")], 1)


def test_reason_names_the_size_that_a_reserve_asks_for() -> None:
    """A20: only a reserved node has as many GPUs as it asks for."""
    new_plan = decide(cluster(node(1, taints=[LARGE]), node(2, gpus=1), jobs=[job(1, gpus=2)]))
    assert (reason(new_plan, 1).code, reason(new_plan, 1).evidence) == (
        "taint",
        {"taints": "min-gpus=4:NoSchedule", "nodes": 1},
    )


def test_alternatives_open_no_reserve_to_a_smaller_job() -> None:
    state = running_on(cluster(node(1)), job(9, gpus=8))
    state = replace(state, nodes=(*state.nodes, node(2, taints=[LARGE])), jobs=(job(1, gpus=3),))
    assert reason(decide(state), 1).code == "capacity"
    assert not [entry for entry in alternatives(state, Policy(), NOW, 1) if entry.change == "tolerations"]


def test_index_shares_its_result_between_sizes_on_one_side_of_a_reserve() -> None:
    index = NodeIndex((node(1, taints=[LARGE]), node(2)))
    small, large = ([index.selected(ask(gpus)) for gpus in sizes] for sizes in ((1, 3), (4, 8)))
    assert small[0] is small[1] and small[0] == frozenset({1})
    assert large == [None, None]
    assert index.penalties(ask(4)) is index.penalties(ask(8))


def test_affinity_that_no_node_meets_is_cured_without_it() -> None:
    """A20"""
    state = cluster(node(1), jobs=[job(1, required=(ZONE_A,))])
    [step] = obstacles(state, Policy(), NOW, 1)
    assert step.change == Change("node_affinity", "") and step.starts


@pytest.mark.parametrize(
    "request_",
    [
        ask(2, required=(ZONE_A, Expression("rack", "exists"), Expression("spot", "doesnotexist"))),
        ask(2, required=(Expression("zone", "in", ("a", "b")), Expression("zone", "notin", ("a",)))),
        ask(2, node_selector=(("zone", "b"),), required=(Expression("zone", "in", ("a", "b")),)),
    ],
)
def test_node_that_is_added_in_a_what_if_meets_the_affinity(request_: Request) -> None:
    state = cluster(node(1, gpus=0), jobs=[job(1, request=request_)])
    assert 1 in started(decide(apply(state, 1, Change("node_added", 1))))


def test_why_not_names_expressions_taints_and_preferences() -> None:
    """A22"""
    wants = job(1, required=(Expression("zone", "exists"),), preferred=(Preference(9, Expression("fast", "exists")),))
    nodes = (
        node(1, labels={"zone": "a", "fast": "yes"}),
        node(2),
        node(3, labels={"zone": "a"}, taints=[ML]),
        node(4, labels={"zone": "a"}),
        node(5, labels={"zone": "a"}, taints=[AVOID]),
    )
    recorded = record(cluster(*nodes, jobs=[wants]), Policy(), NOW)
    sentence = {id: [tuple(entry) for entry in why_not(recorded, 1, id)] for id in range(1, 6)}
    assert sentence == {
        1: [],
        2: [("labels", "its labels do not meet zone")],
        3: [("taints", "the job does not tolerate its taint dedicated=ml:NoSchedule")],
        4: [("preference", "it meets preferences of weight 0, n1 of weight 9; the higher wins")],
        5: [("taints", "it has room, but the job avoids its taint slow:PreferNoSchedule")],
    }


def test_candidates_count_untolerated_taints_and_met_preferences() -> None:
    nodes = (node(1, labels={"zone": "a"}), node(2), node(3, taints=[AVOID]))
    new_plan = decide(cluster(*nodes, jobs=[job(1, preferred=(Preference(7, ZONE_A),))]))
    considered = new_plan.placements[0].considered
    assert considered is not None
    assert [(candidate.node_id, candidate.taints, candidate.preferred) for candidate in considered.candidates] == [
        (1, 0, 7),
        (2, 0, 0),
        (3, 1, 0),
    ]
