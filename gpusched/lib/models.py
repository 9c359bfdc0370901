"""Tables of no app: histograms, which any process counts, and the audit log."""

import pgtrigger
from django.contrib.postgres.fields import ArrayField
from django.db import models


class Histogram(models.Model):
    """Counts of observed seconds by bucket (gpusched/lib/histograms.py). The last of `counts` is +Inf."""

    name = models.CharField(max_length=60)
    label = models.CharField(max_length=60, blank=True)
    counts = ArrayField(models.BigIntegerField())
    total_seconds = models.FloatField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["name", "label"], name="histogram_once")]

    def __str__(self) -> str:
        return f"{self.name} {self.label}"


class AuditEntry(models.Model):
    """A write (gpusched/lib/audit/log.py). Rows are never changed or deleted."""

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
