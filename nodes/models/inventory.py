"""Node, Device, Assignment, Allocation and readings. Triggers keep what a device holds within what it has (A18)."""

import pgtrigger
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from gpusched.protocol.states import DeviceHealth, NodeIntent, NodeState, RankState
from jobs.models import Attempt, Job
from nodes.models import triggers as models_triggers


class Node(models.Model):
    """A machine with an agent. `state` is what is observed, `intent` what an admin wants."""

    name = models.CharField(max_length=253)
    node_key = models.CharField(max_length=64, editable=False)
    credential_prefix = models.CharField(max_length=12, unique=True, editable=False)
    credential_hash = models.CharField(max_length=64, editable=False)
    next_credential_hash = models.CharField(
        max_length=64, blank=True, default="", db_default="", editable=False,
        help_text="Of the secret that replaces the present one when it is used first (nodes/inventory/rotation.py)",
    )  # fmt: skip
    credential_at = models.DateTimeField(null=True, editable=False, help_text="Of its issue; empty: when it joined")
    rotation_asked_at = models.DateTimeField(null=True, editable=False)
    state = models.CharField(max_length=10, default=NodeState.JOINED)
    intent = models.CharField(max_length=10, default=NodeIntent.OPEN, choices=[(i, i) for i in NodeIntent])
    intent_note = models.CharField(max_length=200, blank=True, default="")
    pretend = models.BooleanField(default=False)
    hostname = models.CharField(max_length=253, blank=True, default="")
    cpu_cores = models.PositiveIntegerField(default=0)
    memory_mb = models.PositiveBigIntegerField(default=0)
    labels = models.JSONField(default=dict, blank=True, help_text="As its agent reports them")
    admin_labels = models.JSONField(
        default=dict, blank=True, db_default=models.Value({}, output_field=models.JSONField()),
        help_text="Set by admins; over a label of the agent with the same name they win",
    )  # fmt: skip
    taints = models.JSONField(
        default=list, blank=True, db_default=models.Value([], output_field=models.JSONField()),
        help_text="Keep jobs off that do not tolerate them",
    )  # fmt: skip
    isolation = models.JSONField(
        default=dict, db_default=models.Value({}, output_field=models.JSONField()), blank=True,
        help_text="How it keeps ranks apart, as its agent tells",
    )  # fmt: skip
    boot_id = models.CharField(max_length=64, blank=True, default="")
    agent_version = models.CharField(max_length=30, blank=True, default="")
    driver_version = models.CharField(max_length=50, blank=True, default="")
    runtimes = models.JSONField(
        default=dict, blank=True, db_default=models.Value({}, output_field=models.JSONField()),
        help_text="Container runtimes that answer there, and their versions",
    )  # fmt: skip
    hints = models.JSONField(
        default=list, blank=True, db_default=models.Value([], output_field=models.JSONField()),
        help_text="What its agent finds not well there, and what to do about it",
    )  # fmt: skip
    joined_at = models.DateTimeField()
    let_in_by = models.CharField(
        max_length=12, blank=True, default="", db_default="", editable=False,
        help_text="Prefix of the join token with which it joined last",
    )  # fmt: skip
    last_seen_at = models.DateTimeField(null=True)
    clock_off_seconds = models.FloatField(null=True, help_text="By which its clock is ahead of the server's")
    # Kept for its history; everything that lists or counts nodes leaves it out.
    removed_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["name"], name="node_name_once", condition=Q(removed_at=None)),
            models.UniqueConstraint(fields=["node_key"], name="node_key_once", condition=Q(removed_at=None)),
            models.CheckConstraint(condition=Q(state__in=list(NodeState)), name="node_state_known"),
            models.CheckConstraint(condition=Q(intent__in=list(NodeIntent)), name="node_intent_known"),
        ]
        triggers = [models_triggers.OF_NODES]

    def __str__(self) -> str:
        return self.name


class JoinToken(models.Model):
    """Lets nodes join until it expires; hashed like an API token."""

    prefix = models.CharField(max_length=12, unique=True)
    secret_hash = models.CharField(max_length=64)
    created_by = models.CharField(max_length=150, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.prefix}…"


