"""Answers of a fake server to every command."""

from gpusched.protocol.rest.scheduling import PolicyFields
from tests.client.fakeserver import Answer, FakeServer, acted, job, log
from tests.client.test_sdk import EXPLANATION

NODE = {"name": "n1", "state": "online", "intent": "open", "cpu_cores": 64, "memory_mb": 1000, "cpu_cores_free": 60,
        "memory_mb_free": 900, "devices": [{"id": 1, "index": 0, "model": "H100", "health": "ok", "held": "free"},
        {"id": 2, "index": 1, "model": "H100", "health": "hot", "held": "exclusive", "jobs": [42]}]}  # fmt: skip
HAPPENED = {"at": "2030-01-01T10:00:00Z", "kind": "submitted", "attempt": 0, "actor": "ada", "data": {}}
QUEUED = {
    "job_id": 42,
    "position": 1,
    "gpus_ahead": 0,
    "name": "train",
    "tenant": "nlp",
    "user": "ada",
    "gpu_count": 4,
    "priority": 500,
    "submitted_at": "2030-01-01T10:00:00Z",
    "reason": {"code": "capacity", "sentence": "full"},
}
SHARE = {"tenant": "nlp", "tenant_id": 1, "share": 0.5, "gpus_held": 2.0, "weight": 2.0, "usage_gpu_hours": 3.25}
POLICY = {
    **{name: 0 for name in PolicyFields.__struct_fields__}, "policy": "fair", "cost_by_model": {}, "version": 2,
    "enable_gang_scheduling": True, "enable_preemption": True, "enable_thermal_aware": True, "thermal_moves": "off",
    "held_idle_policy": "monitor",
}  # fmt: skip
QUOTA = {"max_gpus": 8, "guaranteed_gpus": 4, "version": 3}
SECRET = {"name": "wandb", "set_by": "grace", "set_at": "2030-01-01T10:00:00Z"}
TENANT = {"name": "nlp", "weight": 2.0, "tier": "standard", "quota": QUOTA, "in_use": {"gpus": 2}, "share": 0.5}
USER = {"username": "kim", "email": "kim@example.com", "kind": "person", "login": "password", "is_admin": False,
        "is_active": True, "tenants": [{"name": "nlp", "role": "member"}], "created_at": "2030-01-01T10:00:00Z"}  # fmt: skip
MEMBER = {"user": "kim", "role": "member", "kind": "person", "is_active": True}
PROGRAM = {"id": 9, "name": "nightly", "prefix": "u34cd", "scopes": ["read"], "user": "nightly@nlp"}
USED = {"gpu_seconds": 7200, "gpu_hours": 2, "running_gpu_seconds": 60, "refunded_gpu_seconds": 3600, "cost": 5,
        "unpriced_gpu_seconds": 0, "refunded_cost": 2.5, "jobs": 1}  # fmt: skip
USAGE = {"tenant": "nlp", "start_at": "2030-01-01T00:00:00Z", "end_at": "2030-01-31T10:00:00Z", "by": "user",
         "currency": "EUR", "total": USED, "items": [{**USED, "key": "ada"}], "next_cursor": None}  # fmt: skip
BUDGET = {"tenant": "nlp", "soft_gpu_hours": 80, "hard_gpu_hours": 100, "version": 4, "used_gpu_hours": 81,
          "state": "soft_exceeded", "sentence": "81 of 100 GPU-hours are used"}  # fmt: skip
RATE = {"id": 3, "gpu_model": "H100", "price_per_gpu_hour": 2.5, "currency": "EUR", "starts_at": "2030-01-01T00:00:00Z"}
ENTRY = {"id": 5, "at": "2030-01-01T10:00:00Z", "actor": "ada", "via": "page", "action": "quota.change",
         "subject": "quota nlp", "before": {"max_gpus": 4}, "after": {"max_gpus": None}}  # fmt: skip
