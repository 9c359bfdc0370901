"""Endpoints, the jobs that serve them, and inference requests with their results."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from serving.former import Flush
from tenants.models import Tenant


class ModelType(models.TextChoices):
    """The kind of a model; `DEFAULT_COSTS` has the cost of a request."""

    EMBEDDING = "embedding"
    LLM = "llm"
    DIFFUSION = "diffusion"
    OTHER = "other"


DEFAULT_COSTS = {ModelType.EMBEDDING: 1.0, ModelType.LLM: 5.0, ModelType.DIFFUSION: 10.0, ModelType.OTHER: 1.0}


class Protocol(models.TextChoices):
    """How replicas get requests."""

    BATCH = "batch"  # batches through gpusched.serve
    OPENAI = "openai"  # HTTP of the OpenAI API on a port


class EndpointState(models.TextChoices):
    """An endpoint that drains refuses new requests and serves the waiting ones."""

    ACTIVE = "active"
    DRAINING = "draining"
    REMOVED = "removed"


class RequestState(models.TextChoices):
    """The state of an inference request."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REFUSED = "refused"


OPEN_STATES = (RequestState.QUEUED, RequestState.RUNNING)
MAX_BATCH, MAX_QUEUE, MAX_REPLICAS = 1024, 1_000_000, 1000


def _between(low: float, high: float) -> list[MinValueValidator | MaxValueValidator]:
    return [MinValueValidator(low), MaxValueValidator(high)]


class Endpoint(models.Model):
    """A model that a tenant serves. `template`: the job request of a replica. `allowed_users`: those who may submit
    requests; null: all members of the tenant. `seconds_per_cost` and `cold_start_seconds`: moving averages.
    `prewarming`: keep or start a replica when requests are likely. `warm_up`: the command that such a replica runs
    before its own, for at most `warm_up_seconds`; null: none. `problem`: why no replica starts. `replicas_of`: the
    endpoint whose replicas it shares, of the same template. `read_as`: what a submit compares (endpoint_cache.py)."""

    read_as: str | None = None
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(
        max_length=63,
        validators=[
            RegexValidator(r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?\Z", "lower-case letters, digits, dots and dashes")
        ],
    )
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    allowed_users = ArrayField(models.BigIntegerField(), null=True, blank=True)
    type = models.CharField(max_length=10, choices=ModelType.choices, default=ModelType.OTHER)
    cost = models.FloatField(validators=_between(0.001, 1e6))
    template = models.JSONField(blank=True)
    replicas_of = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    protocol = models.CharField(max_length=10, choices=Protocol.choices, default=Protocol.BATCH)
    port = models.PositiveIntegerField(null=True, blank=True, validators=_between(1, 65535))
    max_batch = models.PositiveIntegerField(default=8, validators=_between(1, MAX_BATCH))
    max_wait_ms = models.PositiveIntegerField(default=10, validators=_between(0, 60_000))
    memory_per_request_mb = models.PositiveIntegerField(default=0, validators=_between(0, 10_000_000))
    max_queue = models.PositiveIntegerField(default=1000, validators=_between(1, MAX_QUEUE))
    timeout_seconds = models.FloatField(default=30.0, validators=_between(0.1, 86_400))
    min_replicas = models.PositiveIntegerField(default=0, validators=_between(0, MAX_REPLICAS))
    max_replicas = models.PositiveIntegerField(default=1, validators=_between(1, MAX_REPLICAS))
    idle_seconds = models.PositiveIntegerField(default=300, validators=_between(1, 31 * 86_400))
    prewarming = models.BooleanField(default=True, db_default=True)
    warm_up = ArrayField(models.CharField(max_length=4096, blank=True), null=True, blank=True, size=256)
    warm_up_seconds = models.PositiveIntegerField(default=300, db_default=300, validators=_between(1, 3600))
    state = models.CharField(max_length=10, choices=EndpointState.choices, default=EndpointState.ACTIVE)
    seconds_per_cost = models.FloatField(null=True, editable=False)
    cold_start_seconds = models.FloatField(null=True, editable=False)
    problem = models.CharField(max_length=1000, blank=True, default="", editable=False)
    version = models.PositiveIntegerField(default=1, editable=False)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "name"], condition=~Q(state=EndpointState.REMOVED), name="endpoint_name_is_unique"
            ),
            models.CheckConstraint(condition=Q(min_replicas__lte=F("max_replicas")), name="endpoint_replicas_ordered"),
            models.CheckConstraint(
                condition=Q(protocol=Protocol.BATCH, port=None) | Q(protocol=Protocol.OPENAI, port__isnull=False),
                name="endpoint_openai_has_port",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"


class Replica(models.Model):
    """A job that serves an endpoint. `created_at`: its submit, or its latest return to the queue. `dispatcher`: the web
    process that hands requests to it. `warm_at`: since when it accepts requests. `busy_at`: the end of its latest
    request."""

    job_id = models.BigIntegerField(primary_key=True)
    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    dispatcher = models.BigIntegerField(null=True)
    warm_at = models.DateTimeField(null=True)
    busy_at = models.DateTimeField(null=True)
    is_draining = models.BooleanField(default=False)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["endpoint"], condition=Q(ended_at=None), name="replica_live")]

    def __str__(self) -> str:
        return f"job {self.job_id} of {self.endpoint_id}"


