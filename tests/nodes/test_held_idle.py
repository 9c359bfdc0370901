"""Held but idle: a rolling window of known readings, two warnings, the end only under policy enforce."""

import json
from datetime import timedelta

import pgtrigger
import pytest
from django.test import Client
from django.utils import timezone

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import execute
from gpusched.protocol.agent_messages import Reading, Stop
from jobs.models import Job, JobEvent
from nodes import held_idle
from nodes.models import HeldIdle
from nodes.models import Reading as Kept
from scheduling import policy
from tests.factories import make_node, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def rule():
    """Sets the policy; the numbers are the defaults: an hour, warnings 10 minutes apart."""

    def use(word):
        if policy.values()["held_idle_policy"] != word:
            policy.change({"held_idle_policy": word}, actor="root")

    use("enforce")
    return use


def review():
    held_idle.review(held_idle.from_policy(policy.values()))


class Clock:
    """Minutes since the job started. Time passes in the tables: their times move back."""

    def __init__(self, node):
        self.node = node
        self.minutes = 0.0

    def read(self, *utilisations):
        devices = self.node.devices
        notices = utilisations if len(utilisations) == len(devices) else utilisations * len(devices)
        self.node.sync(
            readings=[Reading(uuid=d.uuid, utilisation_percent=u) for d, u in zip(devices, notices, strict=True)]
        )

    def wait(self, minutes):
        """Readings went on as they were all the while."""
        self.minutes += minutes
        shift = [timedelta(minutes=minutes)]
        execute("UPDATE nodes_reading SET quiet_since = quiet_since - %s", shift)
        execute("UPDATE nodes_assignment SET started_at = started_at - %s", shift)
        execute("UPDATE nodes_heldidle SET since = since - %s, told_at = told_at - %s", shift * 2)
        with pgtrigger.ignore("nodes.Allocation:no_update"):
            execute("UPDATE nodes_allocation SET since = since - %s", shift)

    def review_after(self, minutes, *utilisations):
        self.wait(minutes)
        self.read(*(utilisations or (0,)))
        review()


def start(user, tenant, *, gpus=1, **fields):
    node = make_node(gpus=gpus)
    job_id = submit(user, tenant, gpu_count=gpus, **fields)
    run_cycle()
    node.start_all()
    clock = Clock(node)
    clock.read(0)
    return job_id, clock


def notices_of(job_id):
    """The events of the rule, in short."""
    kinds = ("idle_warning", "idle_would_end", "idle_over", "stopping")
    rows = JobEvent.objects.filter(job_id=job_id, kind__in=kinds).order_by("id")
    return [(row.kind.removeprefix("idle_"), row.data.get("warnings")) for row in rows]


