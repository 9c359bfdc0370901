"""Tables of predictions: the ends under each key, the ranges, how each prediction did, and which tenants use them."""

from django.db import models
from django.db.models import Q

from tenants.models import Tenant


class RunHistory(models.Model):
    """The last ends under one key, and their summary (prediction/ends.py). `ends`: [at, value, is observed, user] each.
    `version`: of the learning that wrote the row."""

    key = models.CharField(max_length=300, primary_key=True)
    ends = models.JSONField()
    at = models.FloatField()
    count = models.PositiveIntegerField()
    weight = models.FloatField()
    median = models.FloatField()
    spread = models.FloatField()
    version = models.BigIntegerField(db_index=True)

    def __str__(self) -> str:
        return f"ends of {self.key}"


class RangeTracker(models.Model):
    """The range of one group of a tenant's predictions (prediction/ranges.py)."""

    pk = models.CompositePrimaryKey("tenant_id", "group")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+", db_index=False)
    group = models.PositiveSmallIntegerField()
    low = models.FloatField()
    high = models.FloatField()
    count = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"range of group {self.group}"


class PredictionScore(models.Model):
    """A prediction and its outcome, in seconds. `baseline`: the median of the user before. Kept for 30 days."""

    attempt_id = models.BigIntegerField(primary_key=True)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+", db_index=False)
    ended_at = models.DateTimeField()
    seconds = models.FloatField()
    p10 = models.FloatField()
    p50 = models.FloatField()
    p90 = models.FloatField()
    baseline = models.FloatField()

    class Meta:
        indexes = [models.Index(fields=["tenant", "ended_at"], name="prediction_score_by_tenant")]

    def __str__(self) -> str:
        return f"prediction of attempt {self.attempt_id}"


class TenantPrediction(models.Model):
    """Whether the scheduler uses the predictions of a tenant, and the figures that decided it (history/switch.py)."""

    tenant = models.OneToOneField(Tenant, on_delete=models.CASCADE, primary_key=True, related_name="+")
    is_on = models.BooleanField(default=False)
    changed_at = models.DateTimeField()
    ends = models.PositiveIntegerField()
    loss = models.FloatField()
    baseline_loss = models.FloatField()

    def __str__(self) -> str:
        return f"predictions {'on' if self.is_on else 'off'}"


class LearningProgress(models.Model):
    """The last event that was learned from, in one row. `version` counts the batches that changed something."""

    event_id = models.BigIntegerField(default=0)
    version = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="learning_progress_one_row")]

    def __str__(self) -> str:
        return f"learned until event {self.event_id}"