class Arrival(models.Model):
    """A request after a gap without any. `was_warm`: it met a warm replica. `gpus`: of a replica. `kept_seconds`: how
    long a replica was warm and idle in the gap while pre-warming decided that. `idle_seconds`: of the endpoint then."""

    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="+")
    at = models.DateTimeField()
    gap_seconds = models.FloatField()
    was_warm = models.BooleanField()
    gpus = models.PositiveIntegerField()
    kept_seconds = models.FloatField()
    idle_seconds = models.PositiveIntegerField()

    class Meta:
        indexes = [models.Index(fields=["endpoint", "at"], name="arrival_of_endpoint")]

    def __str__(self) -> str:
        return f"endpoint {self.endpoint_id} at {self.at}"


class Prewarming(models.Model):
    """The state of pre-warming of an endpoint. `active_at`: when it had a request last. `seen_at`: the latest round.
    `worth`: see serving/prewarming/keeping.py; null: nothing is better than a fixed keep-alive. `is_kept`: a replica
    should be warm now. `chance`: of a request in the next minute, which decided that; null: pre-warming is not in
    force. `is_over_budget`: the tenant's kept replicas have wasted too much."""

    endpoint = models.OneToOneField(Endpoint, primary_key=True, on_delete=models.CASCADE, related_name="+")
    active_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    judged_at = models.DateTimeField(null=True)
    worth = models.FloatField(null=True)
    is_over_budget = models.BooleanField(default=False, db_default=False)
    is_kept = models.BooleanField(default=False, db_default=False)
    kept_seconds = models.FloatField(default=0.0, db_default=0.0)
    chance = models.FloatField(null=True)

    def __str__(self) -> str:
        return f"endpoint {self.endpoint_id}"


class InferenceRequest(models.Model):
    """A request to an endpoint (a task in REST and SDK), and its result. `attempt` is the fencing number: only the
    result of the latest attempt is recorded. `runs_alone`: after a failed batch, it is retried in one of its own.
    `dispatcher`: the web process that has it in progress. `returned_at`: its last return to the queue, from which its
    wait then counts. `payload_file`, `result_file`: the names of files that have the payload or result instead of the
    row; empty: none (serving/payloads.py)."""

    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="+", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False)
    state = models.CharField(max_length=10, choices=RequestState.choices, default=RequestState.QUEUED)
    cost = models.FloatField()
    payload = models.BinaryField()
    payload_type = models.CharField(max_length=100)
    payload_file = models.CharField(max_length=200, blank=True, default="", db_default="")
    payload_bytes = models.BigIntegerField(default=0, db_default=0)
    attempt = models.PositiveIntegerField(default=0)
    runs_alone = models.BooleanField(default=False)
    replica_job_id = models.BigIntegerField(null=True)
    dispatcher = models.BigIntegerField(null=True)
    result = models.BinaryField(null=True)
    result_type = models.CharField(max_length=100, blank=True, default="")
    result_file = models.CharField(max_length=200, blank=True, default="", db_default="")
    result_bytes = models.BigIntegerField(null=True)
    error_code = models.CharField(max_length=30, blank=True, default="")
    error = models.CharField(max_length=2000, blank=True, default="")
    batch_size = models.PositiveIntegerField(null=True)
    flush_reason = models.CharField(max_length=10, blank=True, default="", choices=[(f.value, f.value) for f in Flush])
    queued_at = models.DateTimeField(db_default=Now())
    returned_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=OPEN_STATES, ended_at=None) | ~Q(state__in=OPEN_STATES) & ~Q(ended_at=None),
                name="request_ended_if_final",
            ),
            models.CheckConstraint(
                condition=Q(state=RequestState.RUNNING, dispatcher__isnull=False) | ~Q(state=RequestState.RUNNING),
                name="request_runs_somewhere",
            ),
        ]
        indexes = [
            models.Index(
                fields=["endpoint", "user", "id"], condition=Q(state=RequestState.QUEUED), name="request_queued"
            ),
            models.Index(fields=["dispatcher"], condition=Q(state=RequestState.RUNNING), name="request_running"),
            models.Index(fields=["endpoint", "-id"], name="request_of_endpoint"),
            models.Index(fields=["endpoint", "ended_at"], condition=~Q(state__in=OPEN_STATES), name="request_ended"),
            models.Index(fields=["payload_file"], condition=~Q(payload_file=""), name="request_payload_file"),
            models.Index(fields=["result_file"], condition=~Q(result_file=""), name="request_result_file"),
        ]

    def __str__(self) -> str:
        return f"task {self.pk}"


class Use(models.Model):
    """The cost of a user's completed requests to an endpoint, by hour: written with their results, so never off by
    one."""

    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    hour = models.DateTimeField()
    requests = models.BigIntegerField()
    cost = models.FloatField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["endpoint", "hour", "user"], name="use_is_unique")]

    def __str__(self) -> str:
        return f"{self.cost} of {self.user_id} at {self.hour:%Y-%m-%d %H}:00"


class Dispatcher(models.Model):
    """A web process that hands out requests. Its running requests return to the queue once it falls silent."""

    seen_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"dispatcher {self.pk}"