class Device(models.Model):
    """A GPU. `held_whole` and `held_mb` are kept by a trigger on Allocation and bounded by CHECK constraints, so that
    no code path can hand a device out twice."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="devices")
    uuid = models.CharField(max_length=80)
    index = models.PositiveIntegerField()
    model = models.CharField(max_length=200)
    memory_mb = models.PositiveIntegerField(null=True)
    pci_bus_id = models.CharField(max_length=32, blank=True, default="")
    numa_node = models.PositiveSmallIntegerField(null=True)
    nvlink_island = models.PositiveSmallIntegerField(null=True)
    mig_parent = models.CharField(max_length=80, null=True, help_text="The UUID of the GPU that this is an instance of")
    mig_slices = models.PositiveSmallIntegerField(null=True)
    health = models.CharField(max_length=15, default=DeviceHealth.OK)
    health_note = models.CharField(max_length=200, blank=True, default="", db_default="", help_text="Empty if well")
    is_slowed = models.BooleanField(default=False, db_default=False, help_text="Slowed down by its own hardware")
    cool_since = models.DateTimeField(
        null=True, help_text="Hot, and all readings since then were cool (nodes/health/thermal.py)"
    )
    known_since = models.DateTimeField(db_default=Now(), help_text="GPU-seconds are counted from then on")
    held_whole = models.SmallIntegerField(default=0)
    held_mb = models.IntegerField(default=0)

    class Meta:
        ordering = ["node_id", "index"]
        constraints = [
            models.UniqueConstraint(fields=["node", "uuid"], name="device_once_per_node"),
            models.CheckConstraint(condition=Q(health__in=list(DeviceHealth)), name="device_health_known"),
            models.CheckConstraint(
                condition=Q(held_whole__gte=0, held_whole__lte=1, held_mb__gte=0)
                & (Q(held_mb=0) | Q(held_whole=0, held_mb__lte=F("memory_mb"))),
                name="device_not_overheld",
            ),
        ]
        triggers = [models_triggers.OF_DEVICES]

    def __str__(self) -> str:
        return f"{self.node.name}:{self.index}"


class Assignment(models.Model):
    """A rank of an attempt on a node, with the CPU and memory that it takes there until it has ended."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="assignments")
    # The attempt's job: PostgreSQL looks for that one already, and "assignment_once" is its index.
    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="assignments", db_index=False, db_constraint=False
    )
    number = models.PositiveIntegerField(help_text="The attempt's number")
    rank = models.PositiveIntegerField()
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="assignments")
    cpu_milli = models.PositiveIntegerField()
    memory_mb = models.PositiveBigIntegerField()
    device_ids = models.JSONField(default=list, help_text="Kept after the allocations are given back")
    state = models.CharField(max_length=10, default=RankState.ASSIGNED)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    pid = models.PositiveIntegerField(null=True)
    exit_code = models.IntegerField(null=True)
    signal = models.IntegerField(null=True)
    reason = models.CharField(max_length=30, blank=True, default="")
    detail = models.TextField(blank=True, default="")
    peak_memory_mb = models.PositiveIntegerField(null=True)
    log_bytes = models.BigIntegerField(null=True, help_text="Final size of the log; empty while it may grow")
    missing_since = models.DateTimeField(null=True, help_text="The agent's messages do not name it since then")
    limit_version = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Of the job's time limits the one that its agent says is in force there"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "number", "rank"], name="assignment_once"),
            models.CheckConstraint(condition=Q(state__in=list(RankState)), name="assignment_state_known"),
            models.CheckConstraint(
                condition=(Q(state=RankState.ENDED) & Q(ended_at__isnull=False))
                | (~Q(state=RankState.ENDED) & Q(ended_at__isnull=True)),
                name="assignment_ended_if_ended",
            ),
        ]
        indexes = [
            models.Index(fields=["node"], name="assignment_live", condition=~Q(state=RankState.ENDED)),
            models.Index(
                fields=["node", "ended_at"],
                name="assignment_faults",
                condition=Q(reason__in=["node_fault", "supervisor_lost"]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id}.{self.number}.{self.rank}"


_COUNT_HOLDS = """
    UPDATE nodes_device d
       SET held_whole = d.held_whole {sign} n.whole, held_mb = d.held_mb {sign} n.mb
      FROM (SELECT device_id, count(*) FILTER (WHERE memory_mb IS NULL) AS whole,
                   coalesce(sum(memory_mb), 0) AS mb
              FROM {rows} GROUP BY device_id) n
     WHERE d.id = n.device_id;
    RETURN NULL;
"""


class Allocation(models.Model):
    """A device, or part of its memory, that an assignment holds now. Rows exist only while held; what was held in the
    past stands in the usage ledger."""

    # "allocation_device_once" is its index.
    assignment = models.ForeignKey(Assignment, on_delete=models.CASCADE, related_name="allocations", db_index=False)
    device = models.ForeignKey(Device, on_delete=models.PROTECT, related_name="allocations")
    memory_mb = models.PositiveIntegerField(null=True, help_text="Empty: the whole device")
    since = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["device"], name="allocation_whole_once", condition=Q(memory_mb=None)),
            models.UniqueConstraint(fields=["assignment", "device"], name="allocation_device_once"),
            models.CheckConstraint(condition=Q(memory_mb=None) | Q(memory_mb__gt=0), name="allocation_some_memory"),
        ]
        triggers = [
            pgtrigger.Trigger(
                name="count_taken",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                referencing=pgtrigger.Referencing(new="taken"),  # type: ignore[no-untyped-call]
                func=_COUNT_HOLDS.format(sign="+", rows="taken"),
            ),
            pgtrigger.Trigger(
                name="count_given_back",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Delete,
                referencing=pgtrigger.Referencing(old="given_back"),  # type: ignore[no-untyped-call]
                func=_COUNT_HOLDS.format(sign="-", rows="given_back"),
            ),
            pgtrigger.Protect(name="no_update", operation=pgtrigger.Update),
        ]

    def __str__(self) -> str:
        return f"{self.device_id} held by {self.assignment_id}"


