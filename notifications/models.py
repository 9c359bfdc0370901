"""Routes (where messages go), notices (facts that are worth a message) and deliveries (a notice to a route)."""

from datetime import time

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Func, Q
from django.db.models.functions import Now

from tenants.models import Tenant
from tenants.models.tenants import check_time_zone


class Kind(models.TextChoices):
    """The kinds of notices."""

    JOB_ENDED = "job_ended"  # completed or cancelled
    JOB_FAILED = "job_failed"
    JOB_ABOUT_TO_END = "job_about_to_end"  # by its time limit
    JOB_PREEMPTED = "job_preempted"
    BUDGET = "budget"  # 50, 80 or 100 % used
    RESERVATION_STARTING = "reservation_starting"
    RESERVATION_IDLE = "reservation_idle"
    RESERVATION_LOST_GPUS = "reservation_lost_gpus"
    RESERVATION_RELEASED = "reservation_released"
    INCIDENT = "incident"  # for admins
    TEST = "test"


# A test goes to one route, whatever it asks for.
CHOSEN_KINDS = tuple(kind.value for kind in Kind if kind != Kind.TEST)


class Channel(models.TextChoices):
    """How a route sends: through the Apprise library, or as a signed request."""

    APPRISE = "apprise"
    WEBHOOK = "webhook"


class DeliveryState(models.TextChoices):
    """The state of a delivery. `failed`: given up."""

    PENDING = "pending"
    SENT = "sent"
    FAILED = "failed"


MAX_DIGEST_MINUTES = 7 * 24 * 60


class Route(models.Model):
    """A target of a tenant or of a user, and the kinds that it gets. `target_shown`: the target without its secrets.
    Between `quiet_from` and `quiet_until` messages wait. `digest_minutes`: messages are collected for this long.
    `problem`: why the latest sends failed; `retry_at`: none starts before."""

    tenant = models.ForeignKey(Tenant, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    name = models.CharField(
        max_length=63,
        validators=[
            RegexValidator(r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?\Z", "lower-case letters, digits, dots and dashes")
        ],
    )
    channel = models.CharField(max_length=10, choices=Channel.choices)
    sealed_target = models.TextField()
    target_shown = models.CharField(max_length=300)
    kinds = ArrayField(models.CharField(max_length=30, choices=[(kind, kind) for kind in CHOSEN_KINDS]))
    is_enabled = models.BooleanField(default=True)
    time_zone = models.CharField(max_length=64, default="UTC", validators=[check_time_zone])
    quiet_from = models.TimeField(null=True, blank=True)
    quiet_until = models.TimeField(null=True, blank=True)
    digest_minutes = models.PositiveIntegerField(default=0, validators=[MaxValueValidator(MAX_DIGEST_MINUTES)])
    sealed_secret = models.TextField(blank=True, default="")
    sealed_previous_secret = models.TextField(blank=True, default="")
    previous_secret_until = models.DateTimeField(null=True, editable=False)
    failures = models.PositiveIntegerField(default=0, editable=False)
    failing_since = models.DateTimeField(null=True, editable=False)
    retry_at = models.DateTimeField(db_default=Now(), editable=False)
    problem = models.CharField(max_length=500, blank=True, default="", editable=False)
    last_sent_at = models.DateTimeField(null=True, editable=False)
    version = models.PositiveIntegerField(default=1, editable=False)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(tenant=None, user__isnull=False) | Q(tenant__isnull=False, user=None),
                name="route_of_tenant_or_user",
            ),
            models.UniqueConstraint(fields=["tenant", "channel", "name"], name="route_of_tenant_is_unique"),
            models.UniqueConstraint(fields=["user", "channel", "name"], name="route_of_user_is_unique"),
            models.CheckConstraint(
                condition=Q(quiet_from=None, quiet_until=None)
                | Q(quiet_from__isnull=False, quiet_until__isnull=False) & ~Q(quiet_from=F("quiet_until")),
                name="route_quiet_hours_complete",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.channel} {self.name}"

    def clean(self) -> None:
        """Require both ends of quiet hours, or neither. Fields that may be blank accept an empty text unchecked."""
        start, end = self.quiet_from, self.quiet_until
        if "" in (start, end) or (start is None) != (end is None) or (isinstance(start, time) and start == end):
            raise ValidationError({"quiet_until": "needs a start and an end that differ, or neither"})


class Notice(models.Model):
    """The outbox: a fact that is worth a message, written in the transaction of the fact. `key`: the fact's own name,
    so that it is written once. `expanded_at`: since then it has its
    deliveries."""

    kind = models.CharField(max_length=30, choices=Kind.choices)
    key = models.CharField(max_length=200, null=True, unique=True)
    tenant_id = models.BigIntegerField(null=True)
    user_id = models.BigIntegerField(null=True)
    subject_id = models.BigIntegerField(null=True)
    data = models.JSONField(default=dict)
    at = models.DateTimeField(db_default=Now())
    expanded_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["id"], condition=Q(expanded_at=None), name="notice_to_expand"),
            models.Index(fields=["at"], name="notice_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class Delivery(models.Model):
    """A notice to a route. `uid`: the stable id, the same in each attempt and replay. `next_at`: it is not sent before;
    while it is being sent, the time after which another process sends it again. `is_urgent`: it waits neither for quiet
    hours nor for a digest. `expires_at`: if it fails after this time, it is given up; set by the first failure."""

    uid = models.UUIDField(db_default=Func(function="gen_random_uuid"), unique=True, editable=False)
    notice = models.ForeignKey(Notice, on_delete=models.CASCADE, related_name="+")
    route = models.ForeignKey(Route, on_delete=models.CASCADE, related_name="+", db_index=False)
    state = models.CharField(max_length=10, choices=DeliveryState.choices, default=DeliveryState.PENDING)
    attempts = models.PositiveIntegerField(default=0)
    next_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(null=True)
    is_urgent = models.BooleanField(default=False)
    status_code = models.PositiveIntegerField(null=True)
    error = models.CharField(max_length=500, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "deliveries"
        constraints = [
            models.UniqueConstraint(fields=["notice", "route"], name="delivery_is_unique"),
            models.CheckConstraint(
                condition=Q(state=DeliveryState.PENDING, ended_at=None)
                | ~Q(state=DeliveryState.PENDING) & Q(ended_at__isnull=False),
                name="delivery_ended_if_final",
            ),
        ]
        indexes = [
            models.Index(
                fields=["route", "next_at"], condition=Q(state=DeliveryState.PENDING), name="delivery_pending"
            ),
            models.Index(fields=["route", "-id"], name="delivery_of_route"),
            models.Index(fields=["ended_at"], name="delivery_by_end"),
        ]

    def __str__(self) -> str:
        return f"delivery {self.uid}"


class Cursor(models.Model):
    """The one row with the last event of jobs that became notices."""

    id = models.PositiveSmallIntegerField(primary_key=True)
    event_id = models.BigIntegerField()

    def __str__(self) -> str:
        return f"event {self.event_id}"


class Heartbeat(models.Model):
    """The one row with the time at which a sender last worked."""

    id = models.PositiveSmallIntegerField(primary_key=True)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.at}"
