"""Tables of billing: refunds of ledger entries, rates and budgets."""

import pghistory
import pgtrigger
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from gpusched.protocol import amounts


class UsageRefund(models.Model):
    """The refund of a ledger entry whose attempt ended by a node fault. The entry itself stays, so that the ledger is
    wall time x GPUs in any case."""

    entry = models.OneToOneField("tenants.UsageEntry", on_delete=models.PROTECT, related_name="refund")
    reason = models.CharField(max_length=30)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        triggers = [pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)]

    def __str__(self) -> str:
        return f"refund of {self.entry_id}: {self.reason}"


class Rate(models.Model):
    """The price of a GPU-hour of a model from `starts_at` until before `ends_at`. PostgreSQL rejects overlapping rates
    of a model (rate_no_overlap of the migration). Past rates never change, so no bill changes afterwards."""

    gpu_model = models.CharField(
        max_length=100, help_text="Words of the driver's name, like A100; * is every other model"
    )
    price_per_gpu_hour = models.DecimalField(max_digits=12, decimal_places=4, validators=[MinValueValidator(0)])
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(null=True, blank=True)
    # The next rate set `ends_at` of this one, which has no end of its own again if that one is deleted.
    ends_with_next = models.BooleanField(default=False, db_default=False, editable=False)
    created_by = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["gpu_model", "starts_at"]
        constraints = [
            models.CheckConstraint(condition=Q(price_per_gpu_hour__gte=0), name="rate_not_negative"),
            models.CheckConstraint(condition=Q(ends_at=None) | Q(ends_at__gt=F("starts_at")), name="rate_has_time"),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_model} from {self.starts_at:%Y-%m-%d}"


MAX_GPU_HOURS, MAX_DAYS = 1e9, 366


@pghistory.track()
class Budget(models.Model):
    """The GPU-hours that a tenant may use in a calendar month (UTC), or in the last `days`. Soft: beyond it
    members are notified; hard: no more GPU jobs start."""

    tenant = models.OneToOneField("tenants.Tenant", on_delete=models.CASCADE, related_name="budget")
    soft_gpu_hours = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(0), MaxValueValidator(MAX_GPU_HOURS)]
    )
    hard_gpu_hours = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(0), MaxValueValidator(MAX_GPU_HOURS)]
    )
    days = models.PositiveSmallIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(MAX_DAYS)],
        help_text="Of the last so many days; empty: of the calendar month (UTC)",
    )  # fmt: skip
    version = models.PositiveIntegerField(default=1, editable=False)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(soft_gpu_hours=None) | Q(hard_gpu_hours=None) | Q(soft_gpu_hours__lte=F("hard_gpu_hours")),
                name="budget_soft_within_hard",
            )
        ]

    def __str__(self) -> str:
        return f"budget of {self.tenant.name}"

    def clean(self) -> None:
        """Reject a budget without effect: a soft bound that is not below the hard one."""
        soft, hard = self.soft_gpu_hours, self.hard_gpu_hours
        if soft is not None and hard is not None and soft >= hard:
            message = f"would do nothing: nothing more starts from {amounts.exact(hard)} on"
            raise ValidationError({"soft_gpu_hours": message})


class BudgetCrossing(models.Model):
    """The moment when a budget was reached: once per bound, version and period."""

    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.CASCADE, related_name="budget_crossings")
    bound = models.CharField(max_length=10, help_text="soft or hard")
    gpu_hours = models.FloatField(help_text="The bound")
    version = models.PositiveIntegerField()
    period = models.DateTimeField(help_text="The beginning of the month, or of the day of a rolling budget")
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "bound", "version", "period"], name="budget_crossed_once"),
        ]

    def __str__(self) -> str:
        return f"{self.bound} budget of tenant {self.tenant_id}"
