"""Tables of token buckets: limits on how fast a tenant or a user submits, and their present levels."""

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

# The time until a bucket with a lower rate is full again is no number.
MIN_RATE, MAX_RATE, MAX_BURST, MAX_DAILY = 1e-6, 1e6, 1e7, 1e12


class BucketScope(models.TextChoices):
    """The users that share the tokens of a bucket."""

    TENANT = "tenant"  # all users of the tenant together
    USER = "user"  # the named user, or each user of the tenant


class BucketUse(models.TextChoices):
    """The submits that take tokens."""

    TASKS = "tasks"  # an inference request takes its cost
    JOBS = "jobs"  # a submitted job takes one


class TokenBucket(models.Model):
    """A limit: `rate_per_second` tokens flow in, at most `burst` accumulate, and at most `daily_budget` are taken in a
    day of the tenant's time zone. A bucket of a named user replaces the one for each user."""

    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.CASCADE, related_name="+")
    scope = models.CharField(max_length=10, choices=BucketScope.choices)
    user = models.ForeignKey("auth.User", null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    limits = models.CharField(max_length=10, choices=BucketUse.choices)
    rate_per_second = models.FloatField(validators=[MinValueValidator(0), MaxValueValidator(MAX_RATE)])
    burst = models.FloatField(validators=[MinValueValidator(1), MaxValueValidator(MAX_BURST)])
    daily_budget = models.FloatField(
        null=True, blank=True, validators=[MinValueValidator(0), MaxValueValidator(MAX_DAILY)]
    )
    created_by = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "scope", "user", "limits"], nulls_distinct=False, name="bucket_is_unique"
            ),
            models.CheckConstraint(condition=Q(scope=BucketScope.USER) | Q(user=None), name="bucket_user_has_scope"),
            models.CheckConstraint(
                condition=Q(rate_per_second__gte=0, burst__gte=1) & (Q(daily_budget=None) | Q(daily_budget__gte=0)),
                name="bucket_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.limits} of {self.user or self.scope} in {self.tenant}"

    def clean(self) -> None:
        if self.rate_per_second is not None and 0 < self.rate_per_second < MIN_RATE:
            raise ValidationError({"rate_per_second": f"must be 0, or at least {MIN_RATE:g}"})


class BucketLevel(models.Model):
    """The tokens of a bucket at `level_at`, and those taken on the day `spent_on`. `user_id` 0: of the tenant."""

    bucket = models.ForeignKey(TokenBucket, on_delete=models.CASCADE, related_name="+")
    user_id = models.BigIntegerField()
    level = models.FloatField()
    level_at = models.DateTimeField()
    spent = models.FloatField(default=0)
    spent_on = models.DateField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["bucket", "user_id"], name="bucket_level_is_unique")]

    def __str__(self) -> str:
        return f"{self.level} at {self.level_at}"
