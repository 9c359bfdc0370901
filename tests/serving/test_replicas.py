"""Replicas are jobs: started for waiting requests, stopped when idle, replaced when they fail."""

import pytest
from django.utils import timezone

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import execute, query
from gpusched.protocol.states import Role
from jobs.models import Attempt, Job
from scheduling.cycle import snapshot
from scheduling.engine.model import Policy
from serving import upkeep
from serving.endpoints import endpoints
from serving.models import Dispatcher, Endpoint, Replica
from serving.replicas.losses import ended_itself
from serving.replicas.reconcile import reconcile
from serving.replicas.spare import SPARE_JOBS
from tenants.models import Membership
from tenants.tenancy import tenants
from tests.factories import identity_for, make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.serving.requests import ask, claim

pytestmark = pytest.mark.django_db


@pytest.fixture
def node():
    return make_node(gpus=4)


def make(tenant, user, **fields):
    template = {"command": ["serve"], "gpu_count": 1, **fields.pop("template", {})}
    return endpoints.create(tenant.pk, {"name": "embed", "template": template, **fields}, identity_for(user))


def live():
    return list(Replica.objects.filter(ended_at=None, is_draining=False).values_list("job_id", flat=True))


def make_warm(job_id, idle_seconds=0):
    execute(
        "UPDATE serving_replica SET warm_at = clock_timestamp() - make_interval(secs => %s), busy_at = NULL,"
        " dispatcher = 1 WHERE job_id = %s",
        [idle_seconds, job_id],
    )
    placed = "UPDATE jobs_attempt SET scheduled_at = scheduled_at - make_interval(secs => %s) WHERE job_id = %s"
    execute(placed, [idle_seconds, job_id])


def test_waiting_request_starts_a_replica_as_a_job_of_the_owner(tenant, user, node):
    endpoint = make(tenant, user)
    reconcile()
    assert live() == []
    ask(endpoint, user)
    reconcile()
    reconcile()
    [job_id] = live()
    job = Job.objects.get(pk=job_id)
    assert (job.tenant_id, job.user_id, job.gpu_count, job.name) == (tenant.pk, user.pk, 1, "endpoint embed")


def test_error_of_one_endpoint_stops_no_replica_of_another(tenant, user, node, caplog):
    for name in ("first", "second"):
        make(tenant, user, name=name, min_replicas=1)
    execute("UPDATE serving_endpoint SET seconds_per_cost = 'NaN' WHERE name = 'first'")
    ask(Endpoint.objects.get(name="first"), user)
    reconcile()
    assert [replica.endpoint.name for replica in Replica.objects.filter(job_id__in=live())] == ["second"]
    assert "stay as they are" in caplog.text


def test_idle_replica_is_stopped(tenant, user, node):
    endpoint = make(tenant, user, idle_seconds=60, min_replicas=0)
    [number] = ask(endpoint, user)
    reconcile()
    [job_id] = live()
    run_cycle()
    node.start_all()
    make_warm(job_id, 100)
    claim([number], replica=job_id)
    reconcile()
    assert live() == [job_id]
    execute("UPDATE serving_inferencerequest SET state = 'completed', ended_at = now()")
    reconcile()
    assert live() == []
    assert Job.objects.get(pk=job_id).state == "stopping"


def test_idle_replica_yields_to_a_waiting_job(tenant, user, node):
    job_id = run_idle_replica(tenant, user, node)
    reconcile()
    assert live() == [job_id]
    waiting = submit(user, tenant, gpu_count=4)
    execute("UPDATE jobs_job SET submitted_at = now() - interval '5 s' WHERE id = %s", [waiting])
    run_cycle()
    reconcile()
    assert live() == []


def test_idle_replica_yields_to_a_job_that_runs_apart_from_it(tenant, user, node, monkeypatch):
    monkeypatch.setattr(snapshot, "policy", lambda: Policy(preemption=False))
    run_idle_replica(tenant, user, node, template={"anti_affinity": "web"})
    waiting = submit(user, tenant, gpu_count=1, anti_affinity="web")
    execute("UPDATE jobs_job SET submitted_at = now() - interval '5 s' WHERE id = %s", [waiting])
    run_cycle()
    assert Job.objects.get(pk=waiting).reason == "constraint"
    reconcile()
    assert live() == []


