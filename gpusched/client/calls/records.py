"""The calls for records: the audit log, incidents, readings of devices, cycles, and edits of the policy."""

from gpusched.client.transport.call import Call, delete, get, write
from gpusched.protocol.rest.cluster import Exemption, NodeDevice
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.records import AuditEntry, Incident, RollupPage, SamplePage
from gpusched.protocol.rest.scheduling import Cycle, CycleReplay, PolicyEdit


def audit(*, actor: str | None = None, action: str | None = None, subject: str | None = None) -> Call[Page[AuditEntry]]:
    """Return the changes in the audit log, newest first (admins). `action`: like quota.change, or its beginning, like
    quota."""
    return get("/audit", Page[AuditEntry], actor=actor, action=action, subject=subject)


def incidents(*, limit: int = 100, is_open: bool = False) -> Call[Page[Incident]]:
    """Return the incidents of nodes and devices, newest first (admins). `is_open`: only open ones."""
    return get("/incidents", Page[Incident], limit=limit, open="true" if is_open else None)


def devices() -> Call[Page[NodeDevice]]:
    """Return all devices, with the names of their nodes."""
    return get("/gpus", Page[NodeDevice])


def samples(device_id: int, *, since: str | None = None, limit: int = 1000) -> Call[SamplePage]:
    """Return the stored readings of a device, oldest first; by default of the last hour."""
    return get(f"/gpus/{device_id}/samples", SamplePage, since=since, limit=limit)


def rollups(device_id: int, *, since: str | None = None, limit: int = 1000) -> Call[RollupPage]:
    """Return the readings of a device in steps of five minutes, oldest first; by default of the last day."""
    return get(f"/gpus/{device_id}/samples", RollupPage, resolution="5m", since=since, limit=limit)


def cycles(*, limit: int = 100) -> Call[Page[Cycle]]:
    """Return the latest scheduling cycles with the time of each phase (admins)."""
    return get("/scheduling/cycles", Page[Cycle], limit=limit)


def replay_cycle(
    cycle_id: int, *, policy: str | None = None, job_id: int | None = None, node: str | None = None
) -> Call[CycleReplay]:
    """Plan a recorded cycle again, by the recorded policy or the queue order `policy`; explain a job of it (admins)."""
    path = f"/scheduling/cycles/{cycle_id}/replay"
    return get(path, CycleReplay, policy=policy, job_id=job_id, node=node)


def policy_history(*, limit: int = 100) -> Call[Page[PolicyEdit]]:
    """Return the edits of the scheduling policy, newest first (admins)."""
    return get("/scheduling/policy/history", Page[PolicyEdit], limit=limit)


def exemptions() -> Call[Page[Exemption]]:
    """Return the exemptions from the rule of idle GPUs (admins)."""
    return get("/idle-exemptions", Page[Exemption])


def exempt(*, tenant: str | None = None, job_id: int | None = None, note: str = "") -> Call[Exemption]:
    """Exempt a tenant, or a job, from the rule of idle GPUs (admins)."""
    return write("POST", "/idle-exemptions", Exemption, {"tenant": tenant, "job_id": job_id, "note": note})


def end_exemption(exemption_id: int) -> Call[None]:
    """End an exemption (admins)."""
    return delete(f"/idle-exemptions/{exemption_id}")
