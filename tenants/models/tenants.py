"""Tenant, Quota, Membership, ApiToken, and the append-only ledger of use."""

import re
from functools import cache
from zoneinfo import available_timezones

import pghistory
import pgtrigger
from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q

from gpusched.lib.db.sql import query
from gpusched.protocol.job_request import MAX_RUNTIME_MINUTES
from gpusched.protocol.reasons import fix_plurals
from gpusched.protocol.states import Role


class Tier(models.TextChoices):
    """The order of tenants when none is below its guarantee: a higher tier comes before a lower one, whatever the
    shares."""

    PREMIUM = "premium"
    STANDARD = "standard"
    OPPORTUNISTIC = "opportunistic"


MAX_MODELS, MAX_GPUS = 50, 1_000_000
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1_000_000


def check_model_limits(limits: object) -> None:
    """Raise ValidationError unless the value is like {"A100": 16}: words of model names with whole numbers."""
    if not isinstance(limits, dict) or len(limits) > MAX_MODELS:
        raise ValidationError(f'must be an object like {{"A100": 16}} with at most {MAX_MODELS} models')
    for model, limit in limits.items():
        if not isinstance(model, str) or not re.fullmatch(r"[\w.+/()-]+( [\w.+/()-]+)*", model) or len(model) > 100:
            raise ValidationError("models are named by words as in the name that the driver gives, like A100")
        if not isinstance(limit, int) or isinstance(limit, bool) or not 0 <= limit <= MAX_GPUS:
            raise ValidationError(f"the limit of {model} must be a whole number from 0 to {MAX_GPUS}")


def check_time_zone(name: str) -> None:
    """Raise ValidationError unless the value is a time zone of the IANA database, like Europe/Berlin."""
    if name not in _time_zones():
        raise ValidationError("must be a time zone like Europe/Berlin or UTC")


@cache
def _time_zones() -> frozenset[str]:
    """Return the names of the time zones that both Python and PostgreSQL know. Each has a database of its own, and a
    statement over many rows fails for all of them if PostgreSQL does not know the zone of one. Opens hundreds of
    files."""
    of_postgresql = {row["name"] for row in query("SELECT name FROM pg_timezone_names")}
    return frozenset((available_timezones() & of_postgresql) - {"localtime"})  # which depends on the machine


@pghistory.track()
class Tenant(models.Model):
    """A team that shares the cluster."""

    name = models.CharField(
        max_length=63,
        unique=True,
        validators=[RegexValidator(r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z", "lower-case letters, digits and dashes")],
        help_text="Short name used in commands and the API",
    )
    display_name = models.CharField(max_length=200, blank=True)
    weight = models.FloatField(
        default=1.0,
        validators=[MinValueValidator(MIN_WEIGHT), MaxValueValidator(MAX_WEIGHT)],
        help_text="Twice the weight, twice the share",
    )
    tier = models.CharField(max_length=20, choices=Tier.choices, default=Tier.STANDARD)
    allow_preemption = models.BooleanField(default=True, help_text="Running jobs of this tenant may be preempted")
    can_preempt_others = models.BooleanField(default=True, help_text="Jobs of this tenant may preempt others")
    preemption_budget_per_hour = models.PositiveIntegerField(
        null=True, blank=True, help_text="So many of its jobs may be preempted within an hour (empty: any number)"
    )
    unix_user = models.CharField(
        max_length=64,
        blank=True,
        default="",
        db_default="",
        validators=[RegexValidator(r"^[A-Za-z_][\w.@-]*\Z", "a name of a Unix user, as nodes know it", flags=re.ASCII)],
        help_text="Its jobs run as this user of each node (empty: as the node says)",
    )
    time_zone = models.CharField(
        max_length=64, default="UTC", db_default="UTC", validators=[check_time_zone], help_text="Its days begin there"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    archived_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="Since then it accepts no jobs, and its guarantee is void"
    )

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(weight__gt=0, weight__lte=MAX_WEIGHT), name="tenant_weight_bounded"),
            models.CheckConstraint(condition=Q(tier__in=Tier.values), name="tenant_tier_known"),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        if self.preemption_budget_per_hour is not None and not self.allow_preemption:
            text = "would do nothing: without allow_preemption none of its jobs is ever preempted"
            raise ValidationError({"preemption_budget_per_hour": text})


@pghistory.track()
class Quota(models.Model):
    """The limits of a tenant (empty: no limit), and its guarantee."""

    tenant = models.OneToOneField(Tenant, on_delete=models.CASCADE, related_name="quota")
    max_gpus = models.PositiveIntegerField(null=True, blank=True)
    max_gpu_memory_mb = models.PositiveBigIntegerField(null=True, blank=True)
    max_cpu_cores = models.PositiveIntegerField(null=True, blank=True)
    max_memory_mb = models.PositiveBigIntegerField(null=True, blank=True)
    max_concurrent_jobs = models.PositiveIntegerField(null=True, blank=True)
    max_gpus_per_user = models.PositiveIntegerField(
        null=True, blank=True, help_text="What the jobs of each one of its users may hold together"
    )
    max_gpus_by_model = models.JSONField(
        default=dict,
        db_default=models.Value({}, output_field=models.JSONField()),
        blank=True,
        validators=[check_model_limits],
        help_text='Per GPU model, like {"A100": 16}',
    )
    max_queued_jobs = models.PositiveIntegerField(
        null=True, blank=True, help_text="Empty: as GPUSCHED_MAX_QUEUED_JOBS_PER_TENANT says"
    )
    max_deferred_jobs = models.PositiveIntegerField(
        null=True, blank=True, help_text="Jobs that cannot start yet; empty: GPUSCHED_MAX_DEFERRED_JOBS_PER_TENANT"
    )
    default_runtime_minutes = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_RUNTIME_MINUTES)],
        help_text="The time limit, in minutes, of jobs that are submitted without one; empty: they have none",
    )
    guaranteed_gpus = models.PositiveIntegerField(default=0, help_text="Served first while it holds fewer than these")
    version = models.PositiveIntegerField(default=1, editable=False)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(max_gpus__isnull=True) | Q(guaranteed_gpus__lte=F("max_gpus")),
                name="quota_guarantee_within_limit",
                violation_error_message="The guarantee cannot be larger than the limit of GPUs.",
            )
        ]

    def __str__(self) -> str:
        return f"quota of {self.tenant.name}"

    def clean(self) -> None:
        """Reject limits without effect (A07): a partial limit that is not below the total."""
        idle: dict[str, str] = {}
        maximum = self.max_gpus
        if maximum is not None and self.max_gpus_per_user is not None and self.max_gpus_per_user >= maximum:
            idle["max_gpus_per_user"] = f"would do nothing: all users together may hold {maximum}"
        limits = self.max_gpus_by_model if isinstance(self.max_gpus_by_model, dict) else {}
        for model, limit in limits.items():
            if maximum is not None and isinstance(limit, int) and limit >= maximum:
                idle["max_gpus_by_model"] = (
                    f"{model}: {limit} would do nothing: all models together are limited to {maximum}"
                )
        if len({str(model).lower() for model in limits}) < len(limits):
            idle["max_gpus_by_model"] = "names a model twice; capitals make no difference"
        if idle:
            raise ValidationError(idle)