def test_idle_replica_does_not_yield_to_a_job_that_it_cannot_help(user, tenant, node):
    """It waits for its own tenant's limit."""
    job_id = run_idle_replica(tenant, user, node)
    other = make_tenant("other", quota={"max_gpus": 1})
    member = make_member(other)
    submit(member, other, gpu_count=1)
    run_cycle()
    waiting = submit(member, other, gpu_count=1)
    execute("UPDATE jobs_job SET submitted_at = now() - interval '5 s' WHERE id = %s", [waiting])
    run_cycle()
    assert Job.objects.get(pk=waiting).reason == "quota_wait"
    reconcile()
    assert live() == [job_id]


@pytest.mark.parametrize(
    ("fields", "max_gpus", "reason"),
    [({"gpu_model": "B200"}, None, "constraint"), ({"gpu_count": 2}, 1, "tenant_limit")],
)
def test_idle_replica_does_not_yield_to_a_job_that_cannot_start_at_all(user, tenant, node, fields, max_gpus, reason):
    """No node has its model, or it alone exceeds a limit that was lowered since."""
    job_id = run_idle_replica(tenant, user, node)
    waiting = submit(user, tenant, **{"gpu_count": 1, **fields})
    execute("UPDATE tenants_quota SET max_gpus = %s WHERE tenant_id = %s", [max_gpus, tenant.pk])
    execute("UPDATE jobs_job SET submitted_at = now() - interval '5 s' WHERE id = %s", [waiting])
    run_cycle()
    assert Job.objects.get(pk=waiting).reason == reason
    reconcile()
    assert live() == [job_id]


def run_idle_replica(tenant, user, node, **fields):
    """Return the job of a warm replica that has been idle for 30 seconds."""
    make(tenant, user, min_replicas=1, **fields)
    reconcile()
    execute("UPDATE serving_endpoint SET min_replicas = 0")
    [job_id] = live()
    run_cycle()
    node.start_all()
    make_warm(job_id, 30)
    return job_id


@pytest.mark.parametrize("is_idle", [True, False])
def test_idle_replica_is_preempted_before_any_other_job(tenant, user, node, is_idle, monkeypatch):
    monkeypatch.setattr(snapshot, "policy", lambda: Policy(min_runtime_seconds=0, preemption_delay_seconds=0))
    replica = run_idle_replica(tenant, user, node, template={"gpu_count": 2})
    low = submit(user, tenant, gpu_count=2, priority=100)
    run_cycle()
    node.start_all()
    execute("UPDATE jobs_job SET started_at = started_at - interval '1 minute'")
    if not is_idle:
        make_warm(replica, 1)
    waiting = submit(user, tenant, gpu_count=2)
    execute("UPDATE jobs_job SET submitted_at = submitted_at - interval '1 minute' WHERE id = %s", [waiting])
    run_cycle()
    stopped = set(Job.objects.exclude(state__in=["running", "pending"]).values_list("pk", flat=True))
    assert stopped == {replica if is_idle else low}


def test_replica_of_min_replicas_is_not_spare(tenant, user, node):
    run_idle_replica(tenant, user, node)
    assert len(query(SPARE_JOBS)) == 1
    execute("UPDATE serving_endpoint SET min_replicas = 1")
    assert query(SPARE_JOBS) == []


def test_replica_that_waits_to_run_again_is_not_warm(tenant, user, node):
    job_id = run_idle_replica(tenant, user, node)
    execute("UPDATE jobs_job SET state = 'pending' WHERE id = %s", [job_id])
    reconcile()
    upkeep.save(1, [(job_id, 30.0, None)], [])  # of a web process that does not know yet
    assert Replica.objects.get().warm_at is None


def test_replica_goes_with_its_agent_to_another_web_process_though_both_live(tenant, user, node):
    job_id = run_idle_replica(tenant, user, node)
    execute("UPDATE serving_replica SET dispatcher = NULL")
    first, second = (Dispatcher.objects.create().pk for _ in range(2))

    def adopted(dispatcher, *nodes):
        return [replica for replica, _, _ in upkeep.adopt(dispatcher, nodes, []).replicas]

    assert adopted(first, node.id) == [job_id]
    assert (adopted(second), adopted(second, node.id)) == ([], [])
    assert adopted(first) == []
    assert (adopted(first), Replica.objects.get().dispatcher) == ([], None)
    assert adopted(second, node.id) == [job_id]