class TestRule:
    def test_two_warnings_precede_the_end(self, user, tenant, rule):
        job_id, clock = start(user, tenant, max_retries=3)
        clock.review_after(59.9)
        assert notices_of(job_id) == []
        clock.review_after(0.2)
        assert notices_of(job_id) == [("warning", 1)]
        clock.review_after(9.9)
        assert notices_of(job_id) == [("warning", 1)]
        clock.review_after(0.2)
        assert notices_of(job_id) == [("warning", 1), ("warning", 2)]
        assert Job.objects.get(pk=job_id).state == "running"
        clock.review_after(10.1)
        assert notices_of(job_id)[2:] == [("stopping", 2)]
        [order] = [row for row in clock.node.sync().assignments if isinstance(row, Stop)]
        assert order.reason == "held_idle"
        clock.node.end(order.key, exit_code=None, reason="held_idle")
        job = Job.objects.get(pk=job_id)
        assert (job.state, job.reason) == ("failed", "held_idle")

    def test_pause_of_the_scheduler_skips_no_warning(self, user, tenant, rule):
        job_id, clock = start(user, tenant)
        clock.review_after(600)
        clock.review_after(0.1)
        assert notices_of(job_id) == [("warning", 1)]

    def test_busy_reading_restarts_the_window(self, user, tenant, rule):
        job_id, clock = start(user, tenant)
        clock.review_after(61)
        clock.read(5)
        clock.review_after(1)
        assert notices_of(job_id) == [("warning", 1), ("over", None)]
        clock.review_after(58)
        assert notices_of(job_id)[2:] == []
        clock.review_after(3)
        assert notices_of(job_id)[2:] == [("warning", 1)]

    def test_recently_idle_long_job_is_not_judged_by_its_whole_runtime(self, user, tenant, rule):
        job_id, clock = start(user, tenant)
        clock.review_after(600, 90)
        clock.review_after(50, 0)
        assert notices_of(job_id) == []

    def test_idle_time_before_the_job_does_not_count(self, user, tenant, rule):
        node = make_node(gpus=1)
        clock = Clock(node)
        clock.read(0)
        clock.wait(600)
        job_id = submit(user, tenant)
        run_cycle()
        node.start_all()
        clock.review_after(1)
        assert notices_of(job_id) == []

    def test_single_busy_gpu_keeps_the_job_busy(self, user, tenant, rule):
        job_id, clock = start(user, tenant, gpus=2)
        clock.read(0, 90)
        clock.review_after(120, 0, 90)
        assert notices_of(job_id) == []

    def test_unknown_utilisation_is_never_idle(self, user, tenant, rule):
        """A19: neither a reading that does not say it, nor a gap, nor silence."""
        job_id, clock = start(user, tenant)
        clock.review_after(61, None)
        clock.read(0)
        clock.wait(61)
        Kept.objects.update(read_at=timezone.now() - timedelta(seconds=70))
        review()
        clock.review_after(2)
        assert notices_of(job_id) == []

    @pytest.mark.parametrize(("percent", "warned"), [(4, [("warning", 1)]), (5, [])])
    def test_utilisation_below_the_threshold_is_idle(self, user, tenant, rule, percent, warned):
        job_id, clock = start(user, tenant)
        clock.review_after(61, percent)
        assert notices_of(job_id) == warned

    def test_interactive_jobs_have_a_longer_window(self, user, tenant, rule):
        job_id, clock = start(user, tenant, labels={"interactive": "true"})
        clock.review_after(239)
        assert notices_of(job_id) == []
        clock.review_after(2)
        assert notices_of(job_id) == [("warning", 1)]


class TestPolicies:
    def test_monitor_only_records_what_would_happen(self, user, tenant, rule):
        rule("monitor")
        job_id, clock = start(user, tenant)
        for minutes in (61, 11, 11, 11, 600):
            clock.review_after(minutes)
        assert notices_of(job_id) == [("warning", 1), ("warning", 2), ("would_end", 2)]
        assert Job.objects.get(pk=job_id).state == "running"

    def test_monitor_is_the_default(self):
        assert policy.values()["held_idle_policy"] == "monitor"

    def test_monitored_job_is_warned_before_it_is_ended(self, user, tenant, rule):
        rule("monitor")
        job_id, clock = start(user, tenant)
        for minutes in (61, 11, 11):
            clock.review_after(minutes)
        rule("enforce")
        clock.review_after(1)
        clock.review_after(1)
        assert notices_of(job_id)[3:] == [("over", None), ("warning", 1)]

    def test_off_sends_no_warnings_and_clears_notices(self, user, tenant, rule):
        job_id, clock = start(user, tenant)
        clock.review_after(61)
        rule("off")
        clock.review_after(600)
        assert notices_of(job_id) == [("warning", 1), ("over", None)]
        assert not HeldIdle.objects.exists()


class TestTold:
    @pytest.fixture
    def ask(self, user):
        token = make_token(user)

        def get(path):
            return Client().get(f"/api/v1/{path}", headers={"Authorization": f"Bearer {token}"}).json()

        return get

    def test_owner_sees_the_notice_beside_the_reason(self, user, tenant, rule, ask):
        job_id, clock = start(user, tenant)
        clock.review_after(61)
        for answer in (ask(f"jobs/{job_id}")["reason"], ask(f"jobs/{job_id}/explain")):
            assert answer["code"] == "idle_gpus"
            assert answer["sentence"].startswith("its 1 GPU have been under 5 % since 2")
            assert "it is ended at" in answer["sentence"]
        clock.review_after(1, 50)
        assert ask(f"jobs/{job_id}")["reason"] is None

    def test_end_names_its_cause(self, user, tenant, rule, ask):
        job_id, clock = start(user, tenant)
        for minutes in (61, 11, 11):
            clock.review_after(minutes)
        assert "2 warnings changed nothing" in ask(f"jobs/{job_id}")["reason"]["sentence"]


