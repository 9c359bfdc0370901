"""A delta transforms the previous state into the current one."""

import copy
import json
from typing import Any

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from frontend.live import feed, invalidation, loader
from frontend.live.loader import FeedLoader, Invalidations, difference
from frontend.pages.fleet import rows as fleet
from frontend.viewer import Viewer
from gpusched.protocol.states import NodeIntent
from nodes.health import cordon
from nodes.models import Device
from tests.factories import make_member, make_node, make_tenant, run_cycle, submit
from tests.system.page import merge

VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
ROWS = st.dictionaries(st.sampled_from("xyz"), st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4))


@given(ROWS, ROWS)
def test_difference_applied_to_previous_rows_gives_current_rows(previous, after):
    """A52"""
    payload = json.loads(json.dumps(difference(previous, after)))
    rows = copy.deepcopy(previous)
    rows.update(payload.get("set", {}))
    for key, changes in payload.get("patch", {}).items():
        merge(rows[key], changes)
    for key in payload.get("gone", ()):
        del rows[key]
    assert rows == after
    assert (payload == {}) == (previous == after)


def test_difference_contains_only_changes():
    previous: dict[str, Any] = {
        "a": {"x": 1, "deep": {"y": 1, "z": 2}, "list": [1, 2]},
        "b": {"x": 1},
        "c": {"x": 1, "gone": 2},
    }
    after: dict[str, Any] = {"a": {"x": 1, "deep": {"y": 1, "z": 3}, "list": [1, 3]}, "b": {"x": 1}, "c": {"x": 1}}
    assert difference(previous, after) == {"patch": {"a": {"deep": {"z": 3}, "list": [1, 3]}}, "set": {"c": {"x": 1}}}


@pytest.mark.django_db(transaction=True)
class TestFleetReload:
    """Only the nodes of which a kind rang are looked at, and the rest is as it was."""

    VIEW = ("nodes", Viewer(None))

    def load(self, loader_, *rings):
        changes = Invalidations()
        for kind, ids in rings:
            changes.record(kind, ids)
        return loader_.load([self.VIEW], {}, [], changes)[self.VIEW].rows

    def test_node_event_reloads_only_that_node(self):
        entry, two = make_node(gpus=1), make_node(gpus=1)
        loader_ = FeedLoader()
        previous = self.load(loader_)
        for agent in (entry, two):
            cordon.set_intent(agent.name, NodeIntent.CORDONED, "fans")
        after = self.load(loader_, ("nodes", [entry.id]))
        assert (after[entry.name]["intent"], after[two.name]["intent"]) == ("cordoned", "open")
        assert after[two.name] is previous[two.name]
        assert self.load(loader_, ("nodes", []))[two.name]["intent"] == "cordoned"

    def test_job_event_reloads_current_and_former_nodes(self):
        agent, other = make_node(gpus=1), make_node(gpus=1)
        tenant = make_tenant()
        loader_ = FeedLoader()
        self.load(loader_)
        job_id = submit(make_member(tenant), tenant, gpu_count=1)
        run_cycle()
        holder = [name for name, row in self.load(loader_, ("jobs", [job_id])).items() if row["jobs"] == [job_id]]
        assert len(holder) == 1
        [busy] = [entry for entry in (agent, other) if entry.name in holder]
        busy.end(busy.start_all()[0])
        after = self.load(loader_, ("jobs", [job_id]))
        assert [row["devices"][0]["cell"] for row in after.values()] == ["free", "free"]

    def test_change_without_event_is_loaded_after_a_while(self, monkeypatch):
        agent = make_node(gpus=1)
        loader_ = FeedLoader()
        self.load(loader_)
        Device.objects.update(health="quarantined")
        assert self.load(loader_)[agent.name]["devices"][0]["health"] == "ok"
        monkeypatch.setattr(loader, "FULL_LOAD_SECONDS", 0.0)
        assert self.load(loader_)[agent.name]["devices"][0]["health"] == "quarantined"

    def test_pending_changes_survive_load_of_other_topics(self):
        agent = make_node(gpus=1)
        loader_ = FeedLoader()
        self.load(loader_)
        cordon.set_intent(agent.name, NodeIntent.CORDONED, "fans")
        changes = Invalidations()
        changes.record("nodes", [agent.id])
        loader_.load([("jobs", Viewer(None))], {}, [], changes)
        assert self.load(loader_)[agent.name]["intent"] == "cordoned"

    def test_pending_changes_are_bounded(self):
        changes = Invalidations()
        for number in range(3 * loader.MAX_NAMED):
            changes.record("jobs", [number])
        assert (changes.nodes, len(changes.jobs)) == (None, 0)
        changes.record("jobs", [1])
        changes.record("nodes", [1])
        assert (changes.nodes, len(changes.jobs)) == (None, 0)

    def test_rows_of_former_viewers_are_dropped(self):
        agent = make_node(gpus=1)
        loaded = fleet.load()
        for tenant in range(3 * fleet.MAX_RESTRICTED):
            fleet.restrict(loaded, [tenant])
        loaded = fleet.reload(loaded, None, ())
        kept = fleet.restrict(loaded, [7])[agent.name]
        loaded = fleet.reload(loaded, None, ())
        assert fleet.restrict(loaded, [7])[agent.name] is kept
        assert len(loaded.members[agent.name].restricted) == 1

    def test_removed_node_leaves_rows(self):
        agent, other = make_node(gpus=0), make_node(gpus=0)
        existing = fleet.load()
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM nodes_node WHERE id = %s", [agent.id])
        assert set(fleet.reload(existing, {agent.id}, ()).members) == {other.name}
        assert set(feed.rows("nodes", None)) == {other.name}


def test_slow_load_does_not_lengthen_pause():
    costs = invalidation.LoadCosts()
    assert costs.of("nodes") == 0.0
    for seconds in (0.02, 2.0, 0.03):
        costs.add("nodes", seconds)
    assert costs.of("nodes") == 0.02
    for _ in range(invalidation.LATEST_LOADS):
        costs.add("nodes", 0.5)
    assert costs.of("nodes") == 0.5
