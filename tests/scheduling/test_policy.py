"""The scheduling policy: the environment's first, then the admins', kept with who set it, in force from the next
cycle."""

from dataclasses import fields, replace

import msgspec
import pytest
from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.test import Client

from gpusched import env
from gpusched.env import SettingError
from gpusched.lib.bus import wake
from jobs.models import Job
from nodes.models import Assignment
from scheduling import policy
from scheduling.engine.model import Policy
from scheduling.models import SchedulingPolicy
from tenants.models import UsageBalance
from tests.factories import make_node, make_tenant, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def admin():
    return make_token(make_user("root", admin=True))


def patch(token, body, query="", **headers):
    return Client().patch(
        f"/api/v1/scheduling/policy{query}",
        msgspec.json.encode(body),
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}", **headers},
    )


def read(token, path=""):
    return Client().get(f"/api/v1/scheduling/policy{path}", headers={"Authorization": f"Bearer {token}"})


def test_environment_gives_the_first_values(admin, monkeypatch):
    monkeypatch.setattr(settings, "ENV", replace(settings.ENV, online_percent=30, min_runtime_seconds=5.0))
    assert policy.policy() == Policy(online_percent=30, min_runtime_seconds=5.0)
    assert (read(admin).json()["online_percent"], read(admin).json()["version"]) == (30, 0)


@pytest.mark.parametrize(
    "setting", ["ONLINE_PERCENT=101", "USAGE_HALF_LIFE_DAYS=0", "LOAD_THRESHOLD=nan", "THERMAL_THRESHOLD_CELSIUS=-1"]
)
def test_first_value_that_no_admin_could_set_is_rejected_at_the_start(setting):
    name, _, value = setting.partition("=")
    with pytest.raises(SettingError, match=f"GPUSCHED_{name}.*is not from"):
        env.read({f"GPUSCHED_{name}": value})


def _range(validators):
    """The field's own come before those of its type."""
    limits = [v for v in validators if isinstance(v, MinValueValidator | MaxValueValidator)]
    return tuple(limit.limit_value for limit in limits[:2])


def test_ranges_of_the_settings_are_those_of_the_policy():
    row = {field.name: field.validators for field in SchedulingPolicy._meta.fields}
    answer = {f.name: f.metadata["between"] for f in fields(env.Env) if f.metadata["between"] and f.name in row}
    assert len(answer) >= 10
    of_the_row = {name: _range(row[name]) for name in answer}
    assert answer == of_the_row


def test_defaults_of_the_settings_are_those_of_the_engine():
    assert policy.policy() == Policy()


def test_database_has_all_values_from_the_first_edit_on(admin, monkeypatch):
    assert patch(admin, {"preemption_delay_seconds": 5}).json()["version"] == 1
    monkeypatch.setattr(settings, "ENV", replace(settings.ENV, online_percent=30))
    assert policy.policy() == Policy(preemption_delay_seconds=5.0)


def test_edit_wakes_a_cycle_and_applies_in_it(admin, user, tenant, monkeypatch):
    """Without a restart: a gang may span nodes from the edit on."""
    make_node(gpus=1)
    make_node(gpus=1)
    gang = submit(user, tenant, gpu_count=2, gang_scheduling=True)
    patch(admin, {"enable_gang_scheduling": False})
    run_cycle()
    assert Job.objects.get(pk=gang).state == "pending"
    woken = []
    monkeypatch.setattr(wake, "request_cycle", lambda: woken.append(1))
    patch(admin, {"enable_gang_scheduling": True})
    run_cycle()
    assert (Job.objects.get(pk=gang).state, woken) == ("scheduled", [1])


def test_history_has_actors_and_changes(admin):
    patch(admin, {"policy": "priority"})
    patch(admin, {"policy": "fair", "online_percent": 20})
    items = read(admin, "/history").json()["items"]
    assert [(edit["by"], edit["version"]) for edit in items] == [("root", 2), ("root", 1)]
    assert items[0]["changes"] == {
        "policy": {"from": "priority", "to": "fair"},
        "online_percent": {"from": 0, "to": 20},
    }
    assert len(read(admin, "/history?limit=1").json()["items"]) == 1


def test_dry_run_shows_the_values_and_changes_nothing(admin):
    answer = patch(admin, {"online_percent": 20}, "?dry_run=true").json()
    assert (answer["online_percent"], answer["status"], answer["version"]) == (20, "would_be_changed", 0)
    assert read(admin).json()["online_percent"] == 0
    assert read(admin, "/history").json()["items"] == []


def test_edit_without_a_change_is_not_stored(admin):
    etag = patch(admin, {"online_percent": 20})["ETag"]
    assert patch(admin, {"online_percent": 20})["ETag"] == etag
    assert len(read(admin, "/history").json()["items"]) == 1


