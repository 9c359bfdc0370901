"""Histogram: durations counted by any process, scraped from one."""

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