INCIDENT = {"id": 6, "node": "n1", "gpu": 3, "kind": "dirty", "cause": "pid 17", "since": "2030-01-01T10:00:00Z"}
CYCLE = {"id": 9, "started_at": "2030-01-01T10:00:00Z", "trigger": "event", "pending": 4, "placed": 3, "plan_ms": 1.5}
REPLAY = {
    "cycle_id": 9,
    "decided_at": "2030-01-01T10:00:00Z",
    "recorded_policy": "fair",
    "policy": "fair",
    "is_same": True,
    "placements": [{"job_id": 41, "nodes": ["n1", "n2"], "gpus": 16}],
    "preemptions": [{"job_id": 43, "victims": [7, 8], "rule": "priority"}],
    "waits": [{"code": "capacity", "sentence": "needs 8 GPUs", "jobs": 14, "job_ids": list(range(50, 64))}],
    "promised_job_id": 50,
    "promised_at": "2030-01-01T12:00:00Z",
}
ROUTE = {"id": 4, "name": "mail", "tenant": "nlp", "target": "E-mail (ada@example.com)", "kinds": ["job_failed"]}
WEBHOOK = {"id": 5, "name": "ci", "tenant": None, "url": "https://hooks.example.com/…", "kinds": ["job_failed"]}
DELIVERY = {"id": 8, "uid": "6448207e-27a7-41b0-93f3-134987adfe08", "route_id": 4, "route": "mail", "kind": "test",
            "state": "sent", "attempts": 1}  # fmt: skip
ENDPOINT = {"id": 1, "name": "embed", "tenant": "nlp", "owner": "ada", "state": "active", "type": "embedding",
            "cost": 1.0, "protocol": "batch", "template": {"command": ["python", "serve.py"], "gpu_count": 1}}  # fmt: skip
TASK = {"id": 17, "endpoint": "embed", "tenant": "nlp", "user": "ada", "state": "completed", "cost": 1.0,
        "output": [0.5], "output_type": "application/json", "batch_size": 8, "flush_reason": "size"}  # fmt: skip
BUCKET = {"id": 4, "tenant": "nlp", "scope": "user", "user": "kim", "rate_per_second": 5.0, "burst": 50.0}
RESERVATION = {"id": 7, "tenant": "nlp", "user": "ada", "state": "planned", "starts_at": "2030-01-01T08:00:00Z",
               "ends_at": "2030-01-01T10:00:00Z", "gpus": 2, "devices": [{"node": "n1", "index": 0}]}  # fmt: skip
EXEMPTION = {"id": 5, "job_id": 42, "note": "by night", "created_by": "ada", "created_at": "2030-01-01T10:00:00Z"}
TOKEN = {"id": 7, "name": "ci", "prefix": "u12ab", "scopes": ["read"], "expires_at": "2030-04-01T00:00:00Z"}


ELEMENT = {"index": 3, "state": "failed", "job_id": 57, "exit_code": 3, "nodes": ["n1"], "attempt": 1}
EXTENDED = {"job_id": 42, "status": "changed", "message": "job 42 may now run for 90 minutes", "job": job()}


