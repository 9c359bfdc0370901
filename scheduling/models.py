"""Cycle: what one scheduling cycle did and how long each phase took. Claim: what a job waits for by preemption."""

from django.db import models

from jobs.models import Job


class Cycle(models.Model):
    """Kept when the cycle did something, and once a minute otherwise. Durations in milliseconds."""

    started_at = models.DateTimeField(db_index=True)
    trigger = models.CharField(max_length=10)
    worker = models.CharField(max_length=100)
    pending = models.PositiveIntegerField()
    placed = models.PositiveIntegerField()
    preempted = models.PositiveIntegerField(default=0, help_text="Jobs that were told to stop for others")
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


class Claim(models.Model):
    """A waiting job that others were stopped for, and the place that it was promised. Kept until it starts there."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="+")
    made_at = models.DateTimeField()
    rule = models.CharField(max_length=10)
    ranks = models.JSONField()

    class Meta:
        ordering = ["made_at", "job_id"]

    def __str__(self) -> str:
        return f"claim of job {self.job_id}"
