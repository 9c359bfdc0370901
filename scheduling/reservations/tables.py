"""Tables of reservations: who has reserved what and when, the reserved devices, and the attempts that ran there."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from tenants.models import Tenant


class ReservationState(models.TextChoices):
    """`refused`: an occurrence of a recurring reservation for which there was no room. `released`: given back before
    its end, by its owner or because it was not used."""

    PLANNED = "planned"
    ACTIVE = "active"
    EXPIRED = "expired"
    RELEASED = "released"
    CANCELLED = "cancelled"
    REFUSED = "refused"


OPEN_STATES = (ReservationState.PLANNED, ReservationState.ACTIVE)


class Recurrence(models.TextChoices):
    """Each occurrence is a row of its own (recurrence.py)."""

    DAILY = "daily"
    WEEKLY = "weekly"


class Source(models.TextChoices):
    """By whom it was booked; the server itself books for pre-warming."""

    ADMIN = "admin"
    USER = "user"
    AGENT = "agent"
    PREWARM = "prewarm"


class Reservation(models.Model):
    """GPUs for a tenant from `starts_at` until before `ends_at`. `user_ids`: only their jobs may use it; empty: all of
    the tenant. A soft one (`is_hard` False) is a preference of the scheduler. `is_lease`: it began at once, without a
    job. `series`: the first occurrence, if it recurs. `claimed_at`: the first start of a job in it. `problem`: why it
    was refused or released, or what it lacks. `noticed_at`: when its jobs were warned of its end,
    `idle_noticed_at`: when its owner was warned of its release because it is idle; if none is announced, since
    when it is idle."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True)
    user_ids = ArrayField(models.BigIntegerField(), default=list)
    gpus = models.PositiveIntegerField()
    gpu_models = ArrayField(models.CharField(max_length=200), default=list)
    gpu_memory_mb = models.PositiveIntegerField(null=True)
    node_selector = models.JSONField(default=dict)
    one_node = models.BooleanField(default=True)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    recurrence = models.CharField(max_length=10, blank=True, default="", choices=Recurrence.choices)
    series = models.ForeignKey("self", on_delete=models.CASCADE, null=True, related_name="+")
    is_hard = models.BooleanField(default=True)
    is_lease = models.BooleanField(default=False)
    source = models.CharField(max_length=10, choices=Source.choices, default=Source.USER)
    confidence = models.FloatField(null=True)
    note = models.CharField(max_length=200, blank=True, default="")
    state = models.CharField(max_length=10, choices=ReservationState.choices, default=ReservationState.PLANNED)
    problem = models.CharField(max_length=500, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now())
    claimed_at = models.DateTimeField(null=True)
    noticed_at = models.DateTimeField(null=True)
    idle_noticed_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    is_no_show = models.BooleanField(default=False)

    class Meta:
        ordering = ["starts_at", "id"]
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gte=F("starts_at")), name="reservation_has_time"),
            models.CheckConstraint(condition=Q(gpus__gte=1), name="reservation_has_gpus"),
            models.CheckConstraint(condition=Q(state__in=ReservationState.values), name="reservation_state_known"),
            models.CheckConstraint(
                condition=Q(state__in=OPEN_STATES, ended_at=None) | ~Q(state__in=OPEN_STATES) & ~Q(ended_at=None),
                name="reservation_ended_if_final",
            ),
        ]
        indexes = [
            models.Index(fields=["starts_at"], condition=Q(state__in=OPEN_STATES), name="reservation_open"),
            models.Index(fields=["user", "ended_at"], condition=Q(is_no_show=True), name="reservation_no_show"),
            models.Index(fields=["-starts_at", "-id"], name="reservation_latest"),
        ]

    def __str__(self) -> str:
        return f"reservation {self.pk} of {self.tenant}"


class ReservedDevice(models.Model):
    """A device of a reservation, with its part of the CPU and memory of its node. `is_live`: hard, and not ended;
    PostgreSQL rejects two live ones of a device at one time (reserved_device_once of the migration). `charged_to`: its
    idle time until then is in the ledger, in `pieces` entries; `is_settled`: all of it."""

    reservation = models.ForeignKey(Reservation, on_delete=models.CASCADE, related_name="devices")
    # Plain numbers: a reservation outlives the devices and nodes that it once had.
    device_id = models.BigIntegerField()
    node_id = models.BigIntegerField()
    cpu_milli = models.PositiveIntegerField("CPU in millicores")
    memory_mb = models.PositiveBigIntegerField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    is_live = models.BooleanField()
    charged_to = models.DateTimeField()
    pieces = models.PositiveIntegerField(default=0)
    is_settled = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gte=F("starts_at")), name="reserved_device_has_time"),
        ]
        indexes = [
            models.Index(fields=["charged_to"], condition=Q(is_settled=False), name="reserved_device_unsettled"),
        ]

    def __str__(self) -> str:
        return f"device {self.device_id} of reservation {self.reservation_id}"


class ReservationUse(models.Model):
    """An attempt that started in the capacity of a reservation."""

    reservation = models.ForeignKey(Reservation, on_delete=models.CASCADE, related_name="uses")
    job_id = models.BigIntegerField()
    attempt = models.PositiveIntegerField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job_id", "attempt"], name="reservation_use_once")]

    def __str__(self) -> str:
        return f"attempt {self.job_id}.{self.attempt} in reservation {self.reservation_id}"
