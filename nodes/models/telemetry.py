"""Tables of stored readings: samples, roll-ups and GPU-seconds (nodes/telemetry/samples.py), and holders of idle GPUs
(nodes/held_idle.py)."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class Sample(models.Model):
    """A kept reading: one per device in each GPUSCHED_SAMPLE_SECONDS, deleted after the retention time. `cell`: what
    the device was (nodes/health/gpu_status.py), for so many `seconds` before."""

    device = models.ForeignKey("nodes.Device", on_delete=models.CASCADE, related_name="samples")
    at = models.DateTimeField()
    cell = models.CharField(max_length=15)
    seconds = models.FloatField()
    utilisation_percent = models.SmallIntegerField(null=True)
    memory_used_mb = models.IntegerField(null=True)
    temperature_celsius = models.SmallIntegerField(null=True)
    power_watts = models.FloatField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["device", "at"], name="sample_once")]
        indexes = [models.Index(fields=["at"])]

    def __str__(self) -> str:
        return f"sample of {self.device_id}"


class Rollup(models.Model):
    """Five minutes of samples of a device, from `at` on; empty where no sample knew."""

    device = models.ForeignKey("nodes.Device", on_delete=models.CASCADE, related_name="rollups")
    at = models.DateTimeField()
    samples = models.SmallIntegerField()
    held_seconds = models.FloatField()
    busy_seconds = models.FloatField()
    utilisation_min = models.SmallIntegerField(null=True)
    utilisation_mean = models.FloatField(null=True)
    utilisation_max = models.SmallIntegerField(null=True)
    memory_min = models.IntegerField(null=True)
    memory_mean = models.FloatField(null=True)
    memory_max = models.IntegerField(null=True)
    temperature_min = models.SmallIntegerField(null=True)
    temperature_mean = models.FloatField(null=True)
    temperature_max = models.SmallIntegerField(null=True)
    power_min = models.FloatField(null=True)
    power_mean = models.FloatField(null=True)
    power_max = models.FloatField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["device", "at"], name="rollup_once")]
        indexes = [models.Index(fields=["at"])]

    def __str__(self) -> str:
        return f"roll-up of {self.device_id}"


class GpuClock(models.Model):
    """GPU-seconds of all devices by what they were, counted until a moment (nodes/telemetry/samples.py)."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    counted_until = models.DateTimeField()
    busy = models.FloatField()
    held_idle = models.FloatField()
    free = models.FloatField()
    unavailable = models.FloatField()

    def __str__(self) -> str:
        return f"GPU-seconds until {self.counted_until}"


class HeldIdle(models.Model):
    """A job whose GPUs have been idle `since` then, and what was done about it: `stage` warnings were given, or the end
    was reached, the last of them at `told_at`."""

    job = models.OneToOneField("jobs.Job", on_delete=models.CASCADE, primary_key=True, related_name="+")
    attempt = models.PositiveIntegerField()
    since = models.DateTimeField()
    policy = models.CharField(max_length=10)
    stage = models.PositiveSmallIntegerField()
    told_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"job {self.job_id} is idle since {self.since}"


class IdleExemption(models.Model):
    """A tenant, or a job, that may hold idle GPUs without being warned or ended."""

    tenant = models.OneToOneField("tenants.Tenant", on_delete=models.CASCADE, null=True, related_name="+")
    job = models.OneToOneField("jobs.Job", on_delete=models.CASCADE, null=True, related_name="+")
    note = models.CharField(max_length=200, blank=True)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(tenant__isnull=True, job__isnull=False) | Q(tenant__isnull=False, job__isnull=True),
                name="exemption_of_one",
            )
        ]

    def __str__(self) -> str:
        return f"exemption of {'tenant' if self.tenant_id else 'job'} {self.tenant_id or self.job_id}"


class MissingUser(models.Model):
    """A Unix user that a node did not have (or refused) when a job was to run as it; empty: of tenants that name
    none."""

    node = models.ForeignKey("nodes.Node", on_delete=models.CASCADE, related_name="missing_users")
    unix_user = models.CharField(max_length=64, blank=True)
    detail = models.CharField(max_length=300, help_text="What the agent said, with what to do")
    since = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "unix_user"], name="missing_user_once")]

    def __str__(self) -> str:
        return f"{self.node_id} has no user {self.unix_user or 'for tenants without one'}"


class HeldDay(models.Model):
    """GPU-seconds of one model that the jobs of one user in one tenant held on one day (UTC), and how many of them were
    idle, counted by the ticks of nodes/telemetry/samples.py. A shared device counts by its part, as in the ledger."""

    day = models.DateField()
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.CASCADE, related_name="+", db_index=False)
    user_id = models.BigIntegerField()
    gpu_model = models.CharField(max_length=200)
    held_seconds = models.FloatField()
    idle_seconds = models.FloatField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["day", "tenant", "user_id", "gpu_model"], name="held_day_once")]

    def __str__(self) -> str:
        return f"{self.tenant_id} held {self.gpu_model} on {self.day}"
