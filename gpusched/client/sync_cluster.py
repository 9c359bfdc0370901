"""The blocking methods for everything but jobs: tenants, nodes, the policy, tokens, money and records."""

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


def _single(build: Callable[P, Call[T]]) -> "Callable[Concatenate[ClusterMethods, P], T]":
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
    """The methods of a client for everything but jobs."""

    config: Config
    patience_seconds: float

    tenants = _list(cluster.tenants)
    tenant = _single(cluster.tenant)
    create_tenant = _single(cluster.create_tenant)
    change_tenant = _single(cluster.change_tenant)
    rename_tenant = _single(cluster.rename_tenant)
    archive_tenant = _single(cluster.archive_tenant)
    unarchive_tenant = _single(cluster.unarchive_tenant)
    quota = _single(cluster.quota)
    set_quota = _single(cluster.set_quota)
    shares = _list(cluster.shares)
    queue_usage = _list(cluster.queue_usage)
    policy = _single(cluster.policy)
    set_policy = _single(cluster.set_policy)
    nodes = _list(cluster.nodes)
    node = _single(cluster.node)
    cordon = _single(cluster.cordon)
    uncordon = _single(cluster.uncordon)
    node_labels = _single(cluster.node_labels)
    label_node = _single(cluster.label_node)
    node_taints = _single(cluster.node_taints)
    taint_node = _single(cluster.taint_node)
    quarantine = _single(cluster.quarantine)
    clear = _single(cluster.clear)
    retire = _single(cluster.retire)
    drain = _single(cluster.drain)
    remove_node = _single(cluster.remove_node)
    join_token = _single(access.join_token)
    tokens = _list(access.tokens)
    create_token = _single(access.create_token)
    revoke_token = _single(access.revoke_token)
    login = _single(access.login)
    me = _single(access.me)
    status = _single(cluster.status)
    health = _single(cluster.health)
    service_tokens = _list(access.service_tokens)
    create_service_token = _single(access.create_service_token)
    revoke_service_token = _single(access.revoke_service_token)

    users = _list(people.users)
    user = _single(people.user)
    create_user = _single(people.create_user)
    change_user = _single(people.change_user)
    disable_user = _single(people.disable_user)
    enable_user = _single(people.enable_user)
    reset_password = _single(people.reset_password)
    change_password = _single(people.change_password)
    members = _list(people.members)
    add_member = _single(people.add_member)
    set_role = _single(people.set_role)
    remove_member = _single(people.remove_member)

    rates = _list(billing.rates)
    set_rate = _single(billing.set_rate)
    end_rate = _single(billing.end_rate)
    budget = _single(billing.budget)
    set_budget = _single(billing.set_budget)

    incidents = _list(records.incidents)
    devices = _list(records.devices)
    samples = _single(records.samples)
    rollups = _single(records.rollups)
    cycles = _list(records.cycles)
    replay_cycle = _single(records.replay_cycle)
    policy_history = _list(records.policy_history)
    exemptions = _list(records.exemptions)
    exempt = _single(records.exempt)
    end_exemption = _single(records.end_exemption)

    def usage(
        self,
        tenant: str | None = None,
        *,
        by: str = "day",
        start: billing.Moment | None = None,
        end: billing.Moment | None = None,
    ) -> Usage:
        """Return a tenant's use and its cost, by `day`, `user`, `job` or `model`; by default of this month. Without
        `tenant`: of the configured one, or your only one."""
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
        """Return the changes recorded in the audit log, newest first (admins); `limit` None: all. `action`: like
        quota.change, or just quota."""
        call = records.audit(actor=actor, action=action, subject=subject)
        return self._run(flows.all_items(call, self.patience_seconds, limit, is_sized=True))

    def send(self, call: Call[T]) -> T:
        """Send a call; retry it while that is safe, for at most `patience_seconds`."""
        return self._run(exchange(call, self.patience_seconds))

    @abstractmethod
    def _run(self, flow: Flow[T]) -> T:
        """Run a flow and return its result."""