class Reading(models.Model):
    """The latest reading of a device. Empty fields are unknown. A separate table because it is rewritten each
    second."""

    device = models.OneToOneField(Device, on_delete=models.CASCADE, primary_key=True, related_name="reading")
    read_at = models.DateTimeField()
    idle_since = models.DateTimeField(null=True, help_text="Each reading since then said 0 %; empty: the latest not")
    quiet_since = models.DateTimeField(null=True, help_text="Since then all were under held_idle_percent, with no gap")
    utilisation_percent = models.SmallIntegerField(null=True)
    memory_used_mb = models.IntegerField(null=True)
    temperature_celsius = models.SmallIntegerField(null=True)
    power_watts = models.FloatField(null=True)
    power_limit_watts = models.IntegerField(null=True)
    sm_clock_mhz = models.IntegerField(null=True)
    memory_clock_mhz = models.IntegerField(null=True)
    ecc_corrected = models.BigIntegerField(null=True)
    ecc_uncorrected = models.BigIntegerField(null=True)
    throttle_reasons = models.BigIntegerField(null=True)
    process_count = models.IntegerField(null=True)
    occupancy = models.CharField(max_length=10, null=True, help_text="clear, dirty, foreign or lost; empty: unknown")
    occupant = models.CharField(max_length=200, blank=True, default="", db_default="")

    def __str__(self) -> str:
        return f"reading of {self.device_id}"


class Incident(models.Model):
    """When a node or a device was unwell, and why. Only triggers write it (nodes/models/triggers.py), whatever changes
    the health of a device, the state of a node or what admins want of it."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="incidents")
    device = models.ForeignKey(Device, on_delete=models.CASCADE, null=True, related_name="incidents")
    kind = models.CharField(max_length=15, help_text="A health of devices; of nodes node_lost, cordoned or draining")
    cause = models.CharField(max_length=200, blank=True)
    since = models.DateTimeField()
    until = models.DateTimeField(null=True, help_text="Empty: it lasts")

    class Meta:
        ordering = ["-since", "-id"]
        constraints = [
            models.UniqueConstraint(fields=["device"], name="incident_open_once", condition=Q(until=None)),
        ]
        indexes = [models.Index(fields=["-since", "-id"], name="incident_latest")]

    def __str__(self) -> str:
        return f"{self.kind} since {self.since}"


class ListenerLease(models.Model):
    """Since when some web process has been able to hear agents without a break: silence of a node counts only from
    then, so that an outage of the control plane never looks like the death of every node."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    since = models.DateTimeField()
    seen_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"listening since {self.since}"
