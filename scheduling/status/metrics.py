"""Serve /metrics: values from the database in Prometheus' format."""

from collections.abc import Collection, Iterator

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from gpusched.lib import histograms
from gpusched.lib.api import rate_limits
from gpusched.lib.api.problems import Problem, not_allowed, response_for
from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import query
from gpusched.lib.hooks import hook
from gpusched.protocol.reasons import EndReason
from gpusched.protocol.states import JobState, Scope
from jobs.listing import tally
from jobs.listing.counts import by_state
from nodes.agents.hub import hub
from nodes.streams.agents import BYTES, registry
from nodes.telemetry import samples
from scheduling.engine.whatif import capacity
from scheduling.engine.whatif.calibration import MIN_OUTCOMES, coverage_percent
from scheduling.history.scores import Score, scores
from scheduling.reservations.figures import figures
from scheduling.status import cluster
from scheduling.status.metric_families import FAMILIES, counter, gauge, histogram
from scheduling.whatif import current, outcomes
from scheduling.worker import housekeeping
from tenants.auth.identity import identity_of_token
from tenants.billing import budgets

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Database:
    """A collector that reads the database. `tenants`: names of the visible tenants; None: all."""

    def __init__(self, tenants: Collection[str] | None) -> None:
        self._tenants = tenants

    def collect(self) -> Iterator[Metric]:
        yield from _jobs()
        yield from _devices()
        yield from _of_tenants(self._tenants)
        yield from _control_plane()
        yield _histogram("gpu_scheduler_scheduling_latency_seconds")
        yield _histogram("gpu_scheduler_submit_to_start_seconds")
        yield _preemptions()
        yield _estimates()
        yield from _predictions(self._tenants)
        yield _largest_gang()
        yield from _reservations()
        yield from _streams()
        yield from hook("endpoint_metrics")(self._tenants)
        yield from hook("notification_metrics")()


def _streams() -> Iterator[Metric]:
    streams = gauge("gpu_scheduler_streams")
    streams.add_metric([], registry.open_streams())
    yield streams
    carried, counted = counter(BYTES), histograms.read(BYTES)
    for direction in ("to_job", "from_job"):
        carried.add_metric([direction], counted[direction][1] if direction in counted else 0)
    yield carried


def _jobs() -> Iterator[Metric]:
    states = by_state()
    jobs = gauge("gpu_scheduler_jobs_total")
    for state in JobState:
        jobs.add_metric([state], states.get(state, 0))
    yield jobs
    queue = gauge("gpu_scheduler_queue_size")
    for row in query("SELECT j.reason, sum(j.weight)::int AS n FROM jobs_all j WHERE j.is_waiting GROUP BY j.reason"):
        queue.add_metric([row["reason"]], row["n"])
    yield queue


def _preemptions() -> Metric:
    stopped = counter("gpu_scheduler_preemptions_total")
    counted = histograms.read("gpu_scheduler_preemptions_total")
    for rule in ("priority", "reclaim", "online", "heat"):
        stopped.add_metric([rule], counted[rule][1] if rule in counted else 0)
    return stopped


def _estimates() -> Metric:
    coverage = gauge("gpu_scheduler_estimate_coverage_percent")
    latest = outcomes.latest(calibrated=True)
    if len(latest) >= MIN_OUTCOMES:
        for bound, percent in zip(("p50", "p90"), coverage_percent(latest), strict=True):
            coverage.add_metric([bound], percent)
    return coverage


_scores: Cache[None, list[Score]] = Cache(seconds=60.0)


def _predictions(visible: Collection[str] | None) -> Iterator[Metric]:
    coverage = gauge("gpu_scheduler_prediction_coverage_percent")
    correlation = gauge("gpu_scheduler_prediction_rank_correlation")
    loss, used = gauge("gpu_scheduler_prediction_pinball_loss"), gauge("gpu_scheduler_prediction_used")
    for score in _scores.get(None, lambda: scores(7.0)):
        if visible is not None and score.tenant not in visible:
            continue
        coverage.add_metric([score.tenant], score.coverage_percent)
        if score.rank_correlation is not None:
            correlation.add_metric([score.tenant], score.rank_correlation)
        loss.add_metric([score.tenant, "prediction"], score.loss)
        loss.add_metric([score.tenant, "user_median"], score.baseline_loss)
        used.add_metric([score.tenant], int(score.is_on))
    yield from (coverage, correlation, loss, used)


def _largest_gang() -> Metric:
    largest = gauge("gpu_scheduler_largest_startable_gang")
    view = current.cluster()
    largest.add_metric([], capacity.largest_startable_gang(view.snapshot, view.policy, view.now))
    return largest


def _reservations() -> Iterator[Metric]:
    now = figures()
    states, gpus = gauge("gpu_scheduler_reservations"), gauge("gpu_scheduler_reserved_gpus")
    states.add_metric(["planned"], now.planned)
    states.add_metric(["active"], now.active)
    gpus.add_metric(["used"], now.used_gpus)
    gpus.add_metric(["idle"], now.idle_gpus)
    yield from (states, gpus)


