"""Monitoring: readiness, the largest gang, a bounded number of series, logs as JSON."""

import json
import logging
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DatabaseError
from django.test import Client, override_settings
from django.utils import timezone
from django_q.models import Schedule, Task
from django_q.monitor import save_task

from gpusched.env import read
from gpusched.lib import request_id
from gpusched.lib.db.sql import execute
from gpusched.management.commands import worker
from gpusched.protocol.agent_messages import Reading, Sync
from jobs.models import Attempt, Job
from nodes.agents.hub import hub
from nodes.agents.inbox import Inbox
from nodes.models import Node
from scheduling import policy
from scheduling.models import Beat
from scheduling.status import cluster
from scheduling.worker import housekeeping, tasks
from tests.factories import make_node, make_token, run_cycle, submit
from tests.scheduling.reservations.booking import reserve

pytestmark = pytest.mark.django_db
UNHEARD = "gpu_scheduler_agents_unheard_seconds "


def ready():
    answer = Client().get("/ready")
    return answer.status_code, answer.json()


def ended(name, seconds_ago, success=True):
    at = timezone.now() - timedelta(seconds=seconds_ago)
    key = f"{name}{seconds_ago}{success}"
    Task.objects.create(
        id=key, name=key, func=f"scheduling.worker.tasks.{name}", started=at, stopped=at, success=success
    )


