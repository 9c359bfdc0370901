"""The blocking methods for all that is no job: tenants, nodes, the policy, tokens, money and records."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from gpusched.client.calls import access, billing, cluster, flows, people, records
from gpusched.client.config import Config
from gpusched.client.transport import wire
from gpusched.client.transport.call import Call
from gpusched.client.transport.exchange import Flow, exchange
from gpusched.protocol.rest.billing import Usage
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.records import AuditEntry

P = ParamSpec("P")
T = TypeVar("T")


def _one(build: Callable[P, Call[T]]) -> "Callable[Concatenate[ClusterMethods, P], T]":
    def method(self: "ClusterMethods", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(build(*args, **kwargs))

    wire.describe(method, build)
    return method


def _list(build: Callable[P, Call[Page[T]]]) -> "Callable[Concatenate[ClusterMethods, P], list[T]]":
    def method(self: "ClusterMethods", /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        return self._run(flows.all_items(build(*args, **kwargs), self.patience_seconds))

    wire.describe(method, build)
    return method


class ClusterMethods(ABC):
    """What a client has beside its methods for jobs."""

    config: Config
    patience_seconds: float

    tenants = _list(cluster.tenants)
    tenant = _one(cluster.tenant)
    create_tenant = _one(cluster.create_tenant)
    change_tenant = _one(cluster.change_tenant)
    rename_tenant = _one(cluster.rename_tenant)
    archive_tenant = _one(cluster.archive_tenant)
    unarchive_tenant = _one(cluster.unarchive_tenant)
    quota = _one(cluster.quota)
    set_quota = _one(cluster.set_quota)
    shares = _list(cluster.shares)
    queue_usage = _list(cluster.queue_usage)
    policy = _one(cluster.policy)
    set_policy = _one(cluster.set_policy)
    nodes = _list(cluster.nodes)
    node = _one(cluster.node)
    cordon = _one(cluster.cordon)
    uncordon = _one(cluster.uncordon)
    node_labels = _one(cluster.node_labels)
    label_node = _one(cluster.label_node)
    node_taints = _one(cluster.node_taints)
    taint_node = _one(cluster.taint_node)
    quarantine = _one(cluster.quarantine)
    clear = _one(cluster.clear)
    retire = _one(cluster.retire)
    drain = _one(cluster.drain)
    remove_node = _one(cluster.remove_node)
    join_token = _one(access.join_token)
    tokens = _list(access.tokens)
    create_token = _one(access.create_token)
    revoke_token = _one(access.revoke_token)
    login = _one(access.login)
    me = _one(access.me)
    status = _one(cluster.status)
    health = _one(cluster.health)
    service_tokens = _list(access.service_tokens)
    create_service_token = _one(access.create_service_token)
    revoke_service_token = _one(access.revoke_service_token)

    users = _list(people.users)
    user = _one(people.user)
    create_user = _one(people.create_user)
    change_user = _one(people.change_user)
    disable_user = _one(people.disable_user)
    enable_user = _one(people.enable_user)
    reset_password = _one(people.reset_password)
    change_password = _one(people.change_password)
    members = _list(people.members)
    add_member = _one(people.add_member)
    set_role = _one(people.set_role)
    remove_member = _one(people.remove_member)

    rates = _list(billing.rates)
    set_rate = _one(billing.set_rate)
    end_rate = _one(billing.end_rate)
    budget = _one(billing.budget)
    set_budget = _one(billing.set_budget)

    incidents = _list(records.incidents)
    devices = _list(records.devices)
    samples = _one(records.samples)
    rollups = _one(records.rollups)
    cycles = _list(records.cycles)
    replay_cycle = _one(records.replay_cycle)
    policy_history = _list(records.policy_history)
    exemptions = _list(records.exemptions)
    exempt = _one(records.exempt)
    end_exemption = _one(records.end_exemption)

    def usage(
        self,
        tenant: str | None = None,
        *,
        by: str = "day",
        start: billing.Moment | None = None,
        end: billing.Moment | None = None,
    ) -> Usage:
        """What a tenant used and what it costs, by `day`, `user`, `job` or `model`; of this month unless told. Without
        a tenant, of the configuration's, or of your only one."""
        whose = tenant or self.config.tenant
        return self._run(billing.usage(whose, by, start, end, self.patience_seconds))

    def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        subject: str | None = None,
        limit: int | None = 100,
    ) -> list[AuditEntry]:
        """Who changed what, newest first (admins); `limit` None: all. `action`: like quota.change, or just quota."""
        call = records.audit(actor=actor, action=action, subject=subject)
        return self._run(flows.all_items(call, self.patience_seconds, limit, is_sized=True))

    def send(self, call: Call[T]) -> T:
        """One call, repeated as long as that is safe and patience lasts."""
        return self._run(exchange(call, self.patience_seconds))

    @abstractmethod
    def _run(self, flow: Flow[T]) -> T:
        """What a flow gives."""