_READINGS = """
    SELECT n.name AS node, d.index::text AS gpu, r.utilisation_percent, r.temperature_celsius
      FROM nodes_devices d JOIN nodes_all n ON n.id = d.node_id JOIN nodes_readings r ON r.device_id = d.id
     WHERE r.read_at > now() - interval '30 seconds' ORDER BY n.name, d.index
"""


def _devices() -> Iterator[Metric]:
    """Yield series of devices. A device without a current reading has none: unknown is never zero."""
    utilisation = gauge("gpu_scheduler_gpu_utilization")
    heat = gauge("gpu_scheduler_gpu_temperature_celsius")
    for row in query(_READINGS):
        for family, name in ((utilisation, "utilisation_percent"), (heat, "temperature_celsius")):
            if row[name] is not None:
                family.add_metric([row["node"], row["gpu"]], row[name])
    yield from (utilisation, heat)
    agents = gauge("gpu_scheduler_agents")
    for row in query("SELECT state, count(*) AS n FROM nodes_all WHERE removed_at IS NULL GROUP BY state"):
        agents.add_metric([row["state"]], row["n"])
    yield agents
    seconds = counter("gpu_scheduler_gpu_seconds_total")
    for cell, counted in samples.gpu_seconds().items():
        seconds.add_metric([cell], counted)
    yield seconds


def _of_tenants(visible: Collection[str] | None) -> Iterator[Metric]:
    gpus = gauge("gpu_scheduler_tenant_gpus")
    for share in cluster.shares():
        if visible is not None and share["tenant"] not in visible:
            continue
        gpus.add_metric([share["tenant"], "used"], share["gpus_held"])
        gpus.add_metric([share["tenant"], "guaranteed"], share["guaranteed_gpus"])
        if share["max_gpus"] is not None:
            gpus.add_metric([share["tenant"], "limit"], share["max_gpus"])
    yield gpus
    budget = gauge("gpu_scheduler_tenant_budget_gpu_hours")
    for status in budgets.statuses(with_archived=False):
        if visible is not None and status.tenant not in visible:
            continue
        kinds = {"used": status.used_gpu_hours, "soft": status.soft_gpu_hours, "hard": status.hard_gpu_hours}
        for kind, hours in kinds.items():
            if hours is not None:
                budget.add_metric([status.tenant, kind], hours)
    yield budget


def _control_plane() -> Iterator[Metric]:
    ended = counter("gpu_scheduler_attempts_ended_total")
    for reason, number in tally.attempts_by_reason().items():
        if reason in set(EndReason):  # a closed catalogue bounds the number of series
            ended.add_metric([reason], number)
    yield ended
    leader = gauge("gpu_scheduler_cycle_leader")
    leader.add_metric([], 1 if cluster.scheduler_lag()["is_alive"] else 0)
    yield leader
    term = gauge("gpu_scheduler_cycle_term")
    term.add_metric([], cluster.term())
    yield term
    unheard = gauge("gpu_scheduler_agents_unheard_seconds")
    unheard.add_metric([], hub.waiting_seconds())
    yield unheard
    chores = gauge("gpu_scheduler_housekeeping_age_seconds")
    for task, age in housekeeping.task_ages().items():
        chores.add_metric([task], age)
    yield chores


def _histogram(name: str) -> Metric:
    """Build a histogram. One without labels is stored under an empty label value."""
    family = histogram(name)
    is_labelled = bool(FAMILIES[name].labels)
    for value, (counts, total) in histograms.read(name).items():
        running, buckets = 0, []
        for bound, count in zip([*histograms.BOUNDS, float("inf")], counts, strict=True):
            running += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), running))
        family.add_metric([value] if is_labelled else [], buckets, total)
    return family


def _visible_tenants(request: HttpRequest) -> Collection[str] | None:
    """Return the names of the visible tenants; None: all. 401 for an invalid token, whose series would silently
    lack."""
    header = request.headers.get("Authorization", "")
    if not header:
        return ()
    caller = identity_of_token(header)
    if caller is None or Scope.READ not in caller.scopes:
        rate_limits.count_bad_token(request)
        step = "send one with the scope `read`, or none: then tenants are left out"
        raise Problem(401, "not_authenticated", "this token is not valid or lacks the scope `read`", next_step=step)
    return None if caller.is_admin else set(caller.tenant_names.values())


@csrf_exempt
def metrics(request: HttpRequest) -> HttpResponse:
    """Serve the metrics. Series of tenants need a token that can see the tenant; the others are public."""
    if request.method not in ("GET", "HEAD"):
        return not_allowed("GET", "HEAD")
    try:
        visible = _visible_tenants(request)
    except Problem as problem:
        return response_for(problem)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Database(visible))
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE)
