"""Jobs, their attempts, events, reasons and keys. PostgreSQL's constraints define the valid combinations."""

from typing import Any

import pgtrigger
from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Func, Q, Value
from django.db.models.functions import Coalesce

from gpusched.lib.audit.log import VIA
from gpusched.protocol.dependencies import After
from gpusched.protocol.states import FINAL, LIVE, WAITING, JobState, Sharing, Topology, WorkloadClass
from jobs.listing import tally
from jobs.listing.tally import Tally as Tally
from tenants.models import Tenant

_IS_ELEMENT = Q(array__isnull=False)

# Any statement that changes reasons records the periods of the old ones, all at once: one commit may change thousands.
# A `scheduler_behind` of less than a second is no wait worth a row. Grouped, not joined: a session keeps the plan of
# its first statement, and a plan made for a few rows would compare each of thousands with each.
_KEEP_REASONS = """
    INSERT INTO jobs_jobreason (job_id, code, since_at, until_at)
    SELECT id, max(was), max(since_at), now()
      FROM (SELECT id, reason AS was, reason_since AS since_at, NULL AS is_now FROM old_jobs
             UNION ALL SELECT id, NULL, NULL, reason FROM new_jobs) r
     GROUP BY id
    HAVING max(was) <> max(is_now) AND max(was) <> '' AND max(since_at) < now()
       AND (max(was) <> 'scheduler_behind' OR max(since_at) < now() - interval '1 second');
    RETURN NULL;
"""


class Numbers(models.Field):  # type: ignore[type-arg]
    """A set of element numbers, as text like {[0,100)}."""

    def db_type(self, connection: Any) -> str:
        return "int4multirange"