def test_replica_that_was_never_busy_becomes_idle(tenant, user, node):
    job_id = run_idle_replica(tenant, user, node, idle_seconds=20)
    upkeep.save(1, [(job_id, 1.0, None)], [])
    assert Replica.objects.get().busy_at is None
    reconcile()
    assert live() == []


def test_replica_that_another_dispatcher_takes_over_does_not_become_idle(tenant, user, node):
    job_id = run_idle_replica(tenant, user, node, idle_seconds=20)
    upkeep.save(1, [(job_id, 30.0, 1.0)], [])
    upkeep.save(1, [(job_id, 1.0, None)], [])
    reconcile()
    assert live() == [job_id]


def test_failed_replica_is_replaced_after_a_pause(tenant, user, node):
    endpoint = make(tenant, user)
    ask(endpoint, user)
    reconcile()
    [first] = live()
    execute("UPDATE jobs_job SET state = 'failed', ended_at = now() WHERE id = %s", [first])
    reconcile()
    assert live() == []
    execute("UPDATE serving_replica SET ended_at = ended_at - interval '3 s'")
    reconcile()
    assert len(live()) == 1
    assert live() != [first]


def test_replica_that_fails_at_its_start_is_the_problem_of_its_endpoint(tenant, user, node):
    endpoint = make(tenant, user, min_replicas=1)
    reconcile()
    [first] = live()
    run_cycle()
    node.start_all()
    node.end(f"{first}.1.0", exit_code=2)
    reconcile()
    endpoint.refresh_from_db()
    assert endpoint.problem == (
        f"job {first}, its latest replica, ended before it accepted requests: exited with code 2"
    )
    execute("UPDATE serving_replica SET ended_at = ended_at - interval '3 s'")
    reconcile()
    [second] = live()
    run_cycle()
    node.start_all()
    make_warm(second, idle_seconds=-600)  # after the end of the first, by the clock of this transaction
    reconcile()
    endpoint.refresh_from_db()
    assert endpoint.problem == ""


@pytest.mark.parametrize(("template", "is_shared"), [({}, True), ({"image": "vllm"}, False)])
def test_replica_that_finds_its_port_taken_on_its_node_names_the_port(tenant, user, node, template, is_shared):
    endpoint = make(tenant, user, min_replicas=2, max_replicas=2, protocol="openai", port=8000)
    reconcile()
    first, second = live()
    run_cycle()
    node.start_all()
    execute("UPDATE nodes_assignment SET started_at = started_at - interval '1 s' WHERE job_id = %s", [first])
    Endpoint.objects.update(template=template)
    node.end(f"{second}.1.0", exit_code=1)
    reconcile()
    endpoint.refresh_from_db()
    problem = f"job {second}, its latest replica, ended before it accepted requests: exited with code 1"
    taken = f"; another replica on node {node.name} had port 8000 already"
    assert endpoint.problem == problem + taken * is_shared


@pytest.mark.parametrize(("exit_class", "expected"), [("host_oom", True), ("cuda_oom", True), (None, False)])
def test_end_of_a_replica_is_explained_to_its_dispatcher(tenant, user, node, exit_class, expected):
    ask(make(tenant, user), user)
    reconcile()
    [job_id] = live()
    assert upkeep.adopt(1, [node.id], [job_id]).losses == []
    run_cycle()
    node.start_all()
    node.end(f"{job_id}.1.0", exit_code=None, signal=9, exit_class=exit_class)
    assert upkeep.adopt(1, [node.id], [job_id]).losses == [(job_id, expected)]


def test_refused_replica_is_the_problem_of_its_endpoint(tenant, user, node):
    endpoint = make(tenant, user, min_replicas=1)
    Membership.objects.filter(user=user).delete()
    reconcile()
    endpoint.refresh_from_db()
    assert endpoint.problem == f"its owner, {user.username}, no longer has the role member in tenant nlp"
    tenants.set_member(tenant, user, Role.MEMBER)
    reconcile()
    endpoint.refresh_from_db()
    assert (endpoint.problem, len(live())) == ("", 1)


def test_removed_endpoint_stops_its_replicas_and_frees_its_name(tenant, user, node):
    endpoint = make(tenant, user, min_replicas=1)
    reconcile()
    endpoints.remove(endpoint.pk, identity_for(user))
    reconcile()
    assert live() == []
    assert make(tenant, user).pk != endpoint.pk


