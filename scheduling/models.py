"""Tables of scheduling: cycles and their recordings, the policy, claims of preempting jobs, and forecasts."""

import re
from collections.abc import Iterable

import pghistory
from django.core.exceptions import ValidationError
from django.core.validators import BaseValidator, MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from jobs.models import Job
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.history.tables import LearningProgress as LearningProgress
from scheduling.history.tables import PredictionScore as PredictionScore
from scheduling.history.tables import RangeTracker as RangeTracker
from scheduling.history.tables import RunHistory as RunHistory
from scheduling.history.tables import TenantPrediction as TenantPrediction
from scheduling.reservations.tables import Reservation as Reservation
from scheduling.reservations.tables import ReservationUse as ReservationUse
from scheduling.reservations.tables import ReservedDevice as ReservedDevice


class Cycle(models.Model):
    """A scheduling cycle: stored if it changed something, otherwise once a minute. Durations in milliseconds."""

    started_at = models.DateTimeField(db_index=True)
    trigger = models.CharField(max_length=10)
    worker = models.CharField(max_length=100)
    pending = models.PositiveIntegerField()
    placed = models.PositiveIntegerField()
    preempted = models.PositiveIntegerField(default=0, help_text="Jobs that were stopped for other jobs")
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


class RecordedCycle(models.Model):
    """The compressed recording of a cycle (recording.py). Only the latest are kept (recorded_cycles.py)."""

    cycle_id = models.BigIntegerField(primary_key=True)
    # By the database's clock, like the attempts of a cycle: from the snapshot to the end of the commit.
    decided_at = models.DateTimeField(db_index=True)
    committed_at = models.DateTimeField()
    size_bytes = models.PositiveIntegerField()
    content = models.BinaryField()

    class Meta:
        # To find what exceeds the limit without reading the recordings.
        indexes = [models.Index(fields=["cycle_id"], include=["size_bytes"], name="recordedcycle_sizes")]

    def __str__(self) -> str:
        return f"recording of cycle {self.cycle_id}"


def check_costs(costs: object) -> None:
    """Raise ValidationError unless the value is like {"H100": 2.5}: words of model names with the cost of a
    GPU-hour."""
    if not isinstance(costs, dict) or len(costs) > 50:
        raise ValidationError('must be an object like {"H100": 2.5} with at most 50 models')
    for model, cost in costs.items():
        if not isinstance(model, str) or not re.fullmatch(r"[\w.+/() -]{1,100}", model):
            raise ValidationError("name models by words of the driver's name, like A100")
        if not isinstance(cost, int | float) or isinstance(cost, bool) or not 0 < cost <= 1_000_000:
            raise ValidationError(f"the cost of {model} must be a number above 0")


# The numbers of the rule on held but idle GPUs.
IDLE_NUMBERS = (
    "held_idle_percent",
    "held_idle_minutes",
    "held_idle_interactive_minutes",
    "held_idle_grace_minutes",
)


def _between(minimum: float, maximum: float) -> list[BaseValidator]:
    return [MinValueValidator(minimum), MaxValueValidator(maximum)]