class Job(models.Model):
    """A job request and its progress. Only jobs/lifecycle/{states,array_states}.py write the state."""

    # Their indexes are in Meta: Django's own would be a second one of each.
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="jobs", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs", db_index=False)
    name = models.CharField(max_length=200)
    priority = models.IntegerField(default=500)
    gpu_count = models.PositiveIntegerField(default=0)
    gpu_memory_mb = models.PositiveIntegerField(null=True)
    # The choice for `gpu_memory_mb: "auto"` at the submit (jobs/submit/auto_memory.py), and retries with more.
    gpu_memory_auto = models.JSONField(null=True)
    memory_retries = models.SmallIntegerField(default=0, db_default=0)
    gpu_models = ArrayField(models.CharField(max_length=200), default=list)
    gpu_sharing = models.CharField(max_length=10, default=Sharing.EXCLUSIVE)
    cpu_milli = models.PositiveIntegerField(default=1000)
    memory_mb = models.PositiveBigIntegerField(default=0)
    gang_scheduling = models.BooleanField(default=False)
    ranks = models.PositiveIntegerField(null=True)
    workload_class = models.CharField(max_length=10, default=WorkloadClass.BATCH)
    max_runtime_seconds = models.PositiveIntegerField(null=True)
    has_default_limit = models.BooleanField(default=False, db_default=False)  # the limit is its tenant's default
    limit_version = models.PositiveIntegerField(default=0, db_default=0)  # counts the changes of the limit
    signal_count = models.PositiveIntegerField(default=0, db_default=0)  # counts the signals to this attempt
    predicted_seconds = models.PositiveIntegerField(null=True)
    preemptible = models.BooleanField(default=True)
    requeue = models.BooleanField(default=True)
    max_retries = models.PositiveIntegerField(default=0)
    # Classes of ends after which the job is retried; empty: after all.
    retry_on = ArrayField(models.CharField(max_length=20), default=list, db_default=[])
    grace_seconds = models.PositiveIntegerField(default=30)
    not_before = models.DateTimeField(null=True)
    # As requested. The unresolved ones are rows of Dependency, and `open_dependencies` counts them.
    depends_on = models.JSONField(default=list, db_default=[])
    open_dependencies = models.PositiveIntegerField(default=0, db_default=0)
    labels = models.JSONField(default=dict)
    node_selector = models.JSONField(default=dict)
    node_affinity = models.JSONField(default=dict, db_default=models.Value({}, output_field=models.JSONField()))
    tolerations = models.JSONField(default=list, db_default=models.Value([], output_field=models.JSONField()))
    topology = models.CharField(max_length=20, default=Topology.ANY, db_default=Topology.ANY)
    anti_affinity = models.CharField(max_length=64, blank=True, default="", db_default="")
    reservation = models.BigIntegerField(null=True)  # it starts only in this one (scheduling/reservations)
    # For arrays, which have no attempts: `array_waiting` are the elements that are no jobs yet, `array_cancelled` those
    # that were cancelled before. The other elements are jobs with the array's id as `array`, and without a payload.
    array_count = models.PositiveIntegerField(null=True)
    array_max_parallel = models.PositiveIntegerField(null=True)
    array_waiting = Numbers(null=True)
    array_cancelled = Numbers(null=True)
    array = models.ForeignKey("self", on_delete=models.CASCADE, related_name="elements", null=True, db_index=False)
    array_index = models.PositiveIntegerField(null=True)
    # Only the agent needs these: command, args, script, workdir, environment.
    payload = models.JSONField(default=dict)
    traceparent = models.CharField(max_length=55, blank=True, default="", db_default="")  # W3C, of the submit

    state = models.CharField(max_length=10, default=JobState.PENDING)
    attempt = models.PositiveIntegerField(default=0)
    retries_used = models.PositiveIntegerField(default=0)
    reason = models.CharField(max_length=30, blank=True, default="")
    evidence = models.JSONField(default=dict)
    reason_since = models.DateTimeField(null=True)
    submitted_at = models.DateTimeField()
    eligible_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    exit_code = models.IntegerField(null=True)
    signal = models.IntegerField(null=True)
    # While stopping: the reason of the stop, and its evidence.
    stop_reason = models.CharField(max_length=30, blank=True, default="")
    stop_evidence = models.JSONField(default=dict)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(state__in=list(JobState)), name="job_state_known"),
            models.CheckConstraint(
                condition=(Q(state__in=sorted(FINAL)) & Q(ended_at__isnull=False))
                | (~Q(state__in=sorted(FINAL)) & Q(ended_at__isnull=True)),
                name="job_ended_if_final",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=sorted(LIVE)) | Q(attempt__gte=1) | Q(array_count__isnull=False),
                name="job_live_has_attempt",
            ),
            models.CheckConstraint(
                condition=Q(array_count=None, array_max_parallel=None, array_waiting=None, array_cancelled=None)
                | Q(array_count__gte=1, array_waiting__isnull=False, array_cancelled__isnull=False, attempt=0),
                name="job_array_whole",
            ),
            models.CheckConstraint(
                condition=Q(array=None, array_index=None)
                | Q(array__isnull=False, array_index__isnull=False, array_count=None),
                name="job_element_of_an_array",
            ),
            # No race can create an element twice.
            models.UniqueConstraint(fields=["array", "array_index"], name="job_element_once", condition=_IS_ELEMENT),
            models.CheckConstraint(
                condition=(Q(state=JobState.STOPPING) & ~Q(stop_reason=""))
                | (~Q(state=JobState.STOPPING) & Q(stop_reason="")),
                name="job_stop_reason_if_stopping",
            ),
            models.CheckConstraint(
                condition=Q(open_dependencies=0) | ~Q(state__in=sorted(LIVE)), name="job_live_waits_for_none"
            ),
            models.CheckConstraint(condition=Q(gpu_sharing__in=list(Sharing)), name="job_sharing_known"),
            models.CheckConstraint(condition=Q(workload_class__in=list(WorkloadClass)), name="job_class_known"),
            models.CheckConstraint(condition=Q(topology__in=list(Topology)), name="job_topology_known"),
        ]
        indexes = [
            models.Index(fields=["state", "id"], name="job_unfinished", condition=~Q(state__in=sorted(FINAL))),
            # Lists show an array once; without the condition they would skip its elements by the hundred thousand.
            # Ascending and read backwards: an insert at the right end of an index costs half of one at the left.
            models.Index(fields=["id"], name="job_by_id", condition=Q(array=None)),
            models.Index(fields=["tenant", "id"], name="job_by_tenant", condition=Q(array=None)),
            models.Index(fields=["user", "id"], name="job_by_user", condition=Q(array=None)),
            # The other states have few rows, and `job_unfinished` serves them.
            models.Index(
                fields=["state", "id"], name="job_final_by_state", condition=Q(array=None, state__in=sorted(FINAL))
            ),
            # For the counts of the queue limits (jobs/submit/queue_limits.py).
            models.Index(
                fields=["tenant", "user"], name="job_waiting_by_tenant", condition=Q(state__in=sorted(WAITING))
            ),
            models.Index(fields=["ended_at"], name="job_by_end", condition=Q(array=None, ended_at__isnull=False)),
            models.Index(fields=["array", "state"], name="job_element_by_state", condition=_IS_ELEMENT),
            models.Index(fields=["state", "id"], name="job_array_by_state", condition=Q(array_count__isnull=False)),
        ]
        triggers = [
            pgtrigger.Trigger(
                name="keep_reasons",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                referencing=pgtrigger.Referencing(old="old_jobs", new="new_jobs"),  # type: ignore[no-untyped-call]
                func=_KEEP_REASONS,
            ),
            *tally.OF_JOBS,
        ]

    def __str__(self) -> str:
        return f"job {self.pk} {self.name}"


