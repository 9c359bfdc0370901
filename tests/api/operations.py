"""Every operation of docs/openapi.json, and a small cluster in which each of them has something to succeed on."""

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from django.test import Client

from gpusched.lib.db.sql import execute, prepared, query
from gpusched.protocol.batches import JSON
from serving.former import Batch, Flush
from serving.requests import claims, results
from serving.upkeep import new_dispatcher
from tests.factories import make_member, make_node, make_tenant, make_token, make_user, run_cycle, submit

PASSWORD = "correct horse battery"
# What is sent so that it succeeds: of writes that take more than an empty object.
BODIES: dict[str, dict[str, Any]] = {
    "POST /api/v1/jobs": {"tenant": "nlp", "command": ["x"]},
    "POST /api/v1/jobs/bulk": {"jobs": [{"tenant": "nlp", "command": ["x"]}]},
    "POST /api/v1/jobs/simulate": {"tenant": "nlp", "command": ["x"]},
    "POST /api/v1/jobs/{job_id}/extend": {"max_runtime_minutes": 60},
    "POST /api/v1/jobs/{job_id}/signal": {"signal": "USR1"},
    "POST /api/v1/tenants": {"name": "new"},
    "PATCH /api/v1/tenants/{name}": {"weight": 2},
    "PATCH /api/v1/nodes/{name}/labels": {"labels": {"zone": "a"}},
    "PATCH /api/v1/nodes/{name}/taints": {"add": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]},
    "PUT /api/v1/tenants/{name}/quota": {"max_gpus": 4},
    "PUT /api/v1/tenants/{name}/budget": {"hard_gpu_hours": 100},
    "PUT /api/v1/tenants/{name}/secrets/{secret}": {"value": "x"},
    "POST /api/v1/tenants/{name}/service-tokens": {"name": "ci"},
    "POST /api/v1/idle-exemptions": {"tenant": "nlp"},
    "POST /api/v1/rates": {"gpu_model": "A100", "price_per_gpu_hour": 2},
    "POST /api/v1/tokens": {"name": "t", "scopes": ["read"]},
    "POST /api/v1/tenants/{name}/rename": {"name": "renamed"},
    "POST /api/v1/tenants/{name}/archive": {"cancel_jobs": True},
    "POST /api/v1/tenants/{name}/members": {"user": "kim"},
    "PATCH /api/v1/tenants/{name}/members/{username}": {"role": "viewer"},
    "POST /api/v1/users": {"username": "new"},
    "PATCH /api/v1/users/{username}": {"email": "kim@example.com"},
    "PUT /api/v1/me/password": {"old_password": PASSWORD, "new_password": "another horse battery"},
    "POST /api/v1/login": {"username": "ada", "password": PASSWORD},
    "POST /api/v1/endpoints": {"name": "new", "tenant": "nlp", "template": {"command": ["x"], "gpu_count": 1}},
    "PATCH /api/v1/endpoints/{name}": {"max_batch": 4},
    "POST /api/v1/tasks": {"endpoint": "embed", "input": {"text": "x"}},
    "POST /api/v1/reservations": {"tenant": "nlp", "gpus": 1, "for_seconds": 600},
    "POST /api/v1/reservations/{reservation_id}/renew": {"for_seconds": 7200},
    "POST /api/v1/buckets": {"tenant": "other", "scope": "user", "rate_per_second": 1, "burst": 10},
    "PATCH /api/v1/buckets/{bucket_id}": {"burst": 20},
    "POST /api/v1/notifications/routes": {
        "tenant": "nlp",
        "name": "new",
        "target": "ntfy://topic",
        "kinds": ["job_failed"],
    },
    "PATCH /api/v1/notifications/routes/{route_id}": {"kinds": ["budget"]},
    "POST /api/v1/webhooks": {
        "tenant": "nlp",
        "name": "new",
        "url": "https://hooks.example.com/x",
        "kinds": ["job_failed"],
    },
    "PATCH /api/v1/webhooks/{webhook_id}": {"kinds": ["budget"]},
}
# In which state a job is to be so that this can be done to it, or that it has most to say; else `pending` for what
# changes it, and `running`.
_STATES = {"explain": "pending", "release": "held", "retry": "ended", "requeue": "running", "signal": "running"}


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    document: dict[str, Any] = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def who(self) -> str:
        """The least role that may, as it is documented."""
        return str(self.document["x-who"])

    @property
    def is_write(self) -> bool:
        return self.method != "GET"

    @property
    def is_secured(self) -> bool:
        return any(self.document.get("security", ()))

    @property
    def statuses(self) -> set[int]:
        """Return its documented answers."""
        return {int(code) for code in self.document["responses"]}

    def parameters(self, place: str) -> set[str]:
        """Return its parameters in `query`, `path` or `header`."""
        return {operation["name"] for operation in self.document.get("parameters", ()) if operation["in"] == place}

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of its body, with their schemas."""
        schema = self.document.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        component = components().get(schema.get("$ref", "").rpartition("/")[2], {})
        result: dict[str, Any] = component.get("properties", {})
        return result


@cache
def _document() -> dict[str, Any]:
    result: dict[str, Any] = json.loads((Path(__file__).resolve().parents[2] / "docs" / "openapi.json").read_text())
    return result


def components() -> dict[str, Any]:
    result: dict[str, Any] = _document()["components"]["schemas"]
    return result


@cache
def operations() -> tuple[Operation, ...]:
    return tuple(
        Operation(method.upper(), path, document)
        for path, result in sorted(_document()["paths"].items())
        for method, document in sorted(result.items())
    )


def writes() -> tuple[Operation, ...]:
    return tuple(operation for operation in operations() if operation.is_write)


class Stage:
    """One of each thing that an address names, in the state in which the operation finds something to do."""

    def __init__(self) -> None:
        self.tenant = make_tenant("nlp")
        make_tenant("other")
        self.user, self.admin = make_member(self.tenant, name="ada"), make_user("root", admin=True)
        make_user("kim")
        make_member(self.tenant, name="lin")
        self.token = make_token(self.admin)
        self.agent = make_node(name="n1", gpus=4)
        self.jobs = {"running": submit(self.user, self.tenant, max_runtime_minutes=600)}
        run_cycle()
        self.agent.start_all()
        self.jobs |= {state: submit(self.user, self.tenant) for state in ("pending", "held", "ended")}
        self.member = make_token(self.user)
        # By its owner: what an admin holds, only an admin releases.
        self._make(f"jobs/{self.jobs['held']}/hold", token=self.member)
        self._make(f"jobs/{self.jobs['ended']}/cancel")
        make_node(name="n2", gpus=1)
        self._make("nodes/n2/cordon")
        free = [row["id"] for row in query("SELECT id FROM nodes_device WHERE held_whole = 0 ORDER BY id")]
        self._devices = {"clear": free[1], "retire": free[2]}
        self._free = free[0]
        self._make(f"gpus/{free[1]}/quarantine")
        execute("UPDATE nodes_device SET health = 'lost' WHERE id = %s", [free[2]])
        self._make("tenants/nlp/secrets/wandb", {"value": "x"}, "PUT")
        self._made = {
            "cycle_id": query("SELECT min(cycle_id) AS id FROM scheduling_recordedcycle")[0]["id"],
            "service_token_id": self._make("tenants/nlp/service-tokens", {"name": "nightly"})["id"],
            "token_id": self._make("tokens", {"name": "old"})["id"],
            "rate_id": self._make("rates", {"gpu_model": "H100", "price_per_gpu_hour": 2})["id"],
            "exemption_id": self._make("idle-exemptions", {"tenant": "other"})["id"],
            "bucket_id": self._make("buckets", {"tenant": "nlp", "scope": "user", "rate_per_second": 1, "burst": 1e6})[
                "id"
            ],
        }
        lease = {"tenant": "nlp", "gpus": 1, "for_seconds": 3600, "lease": True}
        make_node(name="n3", gpus=4)
        self._made["reservation_id"] = self._make("reservations", lease, token=self.member)["id"]
        self.tasks = self._serve()
        self._made |= self._notify()

    def _notify(self) -> dict[str, int]:
        """Create a route and a webhook of the tenant, and a delivery that was sent."""
        wanted = {"tenant": "nlp", "name": "team", "kinds": ["job_failed"]}
        route = self._make("notifications/routes", {**wanted, "target": "ntfy://topic"})
        webhook = self._make("webhooks", {**wanted, "url": "https://hooks.example.com/x"})
        delivery = self._make(f"webhooks/{webhook['id']}/test")
        execute("UPDATE notifications_delivery SET state = 'sent', ended_at = now()")
        return {"route_id": route["id"], "webhook_id": webhook["id"], "delivery_id": delivery["id"]}

    def _serve(self) -> dict[str, int]:
        """Create endpoints of the member, the second without tasks. Return tasks of the first by their state."""
        for name in ("embed", "idle"):
            endpoint = {"name": name, "tenant": "nlp", "template": {"command": ["x"]}}
            self._make("endpoints", endpoint, token=self.member)
        tasks = self._make("tasks", {"endpoint": "embed", "inputs": [1, 2]}, token=self.member)["items"]
        queued, completed = (task["id"] for task in tasks)
        complete(completed)
        return {"queued": queued, "completed": completed}

    def _make(self, path: str, body: Any = None, method: str = "POST", token: str | None = None) -> Any:
        answer = self.ask(method, f"/api/v1/{path}", msgspec.json.encode(body or {}), token=token)
        assert answer.status_code < 300, answer.content
        return answer.json()

    def ids(self, operation: Operation) -> dict[str, Any]:
        """Return a value for each path parameter: a new kind of parameter needs its line here."""
        verb = operation.path.rpartition("/")[2]
        is_program = "/service-tokens/" in operation.path
        allowed: dict[str, Any] = {
            "job_id": self.jobs[_STATES.get(verb, "pending" if operation.is_write else "running")],
            "name": self._name(operation, verb),
            "task_id": self.tasks["completed" if verb == "result" else "queued"],
            "secret": "wandb",
            "username": "lin" if "/members/" in operation.path else "kim",
            "device_id": self._devices.get(verb, self._free),
            **self._made,
            "token_id": self._made["service_token_id" if is_program else "token_id"],
        }
        return {name: allowed[name] for name in operation.parameters("path")}

    def _name(self, operation: Operation, verb: str) -> str:
        is_deletion = operation.method == "DELETE"
        if "/nodes/" in operation.path:
            return "n2" if verb == "uncordon" or is_deletion else "n1"
        if "/endpoints/" in operation.path:
            return "idle" if is_deletion else "embed"
        return "nlp"

    def body(self, operation: Operation) -> dict[str, Any]:
        """Return a body with which it succeeds."""
        return dict(BODIES.get(operation.name, {}))

    def address(self, operation: Operation) -> str:
        return operation.path.format(**self.ids(operation))

    def do(self, operation: Operation, more: str = "", *, token: str | None = None, **headers: str) -> Any:
        """Send a request that succeeds; `more`: a query string."""
        raw = msgspec.json.encode(self.body(operation)) if operation.is_write else b""
        return self.ask(operation.method, self.address(operation) + more, raw, token=token, **headers)

    def ask(
        self, method: str, address: str, raw: bytes = b"", *, kind: str = "application/json", token: str | None = None,
        **headers: str,
    ) -> Any:  # fmt: skip
        """`token`: that of an admin unless told; empty: none. Headers by name, with _ for -."""
        token = self.token if token is None else token
        values = {name.replace("_", "-"): value for name, value in headers.items()}
        values |= {"Authorization": f"Bearer {token}"} if token else {}
        return Client().generic(method, address, raw, content_type=kind, headers=values)


def complete(task_id: int) -> None:
    """Record a result of a queued task."""
    [claimed] = claims.claim(new_dispatcher(), [Batch(1, 1, (task_id,), Flush.SIZE)])[0]
    results.record([results.Outcome(task_id, claimed.attempt, b"{}", JSON)])


def contents(*besides: str) -> dict[str, str]:
    """A mark of the rows of each table but `besides`: how many there are, and which transaction (or part of one) wrote
    the newest; of tokens how many, for each says when it was last used."""
    return {row["t"]: row["m"] for row in prepared(_marks(besides))}


def writes_of_transaction() -> int:
    """Return how many rows this transaction has written so far, also those that were rolled back to a savepoint. It
    costs a tenth of `contents`, which reads all rows, also the dead ones of previous requests."""
    return int(prepared(_WRITES)[0]["n"])


_WRITES = """
    SELECT sum(pg_stat_get_xact_tuples_inserted(oid) + pg_stat_get_xact_tuples_deleted(oid)
               + CASE relname WHEN 'tenants_apitoken' THEN 0 ELSE pg_stat_get_xact_tuples_updated(oid) END) AS n
      FROM pg_class
     WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
       AND relname NOT IN ('django_session', 'nodes_listenerlease')
"""


@cache
def _marks(besides: tuple[str, ...]) -> str:
    names = [row["t"] for row in query("SELECT table_name AS t FROM information_schema.tables WHERE table_schema = 'public'"
                                       " AND table_type = 'BASE TABLE' AND table_name <> ALL(%s) ORDER BY 1",
                                       [["django_session", "nodes_listenerlease", *besides]])]  # fmt: skip
    newest = dict.fromkeys(names, "coalesce(max(xmin::text::bigint), 0)") | {"tenants_apitoken": "''"}
    parts = (f"SELECT '{name}' AS t, count(*) || ' ' || {newest[name]} AS m FROM {name}" for name in names)
    return " UNION ALL ".join(parts)