class TestNumbers:
    def test_admins_change_the_rule_while_the_system_runs(self, user, tenant, rule):
        changes = {"held_idle_minutes": 10, "held_idle_grace_minutes": 4, "held_idle_percent": 50}
        policy.change(changes, actor="root")
        job_id, clock = start(user, tenant)
        clock.read(49)
        clock.review_after(9.9, 49)
        assert notices_of(job_id) == []
        clock.review_after(0.2, 49)
        clock.review_after(2.1, 49)
        assert notices_of(job_id) == [("warning", 1), ("warning", 2)]
        evidence = JobEvent.objects.filter(job_id=job_id, kind="idle_warning").latest("id").data
        assert evidence["percent"] == 50
        clock.read(50)
        review()
        assert notices_of(job_id)[2:] == [("over", None)], "the threshold is that of the policy, too"

    def test_longer_window_also_holds_for_jobs_that_were_warned(self, user, tenant, rule):
        job_id, clock = start(user, tenant)
        clock.review_after(61)
        policy.change({"held_idle_minutes": 120}, actor="root")
        for minutes in (11, 11, 11):
            clock.review_after(minutes)
        assert notices_of(job_id) == [("warning", 1), ("over", None)]
        clock.review_after(27)
        clock.review_after(10.1)
        assert notices_of(job_id)[2:] == [("warning", 1), ("warning", 2)]

    def test_edits_are_recorded_and_those_without_effect_rejected(self, user, rule):
        policy.change({"held_idle_minutes": 10}, actor="root")
        [latest, *_] = policy.history(5)
        assert (latest["by"], latest["changes"]) == ("root", {"held_idle_minutes": {"from": 60.0, "to": 10.0}})
        rule("off")
        with pytest.raises(Problem) as refused:
            policy.change({"held_idle_minutes": 20}, actor="root")
        assert refused.value.errors[0].message == "would do nothing while held_idle_policy is off"


class TestExemptions:
    @pytest.fixture
    def admin(self):
        token = make_token(make_user(admin=True))

        def call(method, path="", **fields):
            return Client().generic(
                method, f"/api/v1/idle-exemptions{path}", json.dumps(fields) if fields else "",
                content_type="application/json", headers={"Authorization": f"Bearer {token}"},
            )  # fmt: skip

        return call

    @pytest.mark.parametrize("whose", ["tenant", "job_id"])
    def test_exempt_job_is_not_warned_and_its_notices_are_cleared(self, user, tenant, rule, admin, whose):
        job_id, clock = start(user, tenant)
        clock.review_after(61)
        fields = {"tenant": tenant.name} if whose == "tenant" else {"job_id": job_id}
        answer = admin("POST", note="serves a demo", **fields)
        assert (answer.status_code, answer.json()[whose]) == (201, fields[whose])
        clock.review_after(60)
        assert notices_of(job_id) == [("warning", 1), ("over", None)]
        assert Job.objects.get(pk=job_id).reason == ""
        [row] = admin("GET").json()["items"]
        assert admin("DELETE", f"/{row['id']}").status_code == 204
        clock.review_after(1)
        assert notices_of(job_id)[2:] == [("warning", 1)]

    def test_exempting_twice_changes_nothing(self, user, tenant, admin):
        for note in ("first", "second"):
            assert admin("POST", tenant=tenant.name, note=note).status_code == 201
        assert [row["note"] for row in admin("GET").json()["items"]] == ["second"]

    @pytest.mark.parametrize(
        ("fields", "status"),
        [({"tenant": "nobody"}, 404), ({"job_id": 10**30}, 404), ({"job_id": -1}, 404), ({"note": "x"}, 400),
         ({"tenant": "a", "job_id": 1}, 400), ({"tenant": "a\x00"}, 400)],
    )  # fmt: skip
    def test_invalid_exemption_is_rejected(self, admin, fields, status):
        """A55"""
        assert admin("POST", **fields).status_code == status
