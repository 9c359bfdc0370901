"""The awaited methods for all that is no job: tenants, nodes, the policy, tokens, money and records."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from gpusched.client import access_calls, cluster_calls, flows, money_calls, people_calls, record_calls, wire
from gpusched.client.calls import Call
from gpusched.client.config import Config
from gpusched.client.exchange import Flow, exchange
from gpusched.client.models import Page
from gpusched.client.records import AuditEntry
from gpusched.client.usage import Usage

P = ParamSpec("P")
T = TypeVar("T")


def _one(build: Callable[P, Call[T]]) -> "Callable[Concatenate[ClusterMethods, P], Coroutine[Any, Any, T]]":
    async def method(self: "ClusterMethods", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(build(*args, **kwargs))

    wire.describe(method, build)
    return method


def _list(
    build: Callable[P, Call[Page[T]]],
) -> "Callable[Concatenate[ClusterMethods, P], Coroutine[Any, Any, list[T]]]":
    async def method(self: "ClusterMethods", /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        return await self._run(flows.all_items(build(*args, **kwargs), self.patience_seconds))

    wire.describe(method, build)
    return method


class ClusterMethods(ABC):
    """What a client has beside its methods for jobs."""

    config: Config
    patience_seconds: float

    tenants = _list(cluster_calls.tenants)
    tenant = _one(cluster_calls.tenant)
    create_tenant = _one(cluster_calls.create_tenant)
    change_tenant = _one(cluster_calls.change_tenant)
    rename_tenant = _one(cluster_calls.rename_tenant)
    archive_tenant = _one(cluster_calls.archive_tenant)
    unarchive_tenant = _one(cluster_calls.unarchive_tenant)
    quota = _one(cluster_calls.quota)
    set_quota = _one(cluster_calls.set_quota)
    shares = _list(cluster_calls.shares)
    queue_usage = _list(cluster_calls.queue_usage)
    policy = _one(cluster_calls.policy)
    set_policy = _one(cluster_calls.set_policy)
    nodes = _list(cluster_calls.nodes)
    node = _one(cluster_calls.node)
    cordon = _one(cluster_calls.cordon)
    uncordon = _one(cluster_calls.uncordon)
    node_labels = _one(cluster_calls.node_labels)
    label_node = _one(cluster_calls.label_node)
    node_taints = _one(cluster_calls.node_taints)
    taint_node = _one(cluster_calls.taint_node)
    quarantine = _one(cluster_calls.quarantine)
    clear = _one(cluster_calls.clear)
    retire = _one(cluster_calls.retire)
    drain = _one(cluster_calls.drain)
    remove_node = _one(cluster_calls.remove_node)
    join_token = _one(access_calls.join_token)
    tokens = _list(access_calls.tokens)
    create_token = _one(access_calls.create_token)
    revoke_token = _one(access_calls.revoke_token)
    login = _one(access_calls.login)
    me = _one(access_calls.me)
    status = _one(cluster_calls.status)
    health = _one(cluster_calls.health)
    service_tokens = _list(access_calls.service_tokens)
    create_service_token = _one(access_calls.create_service_token)
    revoke_service_token = _one(access_calls.revoke_service_token)

    users = _list(people_calls.users)
    user = _one(people_calls.user)
    create_user = _one(people_calls.create_user)
    change_user = _one(people_calls.change_user)
    disable_user = _one(people_calls.disable_user)
    enable_user = _one(people_calls.enable_user)
    reset_password = _one(people_calls.reset_password)
    change_password = _one(people_calls.change_password)
    members = _list(people_calls.members)
    add_member = _one(people_calls.add_member)
    set_role = _one(people_calls.set_role)
    remove_member = _one(people_calls.remove_member)

    rates = _list(money_calls.rates)
    set_rate = _one(money_calls.set_rate)
    end_rate = _one(money_calls.end_rate)
    budget = _one(money_calls.budget)
    set_budget = _one(money_calls.set_budget)

    incidents = _list(record_calls.incidents)
    devices = _list(record_calls.devices)
    samples = _one(record_calls.samples)
    rollups = _one(record_calls.rollups)
    cycles = _list(record_calls.cycles)
    replay_cycle = _one(record_calls.replay_cycle)
    policy_history = _list(record_calls.policy_history)
    exemptions = _list(record_calls.exemptions)
    exempt = _one(record_calls.exempt)
    end_exemption = _one(record_calls.end_exemption)

    async def usage(
        self,
        tenant: str | None = None,
        *,
        by: str = "day",
        start: money_calls.Moment | None = None,
        end: money_calls.Moment | None = None,
    ) -> Usage:
        """What a tenant used and what it costs, by `day`, `user`, `job` or `model`; of this month unless told. Without
        a tenant, of the configuration's, or of your only one."""
        whose = tenant or self.config.tenant
        return await self._run(money_calls.usage(whose, by, start, end, self.patience_seconds))

    async def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        subject: str | None = None,
        limit: int | None = 100,
    ) -> list[AuditEntry]:
        """Who changed what, newest first (admins); `limit` None: all. `action`: like quota.change, or just quota."""
        call = record_calls.audit(actor=actor, action=action, subject=subject)
        return await self._run(flows.all_items(call, self.patience_seconds, limit, is_sized=True))

    async def send(self, call: Call[T]) -> T:
        """One call, repeated as long as that is safe and patience lasts."""
        return await self._run(exchange(call, self.patience_seconds))

    @abstractmethod
    async def _run(self, flow: Flow[T]) -> T:
        """What a flow gives."""
