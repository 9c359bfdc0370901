"""The methods of a client for everything but jobs: tenants, nodes, the policy, tokens, secrets, money and records."""

from gpusched.client.aio.connection import AsyncConnection, items, single
from gpusched.client.calls import access, billing, cluster, people, records
from gpusched.client.errors import Invalid
from gpusched.protocol.rest.access import Secret
from gpusched.protocol.rest.billing import Usage
from gpusched.protocol.rest.records import AuditEntry


class AsyncClusterMethods(AsyncConnection):
    """The methods of a client for everything but jobs."""

    tenants = items(cluster.tenants)
    tenant = single(cluster.tenant)
    create_tenant = single(cluster.create_tenant)
    change_tenant = single(cluster.change_tenant)
    rename_tenant = single(cluster.rename_tenant)
    archive_tenant = single(cluster.archive_tenant)
    unarchive_tenant = single(cluster.unarchive_tenant)
    quota = single(cluster.quota)
    set_quota = single(cluster.set_quota)
    shares = items(cluster.shares)
    queue_usage = items(cluster.queue_usage)
    policy = single(cluster.policy)
    set_policy = single(cluster.set_policy)
    nodes = items(cluster.nodes)
    node = single(cluster.node)
    cordon = single(cluster.cordon)
    uncordon = single(cluster.uncordon)
    node_labels = single(cluster.node_labels)
    label_node = single(cluster.label_node)
    node_taints = single(cluster.node_taints)
    taint_node = single(cluster.taint_node)
    quarantine = single(cluster.quarantine)
    clear = single(cluster.clear)
    retire = single(cluster.retire)
    drain = single(cluster.drain)
    remove_node = single(cluster.remove_node)
    rotate_node_credential = single(cluster.rotate_node_credential)
    join_token = single(access.join_token)
    tokens = items(access.tokens)
    create_token = single(access.create_token)
    revoke_token = single(access.revoke_token)
    login = single(access.login)
    me = single(access.me)
    status = single(cluster.status)
    health = single(cluster.health)
    service_tokens = items(access.service_tokens)
    create_service_token = single(access.create_service_token)
    revoke_service_token = single(access.revoke_service_token)

    users = items(people.users)
    user = single(people.user)
    create_user = single(people.create_user)
    change_user = single(people.change_user)
    disable_user = single(people.disable_user)
    enable_user = single(people.enable_user)
    reset_password = single(people.reset_password)
    change_password = single(people.change_password)
    members = items(people.members)
    add_member = single(people.add_member)
    set_role = single(people.set_role)
    remove_member = single(people.remove_member)

    rates = items(billing.rates)
    set_rate = single(billing.set_rate)
    end_rate = single(billing.end_rate)
    budget = single(billing.budget)
    set_budget = single(billing.set_budget)

    incidents = items(records.incidents)
    devices = items(records.devices)
    samples = single(records.samples)
    rollups = single(records.rollups)
    cycles = items(records.cycles)
    replay_cycle = single(records.replay_cycle)
    policy_history = items(records.policy_history)
    exemptions = items(records.exemptions)
    exempt = single(records.exempt)
    end_exemption = single(records.end_exemption)

    async def secrets(self, *, tenant: str | None = None) -> list[Secret]:
        """Return the secrets of a tenant by name, never their values. Without `tenant`: of the configured one, or your
        only one."""
        return await self._items(access.secrets(await self._tenant(tenant)))

    async def set_secret(self, name: str, value: str, *, tenant: str | None = None) -> Secret:
        """Store a value under a name, replacing the previous one; jobs name it in `secrets`."""
        return await self.send(access.set_secret(await self._tenant(tenant), name, value))

    async def delete_secret(self, name: str, *, tenant: str | None = None) -> None:
        """Delete a secret. Attempts that name it and start later fail."""
        await self.send(access.delete_secret(await self._tenant(tenant), name))

    async def usage(
        self,
        tenant: str | None = None,
        *,
        by: str = "day",
        start: billing.Moment | None = None,
        end: billing.Moment | None = None,
    ) -> Usage:
        """Return a tenant's use and its cost, by `day`, `user`, `job` or `model`; by default of this month. Without
        `tenant`: of the configured one, or your only one."""
        call = billing.usage(await self._tenant(tenant), by, start, end)
        result = page = await self.send(call)
        while page.next_cursor is not None:
            page = await self.send(billing.usage_after(call, page))
            result.items += page.items
        result.next_cursor = None
        return result

    async def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        subject: str | None = None,
        limit: int | None = 100,
    ) -> list[AuditEntry]:
        """Return the changes recorded in the audit log, newest first (admins); `limit` None: all. `action`: like
        quota.change, or just quota."""
        return await self._items(records.audit(actor=actor, action=action, subject=subject), limit, is_sized=True)

    async def _tenant(self, tenant: str | None) -> str:
        """Return the named tenant, else the configured one, else the only one that the caller belongs to."""
        if chosen := tenant or self.config.tenant:
            return chosen
        mine = sorted(member.name for member in (await self.me()).tenants)
        if len(mine) != 1:
            raise Invalid("tenant is required", next_step=f"your tenants: {', '.join(mine) or 'none'}")
        return mine[0]