class TestReady:
    def test_not_ready_before_the_first_cycle(self):
        assert ready() == (
            503,
            {"status": "not ready", "database": True, "scheduler": False, "cycle_age_seconds": None,
             "agents": {"joined": 0, "online": 0, "lost": 0, "total": 0},
             "housekeeping": False, "housekeeping_lag_seconds": None, "agents_unheard_seconds": 0.0},
        )  # fmt: skip

    def test_not_ready_is_no_error_in_the_log(self, caplog):
        """A server that starts is probed many times a second."""
        assert ready()[0] == 503
        assert [record.getMessage() for record in caplog.records if record.name == "django.request"] == []

    def test_cycle_without_changes_is_a_heartbeat(self):
        run_cycle()
        run_cycle()
        status, answer = ready()
        assert (status, answer["status"], answer["scheduler"]) == (200, "ok", True)
        assert 0 <= answer["cycle_age_seconds"] < 5
        assert Beat.objects.count() == 1

    @pytest.mark.parametrize(("age", "status"), [(10, 200), (20, 503)])
    def test_silent_scheduler_makes_the_server_unready(self, age, status):
        run_cycle()
        execute("UPDATE scheduling_beat SET at = at - make_interval(secs => %s)", [age])
        result, answer = ready()
        assert (result, answer["scheduler"]) == (status, status == 200)
        assert answer["cycle_age_seconds"] == pytest.approx(age, abs=3)
        text = Client().get("/metrics").content.decode()
        assert f"gpu_scheduler_cycle_leader {float(status == 200)}" in text
        for_head = Client().get("/ready?head=true")
        assert (for_head.status_code, for_head.json()["scheduler"]) == (200, status == 200)

    def test_lost_agents_are_reported_and_keep_the_server_ready(self):
        make_node()
        Node.objects.filter(pk=make_node().id).update(state="lost")
        run_cycle()
        status, answer = ready()
        assert (status, answer["agents"]) == (200, {"joined": 0, "online": 1, "lost": 1, "total": 2})

    @pytest.mark.parametrize(("seconds", "status"), [(2, 200), (60, 503)])
    def test_unwritten_agent_messages_make_the_server_unready(self, monkeypatch, seconds, status):
        """And are no lack of a scheduler."""
        now = time.monotonic()
        inbox: Inbox[Any] = Inbox()
        for number, at in enumerate((now - seconds, now)):
            inbox.put(at, SimpleNamespace(node_id=number), Sync(seq=1, at="", boot_id=""))
        monkeypatch.setattr(hub, "_inbox", inbox)
        run_cycle()
        result, answer = ready()
        assert (result, answer["scheduler"]) == (status, True)
        assert answer["agents_unheard_seconds"] == pytest.approx(seconds, abs=7)
        assert Client().get("/ready?head=true").status_code == 200
        [line] = [one for one in Client().get("/metrics").content.decode().splitlines() if one.startswith(UNHEARD)]
        assert float(line.split()[1]) == pytest.approx(seconds, abs=7)

    @pytest.mark.parametrize(
        ("ages", "is_working", "lag"),
        [
            ({"mend": 50, "roll_up": 70, "drop_old": 3000, "drop_old_jobs": 40, "forecast": 50, "learn": 50}, True, 10),
            (
                {"mend": 400, "roll_up": 30, "drop_old": 3000, "drop_old_jobs": 40, "forecast": 50, "learn": 50},
                False,
                340,
            ),
            (
                {"mend": 30, "roll_up": 30, "drop_old": 7200, "drop_old_jobs": 40, "forecast": 50, "learn": 50},
                False,
                3600,
            ),
            ({"mend": 30, "roll_up": 30}, False, None),
        ],
    )
    def test_stalled_housekeeping_is_reported_and_keeps_the_server_ready(self, ages, is_working, lag):
        run_cycle()
        for name, age in ages.items():
            ended(name, age)
            ended(name, age + 500)
            ended(name, 1, success=False)
        status, answer = ready()
        assert (status, answer["housekeeping"]) == (200, is_working)
        told = answer["housekeeping_lag_seconds"]
        assert told == (None if lag is None else pytest.approx(lag, abs=30))
        text = Client().get("/metrics").content.decode()
        assert text.count("gpu_scheduler_housekeeping_age_seconds{") == len(ages)
        [line] = [one for one in text.splitlines() if 'housekeeping_age_seconds{task="mend"}' in one]
        assert float(line.split()[1]) == pytest.approx(ages["mend"], abs=30)

    def test_housekeeping_runs_again_after_the_clock_was_set_back(self):
        """Otherwise it stands still until the clock shows that time again, and counts as working."""
        worker._plan_housekeeping()
        Schedule.objects.update(next_run=timezone.now() + timedelta(minutes=59))
        Schedule.objects.filter(name="mend").update(next_run=timezone.now() + timedelta(days=1))
        for name in housekeeping.EVERY_MINUTES:
            ended(name, -86400)
            ended(name, 400 if name == "mend" else 5)
        worker._plan_housekeeping()  # the cluster starts again
        due = Schedule.objects.filter(next_run__lt=timezone.now()).values_list("name", flat=True)
        assert set(due) == housekeeping.EVERY_MINUTES.keys() - {"drop_old"}
        assert not housekeeping.is_working(housekeeping.lag_seconds(housekeeping.task_ages()))

    def test_every_planned_task_is_monitored(self):
        worker._plan_housekeeping()
        planned = {row.name: row.minutes for row in Schedule.objects.all()}
        assert planned == housekeeping.EVERY_MINUTES
        assert all(callable(getattr(tasks, name)) for name in planned)

    def test_worker_records_the_end_of_each_task_independently(self):
        now = timezone.now()
        for name, times in (("drop_old", 1), ("mend", 20)):
            task = {
                "name": name,
                "func": f"scheduling.worker.tasks.{name}",
                "args": (),
                "kwargs": {},
                "success": True,
                "sync": True,
            }
            for n in range(times):
                save_task({**task, "id": f"{name}{n}", "started": now, "stopped": now, "result": 1}, None)
        assert housekeeping.task_ages().keys() == {"drop_old", "mend"}

    def test_latest_failures_of_each_task_stay(self, monkeypatch):
        """A task that fails each second would fill the disk."""
        monkeypatch.setattr(housekeeping, "KEPT_FAILURES", 2)
        for name, times in (("cycle", 5), ("drop_old_jobs", 1)):
            for number in range(times):
                ended(name, number, success=False)
        ended("cycle", 9)
        tasks.drop_old()
        kept = set(Task.objects.values_list("id", flat=True))
        assert kept == {"cycle0False", "cycle1False", "cycle9True", "drop_old_jobs0False"}
        assert Task.objects.count() < 10

    def test_not_ready_without_a_database(self, monkeypatch):
        def fails():
            raise DatabaseError

        monkeypatch.setattr(cluster, "scheduler_lag", fails)
        assert ready()[1]["database"] is False and ready()[0] == 503
        assert Client().get("/ready?head=true").status_code == 503


class TestLargestGang:
    def largest(self):
        [line] = [
            line for line in Client().get("/metrics").content.decode().splitlines()
            if line.startswith("gpu_scheduler_largest_startable_gang ")
        ]  # fmt: skip
        return float(line.split()[1])

    def test_gang_metric_spans_nodes_and_counts_free_gpus_in_service(self, user, tenant):
        make_node(gpus=8)
        Node.objects.filter(pk=make_node(gpus=4).id).update(intent="cordoned")
        make_node(gpus=5)
        assert self.largest() == 13
        submit(user, tenant, gpu_count=3)
        run_cycle()
        assert self.largest() == 10

    def test_gang_metric_leaves_out_what_is_reserved_now(self, user, tenant):
        make_node(gpus=8)
        reserve(user, tenant, 0, 60, gpus=3)
        reserve(user, tenant, 60, 60, gpus=5)
        assert self.largest() == 5

    def test_gang_metric_stays_on_a_node_without_gangs(self):
        make_node(gpus=8)
        make_node(gpus=5)
        policy.change({"enable_gang_scheduling": False}, actor="root")
        assert self.largest() == 8

    def test_gang_metric_is_zero_without_capacity(self):
        assert self.largest() == 0