def test_concurrent_edit_is_not_overwritten(admin):
    etag = read(admin)["ETag"]
    patch(admin, {"online_percent": 20})
    assert patch(admin, {"online_percent": 30}, **{"If-Match": etag}).status_code == 412
    # A digit to Unicode, and no number.
    assert patch(admin, {"online_percent": 30}, **{"If-Match": "\xb2"}).status_code == 400
    assert patch(admin, {"online_percent": 30, "version": 0}).status_code == 412
    assert patch(admin, {"online_percent": 30, "version": 1}).status_code == 200
    assert patch(admin, {"online_percent": 40}, **{"If-Match": "*"}).status_code == 200
    # As a proxy that compresses the answer passes the ETag on.
    assert patch(admin, {"online_percent": 50}, **{"If-Match": f"W/{read(admin)['ETag']}"}).status_code == 200
    assert patch(admin, {"online_percent": 60}, **{"If-Match": f"W/{etag}"}).status_code == 412


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"online_percent": 101}, "online_percent", "100"),
        ({"online_percent": "30"}, "online_percent", "int"),
        ({"usage_half_life_days": 0}, "usage_half_life_days", "0.01"),
        ({"policy": "fifo"}, "policy", "fifo"),
        ({"load_treshold": 1}, "load_treshold", "no field"),
        ({"cost_by_model": {"A100": -1}, "policy": "cost_aware"}, "cost_by_model", "above 0"),
    ],
)
def test_bad_value_is_rejected_by_name(admin, body, field, message):
    """A55."""
    answer = patch(admin, body)
    assert answer.status_code == 400
    [error] = answer.json()["errors"]
    assert error["field"] == field and message in error["message"]
    assert read(admin).json()["version"] == 0


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"enable_preemption": False, "min_runtime_seconds": 5}, "min_runtime_seconds", "enable_preemption is false"),
        ({"cost_by_model": {"A100": 2}}, "cost_by_model", "the policy is fair, not cost_aware"),
        ({"usage_window_minutes": 9}, "usage_window_minutes", "the policy is fair, not cost_aware"),
        ({"policy": "cost_aware", "cost_by_model": {"A100": 1}}, "cost_by_model", "also cost 1"),
        (
            {"enable_preemption": False, "preemption_delay_seconds": 5},
            "preemption_delay_seconds",
            "preemption is false",
        ),
        ({"enable_thermal_aware": False, "thermal_moves": "move"}, "thermal_moves", "thermal_aware is false"),
        ({"enable_preemption": False, "thermal_moves": "move"}, "thermal_moves", "enable_preemption or"),
        ({"thermal_moves": "off", "thermal_move_minutes": 9}, "thermal_move_minutes", "thermal_moves is off"),
        *(
            ({"held_idle_policy": "off", name: 7}, name, "held_idle_policy is off")
            for name in ("held_idle_percent", "held_idle_minutes", "held_idle_interactive_minutes")
        ),
        ({"held_idle_policy": "off", "held_idle_grace_minutes": 7}, "held_idle_grace_minutes", "policy is off"),
    ],
)
def test_setting_without_effect_is_rejected(admin, body, field, message):
    """A07: and the sentence says why."""
    answer = patch(admin, body)
    assert answer.status_code == 400
    [error] = answer.json()["errors"]
    assert error["field"] == field and "would do nothing" in error["message"] and message in error["message"]


def test_use_before_an_edit_of_the_half_life_decayed_at_the_old_rate(admin):
    """A day ago 100 GPU-seconds at a half-life of a day are 50 now, whatever the half-life is from now on."""
    from datetime import timedelta

    from django.utils import timezone

    patch(admin, {"usage_half_life_days": 1})
    tenant = make_tenant("used")
    UsageBalance.objects.filter(tenant=tenant).update(gpu_seconds=100, as_of=timezone.now() - timedelta(days=1))
    patch(admin, {"usage_half_life_days": 1000})
    assert UsageBalance.objects.get(tenant=tenant).gpu_seconds == pytest.approx(50, abs=0.1)


@pytest.mark.parametrize("days", [-30, 30, 3650])
def test_cycles_start_jobs_however_many_half_lives_ago_a_tenant_used_gpus(admin, days):
    """PostgreSQL refuses numbers as small as 2^-1080, and as large as 2^1080 if the clock was set back."""
    from datetime import timedelta

    from django.utils import timezone

    patch(admin, {"usage_half_life_days": 0.01})
    user, agent = make_user("ada", admin=True), make_node()
    tenant, idle = make_tenant("active"), make_tenant("idle")
    as_of = timezone.now() - timedelta(days=days)
    UsageBalance.objects.update(gpu_seconds=100, as_of=as_of)
    submit(user, tenant)
    run_cycle()
    assert Job.objects.get().state == "scheduled"
    [key] = agent.start_all()
    Assignment.objects.update(started_at=timezone.now() - timedelta(days=40))
    submit(user, tenant)
    run_cycle()
    agent.end(key)
    assert Job.objects.order_by("pk")[0].state == "completed"
    patch(admin, {"usage_half_life_days": 7})
    left = UsageBalance.objects.get(tenant=idle).gpu_seconds
    assert left == (pytest.approx(100) if days < 0 else 0)
