"""Call every operation of the API on a small cluster where each has something to return."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.test import Client
from django.utils import timezone
from msgspec.structs import replace

from gpusched.lib.db.sql import execute, query, rows
from gpusched.protocol.affinity import NodeAffinity, Toleration, TolerationOperator, expression_of, preference_of
from gpusched.protocol.agent_messages import Hint, Isolation, Reading
from gpusched.protocol.arrays import ArrayRequest
from jobs.models import Attempt
from nodes.telemetry import samples
from scheduling.history import learning
from tenants.billing import budgets
from tests.api.calls import call
from tests.api.operations import BODIES, complete
from tests.factories import make_member, make_node, make_tenant, make_token, make_user, run_cycle, submit
from tests.scheduling.history import ran
from tests.tenants.test_usage import entry

API = "/api/v1"
HERE: dict[str, Any] = {"name": "nlp", "secret": "wandb"}
# METHOD path as documented, and the answer.
Answered = tuple[str, Any]


class World:
    """A tenant with a member, an admin, and a node whose GPUs were read."""

    def __init__(self) -> None:
        self.tenant, self.other = make_tenant("nlp"), make_tenant("other")
        self.user = make_member(self.tenant, name="ada")
        self.member, self.admin = make_token(self.user), make_token(make_user("root", admin=True))
        self.node = make_node(gpus=8, name="n1")
        self.read()

    def read(self) -> None:
        """Return everything that a driver can report of each GPU."""
        facts: dict[str, Any] = {
            "utilisation_percent": 90, "memory_used_mb": 5, "temperature_celsius": 60, "power_watts": 99.5,
            "power_limit_watts": 400.0, "sm_clock_mhz": 1000, "memory_clock_mhz": 900, "throttle_reasons": 0x4,
            "ecc_corrected": 1, "ecc_uncorrected": 0, "process_ids": [7],
        }  # fmt: skip
        hint = Hint(check="disk", level="warn", says="12 MiB free", next_step="delete files")
        self.node.sync(
            facts=replace(self.node.facts(), isolation=Isolation(cgroup=True), runtimes={"docker": "27"}, hints=[hint]),
            readings=[Reading(uuid=device.uuid, **facts) for device in self.node.devices],
        )

    def ask(self, name: str, query_string: str = "", /, *, token: str = "", body: Any = None, **ids: Any) -> Answered:
        """Call as an admin with the body of BODIES, unless given others."""
        method, _, path = name.partition(" ")
        template = path if path in ("/health", "/ready") else API + path
        address = template.format(**{**HERE, **ids})
        values = BODIES.get(f"{method} {template}", {}) if body is None else body
        response = call(method, address + query_string, token or self.admin, values)
        assert response.status_code < 300, (name, response.content)
        return f"{method} {template}", response


def everything() -> Iterator[Answered]:
    world = World()
    yield from money(world)
    yield from jobs(world)
    yield from nodes(world)
    yield from cluster(world)
    yield from serving(world)
    yield from notifications(world)
    yield from reservations(world)
    yield from history(world)
    yield from tenants(world)
    yield from people(world)


def serving(world: World) -> Iterator[Answered]:
    yield world.ask("POST /endpoints", "?dry_run=true", token=world.member)
    yield world.ask("POST /endpoints", token=world.member)
    embed = {"name": "embed", "tenant": "nlp", "template": {"command": ["x"]}, "allowed_users": ["ada"]}
    yield world.ask("POST /endpoints", token=world.member, body=embed)
    yield world.ask("PATCH /endpoints/{name}", name="embed")
    yield world.ask("GET /endpoints/{name}", name="embed")
    yield world.ask("GET /endpoints")
    yield world.ask("POST /tasks", "?dry_run=true", token=world.member)
    created = world.ask("POST /tasks", token=world.member, body={"endpoint": "embed", "inputs": [1, 2]})
    yield created
    first, second = (task["id"] for task in created[1].json()["items"])
    complete(first)
    yield world.ask("GET /tasks/{task_id}", task_id=first)
    yield world.ask("GET /tasks", "?endpoint=embed&tenant=nlp")
    yield world.ask("POST /tasks/{task_id}/cancel", task_id=second)
    for scope in ("user", "tenant"):
        body = {"tenant": "nlp", "scope": scope, "rate_per_second": 1, "burst": 10}
        yield world.ask("POST /buckets", "?dry_run=true", body=body)
        bucket = world.ask("POST /buckets", body=body)
        yield bucket
    yield world.ask("PATCH /buckets/{bucket_id}", bucket_id=bucket[1].json()["id"])
    yield world.ask("GET /buckets")
    yield world.ask("DELETE /buckets/{bucket_id}", bucket_id=bucket[1].json()["id"])
    yield world.ask("POST /endpoints/{name}/drain", name="embed")
    yield world.ask("DELETE /endpoints/{name}", name="embed")


def history(world: World) -> Iterator[Answered]:
    """Three earlier runs of a command, from which its run time and memory are predicted."""
    tenant = make_tenant("returning")
    user = make_member(tenant)
    runs = ran(user, tenant, [600, 660, 720])
    outcomes = {"0": {"peak_memory_mb": 5000, "peak_memory_of": "rank"}}
    Attempt.objects.filter(job_id__in=runs).update(outcomes=outcomes)
    learning.learn()
    request = {"tenant": tenant.name, "command": ["python", "train.py"]}
    yield world.ask("POST /jobs/simulate", body=request, token=make_token(user))
    job = submit(user, tenant, command=request["command"])
    for path in ("", "/explain"):
        yield world.ask(f"GET /jobs/{{job_id}}{path}", job_id=job)


def notifications(world: World) -> Iterator[Answered]:
    for path, number in (("/notifications/routes", "route_id"), ("/webhooks", "webhook_id")):
        one = f"{path}/{{{number}}}"
        yield world.ask(f"POST {path}", "?dry_run=true")
        created = world.ask(f"POST {path}")
        yield created
        ids = {number: created[1].json()["id"]}
        yield world.ask(f"GET {path}")
        yield world.ask(f"GET {one}", **ids)
        yield world.ask(f"PATCH {one}", **ids)
        yield world.ask(f"POST {one}/test", **ids)
        tested = world.ask(f"POST {one}/test", **ids)
        yield tested
        execute("UPDATE notifications_delivery SET state = 'sent', ended_at = now()")
        delivery = tested[1].json()["id"]
        yield world.ask("GET /notifications/deliveries")
        yield world.ask("GET /notifications/deliveries/{delivery_id}", delivery_id=delivery)
        yield world.ask("POST /notifications/deliveries/{delivery_id}/replay", delivery_id=delivery)
        if path == "/webhooks":
            yield world.ask(f"POST {one}/rotate-secret", **ids)
        yield world.ask(f"DELETE {one}", **ids)


def reservations(world: World) -> Iterator[Answered]:
    make_node(gpus=8, name="n9")
    yield world.ask("POST /reservations", "?dry_run=true", token=world.member)
    yield world.ask("POST /reservations", token=world.member)
    rich = {"tenant": "nlp", "gpus": 2, "for_seconds": 3600, "lease": True, "users": ["ada"], "note": "the paper",
            "gpu_model": "A100", "gpu_memory_mb": 1000, "confidence": 0.5}  # fmt: skip
    created = world.ask("POST /reservations", token=world.member, body=rich)
    yield created
    reservation_id = created[1].json()["id"]
    yield world.ask("GET /reservations/next-slot", "?gpus=4&for_seconds=600")
    yield world.ask("GET /reservations")
    yield world.ask("GET /reservations/{reservation_id}", reservation_id=reservation_id)
    for verb in ("renew", "shorten", "cancel"):
        path = f"POST /reservations/{{reservation_id}}/{verb}"
        yield world.ask(path, "?dry_run=true", reservation_id=reservation_id)
    yield world.ask("POST /reservations/{reservation_id}/renew", reservation_id=reservation_id)
    yield world.ask("POST /reservations/{reservation_id}/shorten", reservation_id=reservation_id)
    another = world.ask("POST /reservations", token=world.member)[1].json()["id"]
    yield world.ask("POST /reservations/{reservation_id}/cancel", reservation_id=another)


def money(world: World) -> Iterator[Answered]:
    yield world.ask("POST /rates", "?dry_run=true")
    yield world.ask("POST /rates")
    yield world.ask("GET /rates")
    for job in (1, 2):
        entry(world.tenant, world.user, at=timezone.now() - timedelta(hours=3 * job), hours=2, job=job)
    yield world.ask("PUT /tenants/{name}/budget", "?dry_run=true")
    yield world.ask("PUT /tenants/{name}/budget", body={"soft_gpu_hours": 1, "hard_gpu_hours": 1000})
    budgets.note_crossings()
    yield world.ask("GET /tenants/{name}/budget")
    for by in ("day", "job"):
        yield world.ask("GET /tenants/{name}/usage", f"?by={by}&from=2020-01-01")
    created = world.ask("POST /rates", body={"gpu_model": "H100", "price_per_gpu_hour": 1, "starts_at": "2100-01-01"})
    yield world.ask("DELETE /rates/{rate_id}", rate_id=created[1].json()["id"])


def jobs(world: World) -> Iterator[Answered]:
    yield world.ask("PATCH /scheduling/policy", body={"min_runtime_seconds": 0, "preemption_delay_seconds": 0})
    rich: dict[str, Any] = {"script": None, "args": ["x"], "environment": {"A": "1"}, "labels": {"l": "1"}}
    rich["max_retries"] = 1
    rich["tolerations"] = [Toleration(key="spot", operator=TolerationOperator.EXISTS)]
    rich["node_affinity"] = NodeAffinity(required=[expression_of("!slow")], preferred=[preference_of("10:zone in (a)")])
    first = submit(world.user, world.tenant, gpu_count=6, max_runtime_minutes=60, priority=300, name="a", **rich)
    run_cycle()
    keys = world.node.start_all()
    execute("UPDATE nodes_assignment SET started_at = now() - interval '30 minutes'")
    execute("UPDATE jobs_attempt SET started_at = now() - interval '30 minutes'")
    yield from one_job(world, first)
    yield from waiting(world, first)
    yield world.ask("GET /events", "?since=0")
    world.node.end(
        *keys, exit_code=1, detail="it broke", peak_memory_mb=5, peak_memory_of="rank", exit_class="cuda_oom",
        reason="exited",
    )  # fmt: skip
    for path in ("", "/attempts", "/explain", "/events"):
        yield world.ask(f"GET /jobs/{{job_id}}{path}", job_id=first)
    run_cycle()
    world.node.start_all()
    [running] = query("SELECT min(id) AS id FROM jobs_job WHERE state = 'running'")
    yield world.ask("POST /jobs/{job_id}/requeue", job_id=running["id"])
    world.node.end(*world.node.held, reason="cancelled", exit_code=None, signal=15)
    run_cycle()
    world.node.start_all()
    yield world.ask("GET /jobs/{job_id}/attempts", job_id=running["id"])
    yield from array(world)


def array(world: World) -> Iterator[Answered]:
    job = submit(world.user, world.tenant, gpu_count=0, array=ArrayRequest(count=2, max_parallel=1), name="sweep")
    run_cycle()
    world.node.end(*world.node.start_all(), exit_code=1)
    yield world.ask("GET /jobs/{job_id}", job_id=job)
    yield world.ask("GET /jobs/{job_id}/elements", job_id=job)
    yield world.ask("POST /jobs/{job_id}/retry", job_id=job)


def one_job(world: World, running: int) -> Iterator[Answered]:
    for path in ("", "/attempts", "/explain", "/events"):
        yield world.ask(f"GET /jobs/{{job_id}}{path}", job_id=running, token=world.member)
    yield world.ask("GET /jobs", "?limit=1")
    yield world.ask("POST /jobs", token=world.member)
    yield world.ask("POST /jobs", "?dry_run=true", token=world.member)
    yield world.ask("POST /jobs/bulk", token=world.member)
    yield world.ask("POST /jobs/bulk", "?dry_run=true", token=world.member)
    for verb in ("hold", "release", "cancel"):
        job = submit(world.user, world.tenant)
        if verb == "release":
            world.ask("POST /jobs/{job_id}/hold", job_id=job)
        yield world.ask(f"POST /jobs/{{job_id}}/{verb}", job_id=job)
    yield world.ask("DELETE /jobs/{job_id}", job_id=job)


def waiting(world: World, running: int) -> Iterator[Answered]:
    previous = submit(world.user, world.tenant, gpu_count=3, priority=200, name="b", max_runtime_minutes=5)
    far = submit(world.user, world.tenant, gpu_count=8, node_selector={"zone": "b"}, depends_on=[running], name="c")
    allocated = submit(world.user, world.tenant, gpu_count=8, gpu_memory_mb="auto", name="d")
    world.ask("POST /jobs/{job_id}/hold", job_id=allocated)
    run_cycle()
    for job in (previous, far, allocated):
        yield world.ask("GET /jobs/{job_id}/explain", job_id=job)
    yield world.ask("POST /jobs/{job_id}/extend", job_id=running, body={"max_runtime_minutes": 90, "force": True})
    yield world.ask("POST /jobs/{job_id}/signal", job_id=running, body={"signal": "USR1"})
    yield world.ask("GET /jobs", token=world.member)
    yield world.ask("GET /jobs/count", token=world.member)
    yield world.ask("GET /queue", token=world.member)
    yield world.ask("GET /queue/usage")
    requested = {"tenant": "nlp", "command": ["x"]}
    for more in ({"gpu_count": 1}, {"gpu_count": 7}, {"gpu_count": 7, "priority": 2000}):
        yield world.ask("POST /jobs/simulate", body={**requested, **more}, token=world.member)
    world.ask("PUT /tenants/{name}/quota", body={"max_gpus": 7})
    over = submit(world.user, world.tenant, gpu_count=1, name="e")
    run_cycle()
    yield world.ask("GET /jobs/{job_id}/explain", job_id=over)
    for limits in ({"max_gpus": 2}, {"max_gpus": 2, "max_gpus_per_user": 1, "max_gpus_by_model": {"A100": 1}}):
        yield world.ask("PUT /tenants/{name}/quota", "?dry_run=true", body=limits)


def nodes(world: World) -> Iterator[Answered]:
    world.read()
    [device] = query("SELECT min(id) AS id FROM nodes_device")
    yield world.ask("GET /nodes")
    yield world.ask("GET /nodes/{name}", name="n1")
    yield world.ask("GET /gpus")
    yield from readings(world, device["id"])
    for verb in ("quarantine", "clear"):
        yield world.ask(f"POST /gpus/{{device_id}}/{verb}", device_id=device["id"])
    for verb in ("cordon", "drain", "uncordon"):
        yield world.ask(f"POST /nodes/{{name}}/{verb}", name="n1", body={"note": "disk"})
    yield world.ask("POST /nodes/{name}/rotate-credential", name="n1")
    yield world.ask("PATCH /nodes/{name}/labels", name="n1", body={"labels": {"zone": "a"}})
    yield world.ask("PATCH /nodes/{name}/taints", name="n1", body={"add": [{"key": "spot"}]})
    for subject in ("", "/labels", "/taints"):
        yield world.ask(f"GET /nodes/{{name}}{subject}", name="n1")
    yield world.ask("PATCH /nodes/{name}/taints", name="n1", body={"remove": ["spot"]})
    removed = make_node(gpus=1, name="n2")
    execute("UPDATE nodes_device SET health = 'lost' WHERE node_id = %s", [removed.id])
    [lost] = query("SELECT id FROM nodes_device WHERE node_id = %s", [removed.id])
    yield world.ask("POST /gpus/{device_id}/retire", device_id=lost["id"])
    yield world.ask("POST /nodes/{name}/drain", name="n2")
    yield world.ask("DELETE /nodes/{name}", name="n2")
    yield world.ask("POST /nodes/join-tokens")
    yield world.ask("GET /incidents")
    yield world.ask("POST /idle-exemptions", "?dry_run=true")
    created = world.ask("POST /idle-exemptions")
    yield created
    yield world.ask("GET /idle-exemptions")
    yield world.ask("DELETE /idle-exemptions/{exemption_id}", exemption_id=created[1].json()["id"])


def readings(world: World, device: int) -> Iterator[Answered]:
    start = datetime.fromisoformat("2030-01-31T12:00:00+00:00")
    execute("UPDATE nodes_device SET known_since = %s", [start])
    execute("UPDATE nodes_reading SET read_at = %s", [start + timedelta(seconds=15)])
    for seconds in (0, 15):
        samples.take_samples(1, start + timedelta(seconds=seconds))
    samples.roll_up(start + timedelta(minutes=10))
    for resolution in ("raw", "5m"):
        yield world.ask("GET /gpus/{device_id}/samples", f"?since=2030-01-01&resolution={resolution}", device_id=device)


def replays(world: World, waiting: int) -> Iterator[Answered]:
    path = "GET /scheduling/cycles/{cycle_id}/replay"
    [(latest,)] = rows("SELECT max(cycle_id) FROM scheduling_recordedcycle")
    yield world.ask(path, f"?job_id={waiting}&node=n1", cycle_id=latest)
    yield world.ask(path, "?policy=shortest", cycle_id=latest)
    # On a slow machine, the retry of the first job becomes due meanwhile, and is promised the GPUs.
    execute("UPDATE jobs_job SET eligible_at = '2099-01-01' WHERE eligible_at IS NOT NULL")
    tenant = make_tenant("crowd")
    user = make_member(tenant)
    for priority in (*[100] * 8, 2500):
        submit(user, tenant, gpu_count=1, priority=priority)
        run_cycle()
        world.node.start_all()
        execute("UPDATE nodes_assignment SET started_at = now() - interval '30 minutes' WHERE state = 'running'")
        execute("UPDATE jobs_attempt SET started_at = now() - interval '30 minutes' WHERE ended_at IS NULL")
        execute("UPDATE jobs_job SET started_at = now() - interval '30 minutes' WHERE state = 'running'")
    [(preempting,)] = rows("SELECT max(id) FROM scheduling_cycle WHERE preempted > 0")
    if preempting is not None:  # in one transaction, for which time stands still, nothing is old enough to be stopped
        yield world.ask(path, cycle_id=preempting)


def cluster(world: World) -> Iterator[Answered]:
    waiting = submit(world.user, world.tenant, gpu_count=1, not_before="2099-01-01T00:00:00Z", name="later")
    run_cycle()
    execute("UPDATE scheduling_cycle SET reserved_job_id = 1, reserved_at = now()")
    for path in (
        "/queue",
        "/scheduling/shares",
        "/scheduling/cycles",
        "/scheduling/policy",
        "/cluster/status",
        "/health",
    ):
        yield world.ask(f"GET {path}")
    yield from replays(world, waiting)
    yield world.ask("GET /ready")
    yield "GET /health", Client().get("/health")
    yield "GET /api/v1/health", Client().get("/api/v1/health")
    yield "GET /api/v1/ready", Client().get("/api/v1/ready")
    yield world.ask("PATCH /scheduling/policy", "?dry_run=true", body={"online_percent": 20})
    yield world.ask("PATCH /scheduling/policy", body={"online_percent": 0, "min_runtime_seconds": 1})
    yield world.ask("GET /scheduling/policy/history")


def tenants(world: World) -> Iterator[Answered]:
    yield world.ask("POST /tenants", "?dry_run=true")
    yield world.ask("POST /tenants")
    yield world.ask("GET /tenants")
    yield world.ask("GET /tenants/{name}")
    yield world.ask("PATCH /tenants/{name}")
    yield world.ask("PUT /tenants/{name}/quota")
    yield world.ask("GET /tenants/{name}/quota")
    for _ in range(2):
        yield world.ask("PUT /tenants/{name}/secrets/{secret}")
    yield world.ask("GET /tenants/{name}/secrets")
    yield world.ask("DELETE /tenants/{name}/secrets/{secret}")
    yield from credentials(world, "/tenants/{name}/service-tokens")
    yield from credentials(world, "/tokens")
    yield world.ask("GET /me", token=world.member)
    yield world.ask("POST /login")
    yield world.ask("GET /audit")


def people(world: World) -> Iterator[Answered]:
    kim = {"username": "kim"}
    yield world.ask("POST /users", "?dry_run=true")
    yield world.ask("POST /users", body=kim)
    yield world.ask("GET /users")
    yield world.ask("GET /users/{username}", username="ada")
    yield world.ask("PATCH /users/{username}", **kim)
    yield world.ask("POST /users/{username}/reset-password", **kim)
    for _ in range(2):
        yield world.ask("PUT /me/password", token=world.member)
    yield world.ask("POST /tenants/{name}/members", "?dry_run=true")
    yield world.ask("POST /tenants/{name}/members")
    yield world.ask("GET /tenants/{name}/members")
    yield world.ask("PATCH /tenants/{name}/members/{username}", body={"role": "owner"}, **kim)
    yield world.ask("POST /users/{username}/disable", **kim)
    yield world.ask("POST /users/{username}/enable", **kim)
    world.ask("PATCH /tenants/{name}/members/{username}", body={"role": "owner"}, username="ada")
    yield world.ask("DELETE /tenants/{name}/members/{username}", **kim)
    yield world.ask("POST /tenants/{name}/archive", name="other")
    yield world.ask("GET /tenants", "?archived=true")
    yield world.ask("POST /tenants/{name}/unarchive", name="other")
    yield world.ask("POST /tenants/{name}/rename", name="other")


def credentials(world: World, path: str) -> Iterator[Answered]:
    created = world.ask(f"POST {path}")
    yield created
    yield world.ask(f"GET {path}")
    yield world.ask(f"DELETE {path}/{{token_id}}", token_id=created[1].json()["id"])