@pytest.mark.django_db
def test_old_reading_makes_no_series():
    """Unknown is never a number."""
    agent = make_node(gpus=1)
    agent.sync(readings=[Reading(uuid=agent.devices[0].uuid, utilisation_percent=50, temperature_celsius=40)])
    names = ("gpu_scheduler_gpu_utilization{", "gpu_scheduler_gpu_temperature_celsius{")
    for seconds, are_there in ((20, True), (31, False)):
        execute("UPDATE nodes_reading SET read_at = now() - make_interval(secs => %s)", [seconds])
        text = Client().get("/metrics").content.decode()
        assert [name in text for name in names] == [are_there] * 2


def test_unknown_end_makes_no_series(user, tenant):
    make_node()
    submit(user, tenant)
    run_cycle()
    Attempt.objects.update(reason="made up by a newer version", ended_at="2030-01-01T00:00:00Z", started_at=None)
    assert "made up" not in Client().get("/metrics").content.decode()


class TestLogs:
    @pytest.fixture
    def lines(self):
        """Collect the log as JSON."""
        lines: list[dict[str, object]] = []

        class Keeper(logging.Handler):
            def emit(self, record):
                lines.append(json.loads(request_id.JsonLines().format(record)))

        keeper = Keeper()
        logging.getLogger().addHandler(keeper)
        yield lines
        logging.getLogger().removeHandler(keeper)

    def test_each_request_is_a_log_line_with_the_ids_of_request_and_job(self, lines, user, tenant):
        job = submit(user, tenant)
        requested = {"X-Request-Id": "from-a-proxy-1"}
        with override_settings(ENV=read({"GPUSCHED_LOG_FORMAT": "json"})):
            Client().get(f"/api/v1/jobs/{job}?token=secret", headers=requested)
        [line] = [one for one in lines if one["logger"] == request_id.__name__]
        assert (line["method"], line["path"], line["status"]) == ("GET", f"/api/v1/jobs/{job}", 401)
        assert (line["request_id"], line["job_id"]) == ("from-a-proxy-1", job)
        assert "secret" not in json.dumps(line)

    @pytest.mark.django_db(transaction=True)
    def test_submit_logs_the_jobs_that_it_created(self, lines, user, tenant):
        token = {"Authorization": f"Bearer {make_token(user)}"}

        def post(path, body, **headers):
            answer = Client().post(
                f"/api/v1/{path}", json.dumps(body), content_type="application/json", headers={**token, **headers}
            )
            assert answer.status_code < 400, answer.content
            return answer.json()

        expected = {"tenant": tenant.name, "command": ["true"]}
        with override_settings(ENV=read({"GPUSCHED_LOG_FORMAT": "json"})):
            one = post("jobs", expected, **{"Idempotency-Key": "k1"})["job_id"]
            assert post("jobs", expected, **{"Idempotency-Key": "k1"})["job_id"] == one
            many = post("jobs/bulk", {"jobs": [expected] * 3})["job_ids"]
            post(f"jobs/{one}/cancel", {})
            post("jobs/simulate", expected)
        told = [line for line in lines if line["logger"] == request_id.__name__]
        assert [line.get("job_id") for line in told] == [one, one, None, one, None]
        assert [line.get("job_ids") for line in told] == [None, None, f"{many[0]}-{many[-1]}", None, None]

    def test_log_record_keeps_its_extras_and_its_exception(self, lines):
        try:
            Job.objects.get(pk=7)
        except Job.DoesNotExist:
            logging.getLogger("x").exception("what %s", "happened\nthere", extra={"job_id": 7, "node": {1, 2}})
        [line] = lines
        assert (line["message"], line["job_id"], line["level"]) == ("what happened\nthere", 7, "ERROR")
        assert "DoesNotExist" in str(line["exception"])

    def test_unknown_log_format_is_named(self):
        with pytest.raises(ValueError, match=r"GPUSCHED_LOG_FORMAT='xml'.*line or json"):
            read({"GPUSCHED_LOG_FORMAT": "xml"})