class Membership(models.Model):
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=[(r, r) for r in Role], default=Role.MEMBER)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "tenant"], name="membership_once"),
            models.CheckConstraint(condition=Q(role__in=list(Role)), name="membership_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.tenant}"


class ApiToken(models.Model):
    """An API token. `prefix` identifies the row, `secret_hash` (SHA-256 of a 256-bit random secret) proves it."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, null=True, blank=True, help_text="Limited to it")
    made_by = models.ForeignKey(
        "self", on_delete=models.CASCADE, null=True, blank=True, editable=False, db_index=False,
        help_text="The token that made it",
    )  # fmt: skip
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12, unique=True, editable=False)
    secret_hash = models.CharField(max_length=64, editable=False)
    scopes = ArrayField(models.CharField(max_length=10), default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.CheckConstraint(condition=Q(scopes__contained_by=["read", "write", "admin"]), name="token_scopes")
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class LoginAttempts(models.Model):
    """Login attempts by name, by address, or by both, since `began_at` (tenants/auth/login_throttle.py)."""

    key = models.CharField(max_length=60, primary_key=True)
    count = models.PositiveIntegerField()
    began_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.key


class OneTimePassword(models.Model):
    """Marks the password of an account as one that must be replaced at the next login (tenants/auth/passwords.py).

    `digest` is of the hash that Django stores: a password that was set in another way since is not a one-time one."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="one_time_password"
    )
    digest = models.CharField(max_length=64)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"one-time password of user {self.user_id}"


@pghistory.track(pghistory.InsertEvent(), pghistory.UpdateEvent(), pghistory.DeleteEvent(), exclude=["sealed"])
class Secret(models.Model):
    """A sealed text that only jobs of the tenant that name it can read (tenants/secrets.py). In no admin
    and no answer; its history has no values, sealed or not."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+", db_index=False)
    name = models.CharField(max_length=100)
    sealed = models.TextField()
    set_by = models.CharField(max_length=150)
    set_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="secret_once")]

    def __str__(self) -> str:
        return f"secret {self.name} of {self.tenant}"


class UsageEntry(models.Model):
    """The use of a device (or part of its memory) by a rank from start to end. Written once, at its release.

    Job and device are kept as plain numbers and words: the ledger outlives both."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT)
    user_id = models.BigIntegerField(null=True)
    job_id = models.BigIntegerField()
    attempt = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    device_id = models.BigIntegerField(null=True)
    node = models.CharField(max_length=253)
    gpu_model = models.CharField(max_length=200, blank=True)
    memory_mb = models.PositiveIntegerField(null=True, help_text="Empty: the whole device")
    gpus = models.FloatField(help_text="1 for a whole device, the part of its memory for a shared one")
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    cause = models.CharField(max_length=30)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job_id", "attempt", "rank", "device_id"], name="usage_charged_once"),
            models.CheckConstraint(condition=Q(ended_at__gte=F("started_at")), name="usage_not_negative"),
        ]
        # Covers the sum of a budget, which cycles read: of a million entries it takes 0.3 s instead of 2.5 s.
        indexes = [
            models.Index(fields=["tenant", "ended_at"], include=["started_at", "gpus", "id"], name="usage_of_tenant")
        ]
        triggers = [pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)]

    def __str__(self) -> str:
        return fix_plurals(f"{self.gpus} GPUs for job {self.job_id}")


class UsageBalance(models.Model):
    """GPU-seconds of a tenant with exponential decay, as of a moment: the past half of its share. What it holds now
    is added when the balance is read."""

    tenant = models.OneToOneField(Tenant, on_delete=models.CASCADE, related_name="usage_balance")
    gpu_seconds = models.FloatField(default=0.0)
    as_of = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.gpu_seconds:.0f} GPU-seconds"
