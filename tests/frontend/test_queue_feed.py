"""Windows of the queue: visibility, order, counts and completeness."""

from urllib.parse import quote

import pytest

from frontend.live import feed, topics
from frontend.pages.queue import rows as queuerows
from frontend.ui.wait_groups import GROUPS, group_of
from gpusched.lib.db.sql import prepared
from gpusched.protocol.reasons import Pending
from jobs.actions import job_actions
from jobs.models import Job
from scheduling.status import cluster as scheduling
from tests.factories import identity_for, submit
from tests.jobs.arrays import submit_array

pytestmark = pytest.mark.django_db(transaction=True)


def waits_for(job_id, code):
    Job.objects.filter(pk=job_id).update(reason=code)


def shown(topic, visible=None):
    """Ids in order."""
    rows = feed.rows(topic, visible)
    assert set(rows) == {*map(str, rows["total"]["order"]), "total"}
    return rows["total"]["order"]


@pytest.mark.django_db(transaction=False)
def test_every_pending_reason_has_a_group():
    assert {group_of("pending", code) for code in Pending} | {group_of("held", "held_by_user")} == set(GROUPS)
    assert group_of("pending", Pending.QUOTA_WAIT) == "quota"
    assert group_of("pending", Pending.CAPACITY) == group_of("pending", "") == "capacity"
    assert group_of("pending", Pending.DEPENDENCY) == "you"


class TestOrder:
    def test_queue_is_ordered_by_group_then_place(self, anna, ours):
        allocated, quota, low, high, starting = (submit(anna, ours, priority=p) for p in (900, 800, 500, 600, 400))
        job_actions.hold(allocated, identity_for(anna))
        for job_id, code in ((quota, "quota_wait"), (low, "capacity"), (high, "capacity"), (starting, "starting")):
            waits_for(job_id, code)
        assert shown("queue") == [starting, quota, high, low, allocated]
        rows = feed.rows("queue", None)
        assert [(g["group"], g["jobs"]) for g in rows["total"]["groups"]] == [
            ("next", 1), ("quota", 1), ("capacity", 2), ("held", 1),
        ]  # fmt: skip
        assert rows[str(allocated)]["position"] == 1

    def test_queue_windows_cover_the_queue(self, anna, ours):
        for _ in range(7):
            submit(anna, ours)
        full = shown("queue")
        assert shown("queue:0-3") + shown("queue:3-6") + shown("queue:6-9") == full
        assert shown("queue:50-60") == []

    def test_queue_sorts_by_column_without_groups(self, anna, ours):
        small, large, middle = (submit(anna, ours, gpu_count=0, cpu_cores=1, name=n) for n in ("a", "c", "b"))
        waits_for(small, "quota_wait")
        assert shown("queue?sort=-name") == [large, middle, small]
        assert shown("queue:1-2?sort=name") == [middle]
        assert shown("queue?sort=id") == [small, large, middle]

    def test_gpus_ahead_counts_all_tenants(self, anna, ours, zoe, theirs):
        submit(zoe, theirs, gpu_count=4, priority=900)
        mine = submit(anna, ours, gpu_count=2)
        row = feed.rows("queue", [ours.pk])[str(mine)]
        assert (row["position"], row["gpus_ahead"]) == (2, 4)


class TestVisibility:
    """A08"""

    def test_queue_window_is_restricted_but_total_counts_all(self, anna, ours, zoe, theirs):
        other = [submit(zoe, theirs, priority=900) for _ in range(3)]
        own_rows = [submit(anna, ours) for _ in range(3)]
        assert shown("queue:0-2") == other[:2]
        assert shown("queue:0-2", [ours.pk]) == own_rows[:2]
        total = feed.rows("queue:0-2", [ours.pk])["total"]
        assert (total["jobs"], total["gpus"], total["shown"], total["matching"]) == (6, 6, 2, 3)
        assert [row["position"] for key, row in feed.rows("queue", [ours.pk]).items() if key != "total"] == [4, 5, 6]

    def test_queue_filter_does_not_widen_visibility(self, anna, ours, zoe, theirs):
        submit(zoe, theirs, name="secret")
        for topic in ("queue?tenant=theirs", "queue?user=zoe", "queue?q=secret"):
            assert shown(topic, [ours.pk]) == []
            assert feed.rows(topic, [ours.pk])["total"]["groups"] == []


class TestFilters:
    def test_name_of_200_characters_of_another_script(self, anna, ours):
        name = "обучение модели, " * 11 + "версия второй"
        entry = submit(anna, ours, name=name)
        assert (len(name), shown(f"queue:0-200?q={quote(name)}&sort=name")) == (200, [entry])

    def test_long_names_of_topics_are_not_kept(self):
        kept = topics._parse.cache_info().currsize
        assert topics.kind_of("queue?q=" + "x" * topics.MAX_NAME) is None
        assert topics._parse.cache_info().currsize == kept

    def test_each(self, anna, ours, zoe, theirs):
        entry = submit(anna, ours, name="Train ÄÖ")
        two = submit(zoe, theirs, name="other")
        waits_for(two, "quota_wait")
        for topic in (
            "queue?tenant=ours", "queue?user=anna,nobody", "queue?q=train%20%C3%A4", f"queue?q={entry}",
            "queue?group=next&state=pending", "queue?tenant=ours&q=", "queue?tenant=ours&reason=",
        ):  # fmt: skip
            assert shown(topic) == [entry], topic
        assert shown("queue?reason=quota_wait") == [two]
        assert shown("queue?tenant=ours&user=zoe") == []
        assert feed.rows("queue?tenant=ours", None)["total"]["matching"] == 1

    def test_queue_loads_only_watched_rows(self, anna, ours):
        for _ in range(5):
            submit(anna, ours)
        window = queuerows.window_of("queue:0-2")
        assert window is not None
        assert len(queuerows.load([(window, None)]).full) == 2

    def test_queue_fetches_only_requested_rows(self, anna, ours, monkeypatch):
        """However long the queue, and wherever in it the window is."""
        for _ in range(40):
            submit(anna, ours)
        fetched = []

        def counted(result):
            fetched.append(len(result))
            return result

        monkeypatch.setattr(queuerows, "prepared", lambda *params: counted(prepared(*params)))
        assert len(shown("queue:30-33")) == 3
        assert max(fetched) <= 3

    def test_queue_search_ignores_case_beyond_ascii(self, anna, ours):
        entry = submit(anna, ours, name="Обучение STRAßE")
        for text in ("обучение", "straße", "ОБУЧ"):
            assert shown(f"queue?q={text}") == [entry], text
        assert shown("queue?q=%25") == shown("queue?q=_") == []


def test_queue_array_is_one_row_counting_waiting_elements(anna, ours):
    """Also in the places of those behind it, as by REST."""
    small = submit(anna, ours, priority=900)
    array = submit_array(anna, ours, 50, gpu_count=2)
    last = submit(anna, ours, priority=100)
    result = feed.rows("queue", None)
    assert result["total"]["order"] == [small, array, last]
    assert result["total"]["groups"] == [{"group": "next", "rows": 3, "jobs": 52, "gpus": 102}]
    assert (result["total"]["rows"], result["total"]["matching"], result["total"]["jobs"]) == (3, 52, 52)
    assert [(result[str(j)]["position"], result[str(j)]["gpus_ahead"]) for j in (array, last)] == [(2, 1), (52, 101)]
    payload = scheduling.queue(identity_for(anna), None, 10)["items"]
    assert [(job["position"], job["gpus_ahead"]) for job in payload] == [(1, 0), (2, 1), (52, 101)]
