"""The placement rules that the fragmentation score is compared with: a reserve for large jobs, and size classes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduling.engine.model import Job, Node, Policy, Request, Snapshot, Tenant
from scheduling.engine.planner import plan
from scheduling.simulator.runs.cluster import Cluster
from scheduling.simulator.traces.jobs import TraceJob
from tests.simulator.reserve import POOLED, RULES, SEPARATE, demand_of, filled, queueing_rows, replayed
from tests.simulator.size_rules import SizedCluster, SizeRule, class_of

HOUR = 3600.0
PLAIN = SizeRule("fragmentation")
RESERVE = SizeRule("fragmentation", large_gpus=8)
CLASSES = SizeRule("fragmentation", classes=True)
# GPUs -> work: a fifth each for single GPUs and for 2 to 4, the rest for whole nodes.
DEMAND = {1: 20.0, 2: 10.0, 4: 10.0, 8: 40.0, 16: 20.0}


def placed(rule: SizeRule, sizes: Sequence[int], *, nodes: int = 5) -> list[tuple[int, ...] | None]:
    """Place jobs of these sizes, in this order, on nodes of 8 GPUs; return the nodes of each, None where it waits."""
    cluster = SizedCluster(nodes, 8, rule=rule, demand=DEMAND)
    jobs = tuple(Job(number, 1, cluster.request(gpus), queued_at=number) for number, gpus in enumerate(sizes, 1))
    policy = Policy(name="fifo", placement=rule.placement)
    made = plan(Snapshot(jobs, (), cluster.nodes(), (Tenant(1, "all"),)), policy, 1000.0)
    places = {placement.job_id: tuple(rank.node_id for rank in placement.ranks) for placement in made.placements}
    return [places.get(job.id) for job in jobs]


def reserved(nodes: Sequence[Node]) -> set[int]:
    return {node.id for node in nodes if node.taints}


def test_reserve_is_a_fifth_of_the_nodes() -> None:
    sizes = {count: len(reserved(RESERVE.nodes(Cluster(count, 8).nodes(), DEMAND))) for count in (3, 5, 7, 15, 100)}
    assert sizes == {3: 1, 5: 1, 7: 1, 15: 3, 100: 20}


def test_reserve_takes_the_same_part_of_each_model_of_nodes_that_hold_a_large_job() -> None:
    wide, narrow = Cluster(20, 8).nodes(), Cluster(20, 4).nodes()
    other = tuple(
        replace(node, id=100 + node.id, devices=tuple(replace(device, model="H100") for device in node.devices))
        for node in wide
    )
    nodes = (*wide, *other, *(replace(node, id=200 + node.id) for node in narrow))
    chosen = Counter(number // 100 for number in reserved(RESERVE.nodes(nodes, DEMAND)))
    assert chosen == {0: 5, 1: 5}  # 80 of 400 GPUs
    assert set(Counter(number // 100 for number in reserved(replace(RESERVE, large_gpus=4).nodes(nodes, DEMAND)))) == {
        0, 1, 2
    }  # fmt: skip


def test_reserve_is_empty_when_no_job_is_large() -> None:
    assert not reserved(RESERVE.nodes(Cluster(5, 8).nodes(), {1: 5.0, 4: 5.0}))


def test_small_jobs_wait_although_the_reserve_is_free() -> None:
    assert placed(PLAIN, [1] * 40).count(None) == 0
    places = placed(RESERVE, [1] * 40)
    assert places.count(None) == 8
    [spared] = reserved(RESERVE.nodes(Cluster(5, 8).nodes(), DEMAND))
    assert (spared,) not in places


def test_large_jobs_fill_the_reserve_first_and_then_the_other_nodes() -> None:
    [spared] = reserved(RESERVE.nodes(Cluster(5, 8).nodes(), DEMAND))
    places = placed(RESERVE, [8, 8, 16])
    assert places[0] == (spared,)
    assert places[1] != (spared,) and places[1] is not None
    assert places[2] is not None and len(set(places[2])) == 2


def test_reserve_for_half_nodes_takes_jobs_of_half_a_node() -> None:
    [spared] = reserved(RESERVE.nodes(Cluster(5, 8).nodes(), DEMAND))
    assert placed(replace(RESERVE, large_gpus=4), [4, 3])[0] == (spared,)
    assert placed(RESERVE, [4])[0] != (spared,)


def test_each_class_has_the_part_of_the_nodes_that_it_has_of_the_demand() -> None:
    labels = Counter(node.labels["size-class"] for node in CLASSES.nodes(Cluster(10, 8).nodes(), DEMAND))
    assert labels == {"2": 6, "1": 2, "0": 2}
    assert [class_of(gpus) for gpus in (0, 1, 2, 4, 7, 8, 24)] == [0, 0, 1, 1, 1, 2, 2]


def test_jobs_use_nodes_of_their_class_and_spill_over_when_these_are_full() -> None:
    nodes = {node.id: node.labels["size-class"] for node in CLASSES.nodes(Cluster(10, 8).nodes(), DEMAND)}
    places = placed(CLASSES, [8, 2, *[1] * 33], nodes=10)
    used = [nodes[place[0]] if place else None for place in places]
    assert used[:2] == ["2", "1"]
    # 16 on the two nodes of their class, 14 beside the pair, and the rest on nodes of the widest class.
    assert used[2:] == ["0"] * 16 + ["1"] * 14 + ["2"] * 3


def test_tainted_classes_keep_single_gpus_off_wider_nodes_until_theirs_are_full() -> None:
    rule = SizeRule("fragmentation", tainted=True)
    nodes = {node.id: [str(taint) for taint in node.taints] for node in rule.nodes(Cluster(10, 8).nodes(), DEMAND)}
    wide, middle = ["min-gpus=8:PreferNoSchedule"], ["min-gpus=2:PreferNoSchedule"]
    assert Counter(map(tuple, nodes.values())) == {tuple(wide): 6, tuple(middle): 2, (): 2}
    places = placed(rule, [2, *[1] * 17], nodes=10)
    used = [nodes[place[0]] if place else None for place in places]
    assert used[0] == middle
    assert used[1:17] == [[]] * 16 and used[17] in (middle, wide)
    assert all(nodes[place[0]] != [] for place in placed(rule, [8] * 8, nodes=10) if place)


def test_fills_draw_the_same_requests_under_every_rule() -> None:
    requests = [Request(gpus, cpu_milli=0) for gpus in (*[1] * 200, 8)]
    plain, spared, classes = (filled(Cluster(20, 8).nodes(), requests, rule, 2) for rule in (PLAIN, RESERVE, CLASSES))
    for fills in zip(plain, spared, classes, strict=True):
        arrived = [Counter(entry.placed_by_gpus) + Counter(entry.refused_by_gpus) for entry in fills]
        assert arrived[0] == arrived[1] == arrived[2]
    # The reserve is wider than the demand of large jobs, and the single GPUs are refused.
    assert [entry.refused_by_gpus[1] for entry in plain] == [0, 0]
    assert all(entry.refused_by_gpus[1] > 0 for entry in spared)


def test_rows_cover_separate_and_pooled_clusters_under_each_policy_and_rule() -> None:
    jobs = [
        TraceJob(n, f"j{n}", n * HOUR / 8, 8 if n % 7 == 0 else 1, HOUR * (1 + n % 3), tenant="ab"[n % 2])
        for n in range(60)
    ]
    rows = list(queueing_rows(jobs, {"a": 1, "b": 2}, ("fifo", "shortest"), RULES, 2))
    assert {(row.cluster, row.seeds) for row in rows if row.policy == "shortest"} == {
        (name, 2) for name in ("a", "b", SEPARATE, POOLED)
    }
    assert len(rows) == 2 * 4 * len(RULES)
    for row in rows:
        assert row.jobs == (30 if row.cluster in "ab" else 60)
        assert row.large_h is not None
        large = 9 if row.cluster in (SEPARATE, POOLED) else sum(j.gpus == 8 for j in jobs if j.tenant == row.cluster)
        both = (large * row.large_h + (row.jobs - large) * row.small_h) / row.jobs
        assert both == pytest.approx(row.mean_h, abs=0.02)


def test_replay_refuses_jobs_that_could_never_start() -> None:
    jobs = [TraceJob(1, "j1", 0.0, 16, HOUR)]
    with pytest.raises(ValueError, match="1 of 1 jobs do not fit on 1 nodes under fragmentation, reserve 8"):
        replayed(jobs, 1, "fifo", RESERVE, 1)
    assert demand_of([*jobs, replace(jobs[0], gpus=1)]) == {16: 16 * HOUR, 1: HOUR}
