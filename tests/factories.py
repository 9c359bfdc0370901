"""Rows for tests, made through the same services that the product uses."""

from itertools import count
from typing import Any

import msgspec
from django.contrib.auth.models import User

from gpusched.protocol.agent_messages import Desired, DeviceFacts, Ended, Join, NodeFacts, Reading, Run, Started, Sync
from gpusched.protocol.job_request import JobRequest
from gpusched.protocol.states import Role, Scope
from jobs.submit import submit as job_services
from nodes.agents.sync import process
from nodes.inventory.join import join_node
from scheduling.cycle import recorded_cycles, run
from tenants.auth import tokens
from tenants.auth.identity import Identity, identity_of_user
from tenants.models import Tenant
from tenants.tenancy import tenants as tenant_services

_numbers = count(1)


def make_user(name: str = "", *, admin: bool = False) -> User:
    name = name or f"user{next(_numbers)}"
    if admin:
        return User.objects.create_superuser(name, password="correct horse battery")
    return User.objects.create_user(name, password="correct horse battery")


def make_tenant(name: str = "", *, quota: dict[str, Any] | None = None, **fields: Any) -> Tenant:
    return tenant_services.create_tenant(
        {"name": name or f"team-{next(_numbers)}", **fields}, actor="test", quota=quota
    )


def make_member(tenant: Tenant, role: Role = Role.MEMBER, name: str = "") -> User:
    user = make_user(name)
    tenant_services.set_member(tenant, user, role)
    return user


def identity_for(user: User) -> Identity:
    return identity_of_user(user)


def make_token(user: User, *scopes: Scope, tenant: Tenant | None = None) -> str:
    """Limited to `tenant`, if one is given."""
    allowed: list[str] = list(scopes or (Scope.READ, Scope.WRITE, Scope.ADMIN))
    return tokens.create_token(user.pk, "test", allowed, tenant_id=tenant.pk if tenant else None)[1]


def submit(user: User, tenant: Tenant, **fields: Any) -> int:
    """Submits a job and gives its id. One GPU unless said otherwise."""
    request = JobRequest(**{"tenant": tenant.name, "command": ["true"], "gpu_count": 1, **fields})
    answer = job_services.submit(request, identity_of_user(user)).answer
    return int(msgspec.json.decode(answer)["job_id"])


class FakeAgent:
    """The server's view of an agent: it sends given messages and records the answers."""

    def __init__(
        self, name: str = "", gpus: int = 8, *, memory_mb: int = 81920, model: str = "NVIDIA A100-SXM4-80GB"
    ) -> None:
        self.name = name or f"node-{next(_numbers)}"
        self.key = f"key-of-{self.name}"
        self.devices = [
            DeviceFacts(uuid=f"GPU-{self.name}-{i}", index=i, model=model, memory_mb=memory_mb) for i in range(gpus)
        ]
        self.held: list[str] = []
        self.seq = 0
        joined = join_node(Join(name=self.name, node_key=self.key, facts=self.facts()), 2.0)
        self.id, self.credential = joined.node_id, joined.credential

    def facts(self) -> NodeFacts:
        return NodeFacts(
            hostname="testhost",
            boot_id="boot-1",
            agent_version="0",
            cpu_cores=64,
            memory_mb=512_000,
            devices=self.devices,
        )

    def sync(self, *reports: Started | Ended, **fields: Any) -> Desired:
        self.seq += 1
        message = Sync(
            **{"seq": self.seq, "at": now(), "boot_id": "boot-1", "held": list(self.held),
               "running": list(self.held), "reports": list(reports), **fields}
        )  # fmt: skip
        [answer] = process([(self.id, message)])
        return answer

    def start_all(self) -> list[str]:
        """Start every assigned rank; return the keys."""
        runs = [order.key for order in self.sync().assignments if isinstance(order, Run)]
        self.held += runs
        self.sync(*(Started(key=key, at=now(), pid=4242) for key in runs))
        return runs

    def end(
        self, *keys: str, exit_code: int | None = 0, reason: str = "exited", readings: list[Reading] | None = None,
        saved: dict[str, str] | None = None, **fields: Any,
    ) -> Desired:  # fmt: skip
        self.held = [held for held in self.held if held not in keys]
        how = {"at": now(), "reason": reason, "exit_code": exit_code, **fields}
        return self.sync(*(Ended(**{"key": key, **how}) for key in keys), readings=readings or [], saved=saved or {})


def now() -> str:
    from django.utils import timezone

    return timezone.now().isoformat()


def make_node(gpus: int = 8, **fields: Any) -> FakeAgent:
    """A node that has joined and been heard."""
    agent = FakeAgent(gpus=gpus, **fields)
    agent.sync()
    return agent


def run_cycle() -> None:
    """Run a cycle, and record it whatever recording the one before has cost."""
    recorded_cycles._pauses_until.put(None, 0.0)
    run.run("test")