def test_endpoint_with_a_queue_is_removed_only_on_request(tenant, user, node):
    endpoint = make(tenant, user)
    ask(endpoint, user)
    with pytest.raises(Problem) as caught:
        endpoints.remove(endpoint.pk, identity_for(user))
    assert caught.value.code == "not_empty"
    endpoints.remove(endpoint.pk, identity_for(user), with_queue=True)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": "Big Name"}, "name"),
        ({"max_batch": 0}, "max_batch"),
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas"),
        ({"protocol": "openai"}, "port"),
        ({"port": 8000}, "port"),
        ({"template": {"array": {"count": 3}}}, "template.array"),
        ({"template": {"gpu_count": -1}}, "template.gpu_count"),
        ({"template": {"unknown": 1}}, "template"),
        ({"template": {"gpu_memory_mb": 1000}, "memory_per_request_mb": 2000}, "memory_per_request_mb"),
    ],
)
def test_wrong_field_is_named(tenant, user, node, fields, named):
    with pytest.raises(Problem) as caught:
        make(tenant, user, **fields)
    assert named in [error.field for error in caught.value.errors]


def test_name_is_used_once_in_a_tenant(tenant, user, node):
    make(tenant, user)
    with pytest.raises(Problem) as caught:
        make(tenant, user)
    assert caught.value.code == "name_taken"
    assert Endpoint.objects.count() == 1


def test_endpoint_that_no_node_can_run_is_refused(tenant, user, node):
    with pytest.raises(Problem) as caught:
        make(tenant, user, template={"gpu_count": 100})
    assert caught.value.status == 422


def test_stranger_neither_sees_nor_uses_an_endpoint(tenant, user, node):
    make(tenant, user)
    stranger = identity_for(make_member(make_tenant("other")))
    with pytest.raises(Problem) as caught:
        endpoints.find("embed", None, stranger)
    assert caught.value.status == 404


def test_only_allowed_users_may_use_an_endpoint(tenant, user, node):
    allowed, other = make_member(tenant), make_member(tenant)
    endpoint = make(tenant, user, allowed_users=[allowed.pk])
    endpoints.require_use(endpoint, identity_for(allowed))
    endpoints.require_use(endpoint, identity_for(user))
    with pytest.raises(Problem) as caught:
        endpoints.require_use(endpoint, identity_for(other))
    assert caught.value.status == 403


def test_replicas_stop_when_their_owner_has_left_the_tenant(tenant, user, node):
    """The rights of the owner must not keep replicas of an endpoint alive, nor end the round of all others."""
    endpoint = make(tenant, user, min_replicas=1)
    reconcile()
    [job_id] = live()
    Membership.objects.filter(user=user).delete()
    endpoints.drain(endpoint.pk, identity_for(make_user("root", admin=True)))
    reconcile()
    assert (live(), Job.objects.get(pk=job_id).state) == ([], "cancelled")


def test_disabled_owner_gets_no_more_replicas(tenant, user, node):
    endpoint = make(tenant, user, min_replicas=1)
    user.is_active = False
    user.save()
    reconcile()
    endpoint.refresh_from_db()
    assert (live(), endpoint.problem) == ([], f"the account of its owner, {user.username}, is disabled")


@pytest.mark.parametrize(
    ("reason", "is_own"),
    [("", True), ("exited", True), ("signalled", True), ("preempted", False), ("node_lost", False)],
)
def test_loss_of_a_replica_is_its_own_unless_its_job_was_stopped(user, tenant, reason, is_own):
    """Its agent may not have reported the end yet: then the attempt has no reason."""
    job_id, now = submit(user, tenant), timezone.now()
    Attempt.objects.create(job_id=job_id, number=1, scheduled_at=now, ended_at=now if reason else None, reason=reason)
    assert ended_itself(job_id) is is_own


def test_loss_of_a_replica_whose_job_is_stopping_is_not_its_own(user, tenant):
    job_id = submit(user, tenant)
    Attempt.objects.create(job_id=job_id, number=1, scheduled_at=timezone.now())
    Job.objects.filter(pk=job_id).update(state="stopping", stop_reason="preempted", attempt=1)
    assert not ended_itself(job_id)