def answer_all(server: FakeServer) -> None:
    server.on("POST", "/jobs", acted())
    server.on("POST", "/jobs/simulate", Answer(200, {"starts_now": True, "sentence": "it would start now on n1"}))
    server.on("GET", "/jobs", Answer(200, {"items": [job(), job(43, "running", name="b", nodes=["n1"])]}))
    server.on("GET", "/jobs/42", Answer(200, job(state="completed", exit_code=0)))
    server.on("GET", "/jobs/42/attempts", Answer(200, {"items": []}))
    server.on("GET", "/jobs/42/events", Answer(200, {"items": [HAPPENED]}))
    happening = {**HAPPENED, "id": 7, "job_id": 42, "tenant": "nlp", "name": "train"}
    server.on("GET", "/events", Answer(200, {"items": [happening], "next_since": 7, "more": False}))
    server.on("GET", "/queue", Answer(200, {"items": [QUEUED]}))
    used = {"tenant": "nlp", "queued_jobs": 2, "users": [{"user": "ada", "queued_jobs": 2}]}
    server.on("GET", "/queue/usage", Answer(200, {"items": [used]}))
    server.on("GET", "/scheduling/shares", Answer(200, {"items": [SHARE]}))
    server.on("GET", "/cluster/status", Answer(200, {"total_nodes": 1, "online_nodes": 1, "total_gpus": 2}))
    server.on("GET", "/jobs/42/explain", Answer(200, EXPLANATION))
    server.on("GET", "/jobs/42/logs", log(b"epoch 1\nepoch 2\n", complete=True))
    for verb in ("cancel", "hold", "release", "requeue", "retry", "signal"):
        server.on("POST", f"/jobs/42/{verb}", acted(verb))
    server.on("GET", "/jobs/42/elements", Answer(200, {"items": [ELEMENT]}))
    server.on("POST", "/jobs/42/extend", Answer(200, EXTENDED))
    for verb in ("cordon", "drain", "uncordon", "rotate-credential"):
        server.on("POST", f"/nodes/n1/{verb}", Answer(200, {"node": "n1", "status": verb, "message": f"n1: {verb}"}))
    server.on("DELETE", "/nodes/n1", Answer(200, {"node": "n1", "status": "removed", "message": "n1: removed"}))
    for verb, health in (("quarantine", "quarantined"), ("clear", "ok"), ("retire", "retired")):
        server.on("POST", f"/gpus/2/{verb}", Answer(200, {"id": 2, "health": health, "message": f"GPU 2 is {health}"}))
    server.on("GET", "/nodes/n1", Answer(200, NODE))
    labels = {"node": "n1", "labels": {"zone": "a", "arch": "x86"}, "from_admin": {"zone": "a"}}
    taints = {"node": "n1", "taints": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]}
    for method in ("GET", "PATCH"):
        server.on(method, "/nodes/n1/labels", Answer(200, labels))
        server.on(method, "/nodes/n1/taints", Answer(200, taints))
    server.on("GET", "/nodes", Answer(200, {"items": [NODE]}))
    server.on("POST", "/nodes/join-tokens", Answer(201, {"token": "j1.secret", "command": "gpusched-agent join X"}))
    server.on("GET", "/tenants", Answer(200, {"items": [TENANT]}))
    server.on("POST", "/tenants", Answer(201, TENANT))
    server.on("GET", "/tenants/nlp", Answer(200, TENANT))
    server.on("GET", "/tenants/nlp/quota", Answer(200, QUOTA))
    server.on("GET", "/scheduling/policy", Answer(200, POLICY))
    server.on("PATCH", "/scheduling/policy", Answer(200, {**POLICY, "version": 3}))
    server.on("PUT", "/tenants/nlp/quota", Answer(200, {"max_gpus": 4, "version": 4}))
    server.on("GET", "/tokens", Answer(200, {"items": [TOKEN]}))
    server.on("POST", "/tokens", Answer(201, {**TOKEN, "token": "u12ab.secret"}))
    server.on("DELETE", "/tokens/7", Answer(200, {**TOKEN, "also_revoked": [9]}))
    server.on("GET", "/tenants/nlp/secrets", Answer(200, {"items": [SECRET]}))
    server.on("PUT", "/tenants/nlp/secrets/wandb", Answer(201, SECRET))
    server.on("DELETE", "/tenants/nlp/secrets/wandb", Answer(204, b""))
    server.on("POST", "/login", Answer(201, {"id": 8, "token": "u1.new"}))
    server.on("GET", "/me", Answer(200, {"user": "ada"}))
    server.routes["GET", "/health"] = Answer(200, {"status": "ok", "version": "0.1.0"})
    answer_about_money(server)
    answer_about_people(server)
    answer_about_serving(server)


def answer_about_serving(server: FakeServer) -> None:
    server.on("GET", "/notifications/routes", Answer(200, {"items": [ROUTE]}))
    server.on("POST", "/notifications/routes", Answer(201, {**ROUTE, "status": "created"}))
    server.on("GET", "/notifications/routes/4", Answer(200, ROUTE))
    server.on("PATCH", "/notifications/routes/4", Answer(200, {**ROUTE, "status": "changed"}))
    server.on("DELETE", "/notifications/routes/4", Answer(204, b""))
    server.on("POST", "/notifications/routes/4/test", Answer(200, DELIVERY))
    server.on("GET", "/webhooks", Answer(200, {"items": [WEBHOOK]}))
    server.on("POST", "/webhooks", Answer(201, {**WEBHOOK, "secret": "whsec_x", "status": "created"}))
    server.on("GET", "/webhooks/5", Answer(200, WEBHOOK))
    server.on("POST", "/webhooks/5/rotate-secret", Answer(200, {**WEBHOOK, "secret": "whsec_y", "status": "changed"}))
    server.on("GET", "/notifications/deliveries", Answer(200, {"items": [DELIVERY], "next_cursor": None}))
    server.on("GET", "/notifications/deliveries/8", Answer(200, DELIVERY))
    server.on("POST", "/notifications/deliveries/8/replay", Answer(200, DELIVERY))
    server.on("GET", "/reservations", Answer(200, {"items": [RESERVATION]}))
    server.on("POST", "/reservations", Answer(201, {**RESERVATION, "status": "booked"}))
    server.on("GET", "/reservations/7", Answer(200, RESERVATION))
    for verb, state in (("shorten", "released"), ("cancel", "cancelled"), ("renew", "active")):
        server.on("POST", f"/reservations/7/{verb}", Answer(200, {**RESERVATION, "state": state}))
    slot = {"starts_at": "2030-01-01T08:00:00Z", "ends_at": "2030-01-01T10:00:00Z", "nodes": ["n1"]}
    server.on("GET", "/reservations/next-slot", Answer(200, slot))
    server.on("GET", "/endpoints", Answer(200, {"items": [ENDPOINT]}))
    server.on("POST", "/endpoints", Answer(201, {**ENDPOINT, "status": "created"}))
    server.on("GET", "/endpoints/embed", Answer(200, ENDPOINT))
    server.on("PATCH", "/endpoints/embed", Answer(200, ENDPOINT))
    server.on("POST", "/endpoints/embed/drain", Answer(200, {**ENDPOINT, "state": "draining"}))
    server.on("DELETE", "/endpoints/embed", Answer(204, b""))
    server.on("GET", "/tasks", Answer(200, {"items": [TASK]}))
    server.on("POST", "/tasks", Answer(201, {"items": [{**TASK, "state": "queued", "output": None}], "queued": 1}))
    server.on("GET", "/tasks/17", Answer(200, {"items": [TASK]}))
    server.on("GET", "/tasks/17/result", Answer(200, b"[3]", {"Content-Disposition": "attachment"}))
    server.on("POST", "/tasks/17/cancel", Answer(200, {"id": 17, "status": "cancelled", "state": "cancelled"}))
    server.on("GET", "/buckets", Answer(200, {"items": [BUCKET]}))
    server.on("POST", "/buckets", Answer(201, BUCKET))
    server.on("DELETE", "/buckets/4", Answer(204, b""))