class Dependency(models.Model):
    """A job's dependency on the end of another one, until it is resolved (jobs/lifecycle/dependencies.py)."""

    pk = models.CompositePrimaryKey("job_id", "on_id")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="+", db_index=False)
    on = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=10)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=list(After)), name="dependency_kind_known"),
            models.CheckConstraint(condition=~Q(job=models.F("on")), name="dependency_not_on_itself"),
        ]

    def __str__(self) -> str:
        return f"job {self.job_id} {self.kind} job {self.on_id}"


class JobReason(models.Model):
    """A period in which a job had one reason code, written by a trigger at its end. The current one is in the job.

    A change of the evidence alone ends no period: it changes all the time."""

    pk = models.CompositePrimaryKey("job_id", "until_at")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="+", db_index=False, db_constraint=False)
    code = models.CharField(max_length=30)
    since_at = models.DateTimeField()
    until_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.code} of job {self.job_id}"


class Attempt(models.Model):
    """The nth execution of a job. Its number fences: reports of an older attempt change nothing."""

    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="attempts", db_index=False
    )  # the constraint attempt_number_once is its index
    number = models.PositiveIntegerField()
    ranks = models.PositiveIntegerField(default=1)
    scheduled_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    saved_at = models.DateTimeField(null=True)  # the last checkpoint that the job reported
    reason = models.CharField(max_length=30, blank=True, default="")
    evidence = models.JSONField(default=dict)
    exit_code = models.IntegerField(null=True)
    signal = models.IntegerField(null=True)
    # Copied, since history outlives nodes: [{"rank", "node", "devices": [{"index", "uuid", "model", "memory_mb"}]}] as
    # placed, and the end of each rank by its number.
    placement = models.JSONField(default=list)
    outcomes = models.JSONField(default=dict)
    # The candidates that the engine considered for the placement; empty if it recorded none.
    considered = models.JSONField(default=dict, db_default={})
    log_dropped_at = models.DateTimeField(null=True)  # when retention deleted its logs

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_number_once"),
            models.UniqueConstraint(fields=["job"], name="attempt_one_live", condition=Q(ended_at__isnull=True)),
            models.CheckConstraint(
                condition=(Q(ended_at__isnull=True) & Q(reason="")) | (Q(ended_at__isnull=False) & ~Q(reason="")),
                name="attempt_reason_if_ended",
            ),
        ]
        # Each cycle counts the jobs of each tenant that were preempted within the hour.
        indexes = [models.Index(fields=["ended_at"], name="attempt_preempted", condition=Q(reason="preempted"))]
        triggers = [*tally.OF_ATTEMPTS]

    def __str__(self) -> str:
        return f"attempt {self.number} of job {self.job_id}"


class JobEvent(models.Model):
    """An event of a job. Never changed; deleted with the job, or earlier by retention alone.

    The statement that changes the job inserts it, so a foreign key check in PostgreSQL would only cost time."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events", db_constraint=False)
    at = models.DateTimeField()
    kind = models.CharField(max_length=20)
    attempt = models.PositiveIntegerField(default=0)
    actor = models.CharField(max_length=150, blank=True, default="")
    # The channel of the actor. The transaction holds it (gpusched.lib.audit.log.VIA), so statements need not name it.
    via = models.CharField(
        max_length=60,
        blank=True,
        db_default=Coalesce(Func(Value(VIA), Value(True), function="current_setting"), Value("")),
    )
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["id"]
        triggers = [pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)]

    def __str__(self) -> str:
        return f"{self.kind} of job {self.job_id}"


class IdempotencyKey(models.Model):
    """The job that a POST with this key submitted. Kept for a day; the statement that inserts the job writes it."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    key = models.CharField(max_length=255)
    request_hash = models.CharField(max_length=64)
    job = models.ForeignKey(Job, on_delete=models.CASCADE)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="idempotency_key_once")]
        indexes = [models.Index(fields=["created_at"])]

    def __str__(self) -> str:
        return self.key


class KeptAnswer(models.Model):
    """The answer to a POST with an Idempotency-Key, kept for a day (jobs/submit/idempotency.py)."""

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


class RetentionProgress(models.Model):
    """The progress of retention over the jobs of a state, by their end (jobs/retention.py): later runs start there."""

    pk = models.CompositePrimaryKey("what", "state")
    what = models.CharField(max_length=10)
    state = models.CharField(max_length=10)
    ended_at = models.DateTimeField()
    job_id = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.what} of {self.state} jobs until {self.ended_at}"