@pghistory.track()
class SchedulingPolicy(models.Model):
    """The policy that admins can edit while the system runs: one row from the first edit on, until then the
    environment."""

    id = models.SmallIntegerField(primary_key=True, default=1, editable=False)
    policy = models.CharField(
        max_length=20, choices=[(name, name) for name in LIVE_POLICIES], default="fair", help_text="Order of the queue"
    )
    aging_points_per_minute = models.FloatField(
        default=1.0, validators=_between(0, 1000), help_text="Priority points a waiting job gains, within its band"
    )
    usage_half_life_days = models.FloatField(
        default=7.0, validators=_between(0.01, 3650), help_text="After this long, past use counts half"
    )
    usage_window_minutes = models.FloatField(
        default=5.0, validators=_between(0.1, 1440), help_text="cost_aware: how far back recent use counts"
    )
    dynamic_share_bound = models.FloatField(
        default=0.0,
        validators=_between(0, 0.9),
        help_text="By how much at most a weight follows its tenant's past use (0.2: 20 %); 0: not at all",
    )
    cost_by_model = models.JSONField(
        default=dict,
        blank=True,
        validators=[check_costs],
        help_text='cost_aware: cost of a GPU-hour, like {"H100": 2.5}; other models cost 1',
    )
    online_percent = models.PositiveSmallIntegerField(
        default=0, validators=_between(0, 100), help_text="Part of the GPUs that is for online jobs; 0: no split"
    )
    enable_gang_scheduling = models.BooleanField(default=True, help_text="Gangs may span nodes")
    enable_preemption = models.BooleanField(default=True, help_text="Running jobs may be stopped for others")
    min_runtime_seconds = models.FloatField(
        default=600.0, validators=_between(0, 30 * 86400), help_text="Victims have run for at least this long"
    )
    preemption_delay_seconds = models.FloatField(
        default=60.0, validators=_between(0, 86400), help_text="A preempting job has waited at least this long"
    )
    enable_thermal_aware = models.BooleanField(default=True, help_text="Hot GPUs come last")
    thermal_threshold_celsius = models.PositiveSmallIntegerField(
        default=85, validators=_between(40, 120), help_text="A GPU is hot from here on, until 10 below for a minute"
    )
    thermal_moves = models.CharField(
        max_length=10,
        choices=[(word, word) for word in ("off", "monitor", "move")],
        default="monitor",
        db_default="monitor",
        help_text="What becomes of jobs on GPUs that stay hot; monitor: an incident says which would be moved",
    )
    thermal_move_minutes = models.FloatField(
        default=10.0, db_default=10.0, validators=_between(1, 1440), help_text="A GPU that is hot for so long stays hot"
    )
    held_idle_policy = models.CharField(
        max_length=10,
        choices=[(word, word) for word in ("off", "monitor", "enforce")],
        default="monitor",
        db_default="monitor",
        help_text="What becomes of jobs that hold idle GPUs; monitor: events say who would be warned and ended",
    )
    held_idle_percent = models.PositiveSmallIntegerField(
        default=5,
        db_default=5,
        validators=_between(1, 100),
        help_text="A GPU is idle while each reading is under this utilisation",
    )
    held_idle_minutes = models.FloatField(
        default=60.0, db_default=60.0, validators=_between(1, 43_200), help_text="A job idle for so long is warned"
    )
    held_idle_interactive_minutes = models.FloatField(
        default=240.0,
        db_default=240.0,
        validators=_between(1, 43_200),
        help_text="The same for jobs with the label interactive=true, if that is longer",
    )
    held_idle_grace_minutes = models.FloatField(
        default=20.0,
        db_default=20.0,
        validators=_between(1, 43_200),
        help_text="From the first warning to the end, if it stays idle",
    )
    member_extend_minutes = models.FloatField(
        default=60.0,
        db_default=60.0,
        validators=_between(0, 525_600),
        help_text="By how much in all a member may extend the time limit of a running job of theirs; 0: not at all",
    )
    load_threshold = models.FloatField(
        default=1.0, validators=_between(0.05, 1), help_text="Part of a whole GPU's memory that a job may ask for"
    )
    load_threshold_shared = models.FloatField(
        default=0.85, validators=_between(0.05, 1), help_text="The same for shared GPUs, all jobs together"
    )
    version = models.PositiveIntegerField(default=0, editable=False)

    class Meta:
        verbose_name_plural = "scheduling policy"
        constraints = [models.CheckConstraint(condition=Q(id=1), name="scheduling_policy_one_row")]

    def __str__(self) -> str:
        return "scheduling policy"

    def clean(self) -> None:
        if self.policy not in LIVE_POLICIES:
            raise ValidationError({"policy": f"is unknown; use {' or '.join(LIVE_POLICIES)}"})

    def require_effect(self, changes: Iterable[str]) -> None:
        """Raise ValidationError for changes without effect beside the other values (A07)."""
        idle = {
            name: f"would do nothing while {condition}"
            for names, condition, is_active in (
                (("min_runtime_seconds", "preemption_delay_seconds"), "enable_preemption is false",
                 not self.enable_preemption),
                (("thermal_moves", "thermal_move_minutes"), "enable_preemption or enable_thermal_aware is false",
                 not (self.enable_preemption and self.enable_thermal_aware)),
                (("thermal_move_minutes",), "thermal_moves is off", self.thermal_moves == "off"),
                (IDLE_NUMBERS, "held_idle_policy is off", self.held_idle_policy == "off"),
                (("cost_by_model", "usage_window_minutes"), f"the policy is {self.policy}, not cost_aware",
                 self.policy != "cost_aware"),
            )
            for name in names
            if is_active and name in set(changes)
        }  # fmt: skip
        if self.cost_by_model and set(self.cost_by_model.values()) == {1} and "cost_by_model" in set(changes):
            idle["cost_by_model"] = "would do nothing: unnamed models also cost 1"
        if idle:
            raise ValidationError(idle)


class Beat(models.Model):
    """The end, duration and worker of the latest cycle, in one row. Every cycle writes it, also without other changes:
    it shows that the scheduler is alive."""

    at = models.DateTimeField()
    ms = models.FloatField()
    worker = models.CharField(max_length=100)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="beat_one_row")]

    def __str__(self) -> str:
        return f"{self.worker} at {self.at}"


class Term(models.Model):
    """The number of the present term, and the worker that leads in it, in one row. Each leader counts it up
    (worker/leadership.py)."""

    term = models.BigIntegerField()
    leader = models.CharField(max_length=100)
    session = models.IntegerField(help_text="The leader's process in PostgreSQL")
    began_at = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="term_one_row")]

    def __str__(self) -> str:
        return f"term {self.term} of {self.leader}"


class Claim(models.Model):
    """A pending job for which others were stopped, and its nominated placement. Deleted once it starts there."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="+")
    made_at = models.DateTimeField()
    rule = models.CharField(max_length=10)
    ranks = models.JSONField()

    class Meta:
        ordering = ["made_at", "job_id"]

    def __str__(self) -> str:
        return f"claim of job {self.job_id}"


class Forecast(models.Model):
    """The first forecast of a job's start, without calibration, in seconds from `made_at`, and how long the job then
    waited: null until it has started. The ratios are the calibration that users saw."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="+")
    made_at = models.DateTimeField()
    p50_seconds = models.FloatField()
    p90_seconds = models.FloatField()
    p50_ratio = models.FloatField(default=1.0)
    p90_ratio = models.FloatField(default=1.0)
    waited_seconds = models.FloatField(null=True)

    class Meta:
        ordering = ["made_at", "job_id"]

    def __str__(self) -> str:
        return f"forecast of job {self.job_id}"