def answer_about_people(server: FakeServer) -> None:
    server.on("POST", "/tenants/nlp/rename", Answer(200, {**TENANT, "name": "language"}))
    archived = {**TENANT, "archived_at": "2030-01-01T10:00:00Z", "cancelled_jobs": 2, "stopping_jobs": 1}
    server.on("POST", "/tenants/nlp/archive", Answer(200, archived))
    server.on("POST", "/tenants/nlp/unarchive", Answer(200, TENANT))
    server.on("GET", "/users", Answer(200, {"items": [USER]}))
    server.on("POST", "/users", Answer(201, {**USER, "one_time_password": "abcd-efgh"}))
    server.on("GET", "/users/kim", Answer(200, USER))
    server.on("PATCH", "/users/kim", Answer(200, {**USER, "is_admin": True}))
    server.on("POST", "/users/kim/disable", Answer(200, {**USER, "tenants_without_owner": ["nlp"]}))
    server.on("POST", "/users/kim/enable", Answer(200, USER))
    reset = {"username": "kim", "one_time_password": "abcd-efgh", "revoked_tokens": 2}
    server.on("POST", "/users/kim/reset-password", Answer(200, reset))
    server.on("PUT", "/me/password", Answer(200, {"username": "ada", "status": "changed"}))
    server.on("GET", "/tenants/nlp/members", Answer(200, {"items": [MEMBER]}))
    server.on("POST", "/tenants/nlp/members", Answer(201, MEMBER))
    server.on("PATCH", "/tenants/nlp/members/kim", Answer(200, {**MEMBER, "role": "owner"}))
    server.on("DELETE", "/tenants/nlp/members/kim", Answer(204, b""))


def answer_about_money(server: FakeServer) -> None:
    server.on("GET", "/tenants/nlp/service-tokens", Answer(200, {"items": [PROGRAM]}))
    server.on("POST", "/tenants/nlp/service-tokens", Answer(201, {**PROGRAM, "token": "u34cd.secret"}))
    server.on("DELETE", "/tenants/nlp/service-tokens/9", Answer(200, PROGRAM))
    server.on("GET", "/tenants/nlp/usage", Answer(200, USAGE))
    server.on("GET", "/tenants/nlp/budget", Answer(200, BUDGET))
    server.on("PUT", "/tenants/nlp/budget", Answer(200, {**BUDGET, "version": 5, "status": "changed"}))
    server.on("GET", "/rates", Answer(200, {"items": [RATE]}))
    server.on("POST", "/rates", Answer(201, RATE))
    server.on("DELETE", "/rates/3", Answer(204, b""))
    server.on("GET", "/audit", Answer(200, {"items": [ENTRY]}))
    server.on("GET", "/incidents", Answer(200, {"items": [INCIDENT]}))
    server.on("GET", "/scheduling/cycles", Answer(200, {"items": [CYCLE]}))
    server.on("GET", "/scheduling/cycles/9/replay", Answer(200, REPLAY))
    server.on("GET", "/idle-exemptions", Answer(200, {"items": [EXEMPTION]}))
    server.on("POST", "/idle-exemptions", Answer(201, EXEMPTION))
    server.on("DELETE", "/idle-exemptions/5", Answer(204, b""))
