"""Histogram: durations counted by any process, scraped from one. LoginAttempts: how many in a window."""

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
    """Attempts of a name, of an address, or of both, since `began_at` (gpusched/lib/logins.py)."""

    key = models.CharField(max_length=60, primary_key=True)
    count = models.PositiveIntegerField()
    began_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.key
