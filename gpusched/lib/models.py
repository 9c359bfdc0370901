"""What belongs to no app: Histogram (durations, counted by any process), LoginAttempts, OneTimePassword, KeptAnswer (to
repeated requests), and AuditEntry (what was changed by whom)."""

import pgtrigger
from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models


class Histogram(models.Model):
    """Counts of observed seconds by bucket (gpusched/lib/histograms.py); `counts` has one more for +Inf."""

    name = models.CharField(max_length=60)
    label = models.CharField(max_length=60, blank=True)
    counts = ArrayField(models.BigIntegerField())
    total_seconds = models.FloatField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["name", "label"], name="histogram_once")]

    def __str__(self) -> str:
        return f"{self.name} {self.label}"


class LoginAttempts(models.Model):
    """Attempts of a name, of an address, or of both, since `began_at` (gpusched/lib/auth/login_throttle.py)."""

    key = models.CharField(max_length=60, primary_key=True)
    count = models.PositiveIntegerField()
    began_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.key


class OneTimePassword(models.Model):
    """Marks the password of an account as one that must be replaced at the next login (gpusched/lib/auth/passwords.py).

    `digest` is of the hash that Django stores: a password that was set in another way since is not a one-time one."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="one_time_password"
    )
    digest = models.CharField(max_length=64)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"one-time password of user {self.user_id}"


class KeptAnswer(models.Model):
    """What a POST with an Idempotency-Key was answered, for a day (jobs/submit/idempotency.py)."""

    caller = models.CharField(max_length=60)
    key = models.CharField(max_length=255)
    request_hash = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField()
    content_type = models.CharField(max_length=100)
    sealed = models.TextField()
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["caller", "key"], name="kept_answer_once")]

    def __str__(self) -> str:
        return self.key


class AuditEntry(models.Model):
    """One write (gpusched/lib/audit/log.py); never changed, never deleted."""

    at = models.DateTimeField()
    actor = models.CharField(max_length=150)
    via = models.CharField(max_length=30)
    agent = models.CharField(max_length=200, blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    action = models.CharField(max_length=60)
    subject = models.CharField(max_length=200)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)

    class Meta:
        indexes = [models.Index(fields=["subject", "id"], name="audit_of_subject")]
        triggers = [pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)]

    def __str__(self) -> str:
        return f"{self.action} {self.subject}"
