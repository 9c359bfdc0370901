"""Cycle: what one scheduling cycle did and how long each phase took."""

from django.db import models


class Cycle(models.Model):
    """Kept when the cycle did something, and once a minute otherwise. Durations in milliseconds."""

    started_at = models.DateTimeField(db_index=True)
    trigger = models.CharField(max_length=10)
    worker = models.CharField(max_length=100)
    pending = models.PositiveIntegerField()
    placed = models.PositiveIntegerField()
    stale = models.PositiveIntegerField(help_text="Decided, but changed by someone else before the commit: skipped")
    reasons_written = models.PositiveIntegerField()
    reserved_job_id = models.BigIntegerField(null=True)
    reserved_at = models.DateTimeField(null=True)
    sweep_ms = models.FloatField()
    snapshot_ms = models.FloatField()
    plan_ms = models.FloatField()
    commit_ms = models.FloatField()

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"cycle at {self.started_at}"
