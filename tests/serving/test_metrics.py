"""The metrics of endpoints and token buckets: counted once, kept over restarts, bounded, and hidden from other tenants."""

import pytest
from django.db import DatabaseError
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from gpusched.lib import histograms
from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import execute
from gpusched.protocol.streams import Kind, data_bytes, encode
from serving import counts, upkeep
from serving.batching import rounds
from serving.endpoints import endpoints
from serving.former import Credit, Replica
from serving.models import InferenceRequest
from serving.requests import endings, results
from serving.requests.results import Outcome
from tenants.models import BucketScope, BucketUse, TokenBucket
from tests.factories import identity_for, make_member, make_tenant, make_token, make_user
from tests.serving.requests import ask, claim, make_endpoint

_ORDER = (
    "node",
    "gpu",
    "tenant",
    "endpoint",
    "kind",
    "phase",
    "rule",
    "bound",
    "task",
    "limits",
    "outcome",
    "state",
    "reason",
    "direction",
    "le",
)


def _place(name):
    """Return the place of a label; those of other apps come last."""
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def pending(monkeypatch):
    """Counts of earlier tests are not counted here."""
    fresh = histograms.Pending()
    monkeypatch.setattr(histograms, "pending", fresh)
    monkeypatch.setattr("tenants.buckets.pending", fresh)
    return fresh


def scrape(user=None):
    """Return {(series, labels as text): value} of a scrape by this user."""
    histograms.pending.flush()
    headers = {"Authorization": f"Bearer {make_token(user)}"} if user else {}
    text = Client().get("/metrics", headers=headers).content.decode()
    return {
        (sample.name.removeprefix("gpu_scheduler_"), _labels(sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _labels(labels):
    return " ".join(labels[name] for name in sorted(labels, key=_place))


def complete(number, code=""):
    [claimed] = claim([number])
    return results.record([Outcome(number, claimed.attempt, b"1", "application/json", code)])


def test_ended_requests_are_counted_by_state(endpoint, user):
    numbers = ask(endpoint, user, 5)
    complete(numbers[0])
    complete(numbers[1])
    complete(numbers[2], "replica_lost")
    endings.cancel([numbers[3]])
    InferenceRequest.objects.filter(pk=numbers[4]).update(queued_at="2020-01-01T00:00:00Z")
    endings.expire()
    seen = scrape(user)
    ended = {
        state: seen["endpoint_requests_total", f"nlp embed {state}"] for state in ("completed", "failed", "cancelled")
    }
    assert ended == {"completed": 2, "failed": 1, "cancelled": 1}
    assert seen["endpoint_requests_total", "nlp embed expired"] == 1
    assert seen["endpoint_requests_total", "nlp embed refused"] == 0
    assert seen["endpoint_latency_seconds_count", "nlp embed"] == 2
    assert seen["endpoint_latency_seconds_bucket", "nlp embed +Inf"] == 2


def test_result_of_an_old_attempt_is_not_counted(endpoint, user):
    [number] = ask(endpoint, user)
    complete(number)
    results.record([Outcome(number, 1, b"1", "application/json")])
    assert scrape(user)["endpoint_requests_total", "nlp embed completed"] == 1


def test_archived_tenant_has_no_series_of_its_endpoints(endpoint):
    admin = make_user("root", admin=True)
    execute("UPDATE serving_endpoint SET problem = 'no quota'")
    assert scrape(admin)["endpoint_problem", "nlp embed"] == 1
    execute("UPDATE tenants_tenant SET archived_at = now()")
    assert not [labels for _, labels in scrape(admin) if labels.startswith("nlp embed")]


def test_batches_are_counted_with_size_and_reason(endpoint, user):
    ask(endpoint, user, 10)
    served = rounds.Served(endpoint.pk, "embed", 4, 0.01, 30.0, 0.0, False, Credit(), False)
    for job_id in (1, 2, 3):
        rounds.run_round(1, [], [served], [Replica(job_id, [endpoint.pk], None)], now=100.0)
    seen = scrape(user)
    assert seen["endpoint_batches_total", "nlp embed size"] == 2
    assert sum(seen["endpoint_batches_total", f"nlp embed {reason}"] for reason in ("idle", "wait")) == 1
    assert (seen["endpoint_batch_size_sum", "nlp embed"], seen["endpoint_batch_size_count", "nlp embed"]) == (10, 3)
    assert (
        seen["endpoint_batch_size_bucket", "nlp embed 2.5"],
        seen["endpoint_batch_size_bucket", "nlp embed 5.0"],
    ) == (1, 3)


def test_present_load_is_a_gauge(endpoint, user):
    ask(endpoint, user, 3)
    execute("UPDATE serving_inferencerequest SET queued_at = now() - interval '20 s'")
    execute(
        "INSERT INTO serving_replica (job_id, endpoint_id, is_draining, warm_at) VALUES (1, %s, false, now())",
        [endpoint.pk],
    )
    execute("INSERT INTO serving_replica (job_id, endpoint_id, is_draining) VALUES (2, %s, false)", [endpoint.pk])
    execute("UPDATE serving_endpoint SET problem = 'no quota', cold_start_seconds = 7")
    execute(
        "INSERT INTO serving_arrival (endpoint_id, at, gap_seconds, was_warm, gpus, kept_seconds, idle_seconds)"
        " SELECT e.id, now(), 400, n > 1, 2, 900, 300 FROM serving_endpoint e, generate_series(1, 4) AS n"
    )
    seen = scrape(user)
    assert seen["endpoint_queued", "nlp embed"] == 3
    assert 20 <= seen["endpoint_oldest_wait_seconds", "nlp embed"] < 40
    assert [seen["endpoint_replicas", f"nlp embed {state}"] for state in ("warm", "cold")] == [1, 1]
    assert (seen["endpoint_problem", "nlp embed"], seen["endpoint_cold_start_seconds", "nlp embed"]) == (1, 7)
    assert (seen["endpoint_arrivals", "nlp embed hit"], seen["endpoint_arrivals", "nlp embed miss"]) == (3, 1)
    assert seen["endpoint_cold_starts_avoided", "nlp embed"] == 3
    assert seen["endpoint_wasted_gpu_hours", "nlp embed"] == 2


def test_refusals_of_buckets_are_counted(tenant, endpoint, user):
    TokenBucket.objects.create(
        tenant=tenant, scope=BucketScope.TENANT, limits=BucketUse.TASKS, rate_per_second=0, burst=2
    )
    ask(endpoint, user, 2)
    for _ in range(3):
        with pytest.raises(Problem):
            ask(endpoint, user)
    with pytest.raises(Problem):  # too large for the bucket at any time
        ask(endpoint, user, 3)
    assert scrape(user)["bucket_refusals_total", "nlp tasks"] == 4


def test_endpoints_are_hidden_from_other_tenants(endpoint, user):
    stranger = make_member(make_tenant("other"))
    for seen in (scrape(), scrape(stranger)):
        assert not [series for series in seen if "nlp" in series[1]]
    assert scrape(user)["endpoint_queued", "nlp embed"] == 0


def test_counts_survive_a_restart(endpoint, user, monkeypatch):
    complete(ask(endpoint, user)[0])
    histograms.pending.flush()
    monkeypatch.setattr(histograms, "pending", histograms.Pending())
    complete(ask(endpoint, user)[0])
    assert scrape(user)["endpoint_requests_total", "nlp embed completed"] == 2


def test_series_of_a_removed_endpoint_vanish(endpoint, user):
    complete(ask(endpoint, user)[0])
    assert scrape(user)["endpoint_requests_total", "nlp embed completed"] == 1
    endpoints.remove(endpoint.pk, identity_for(user))
    assert not [series for series in scrape(user) if "embed" in series[1]]
    upkeep.forget_old()
    assert counts.read(counts.LATENCY) == {}
    make_endpoint(endpoint.tenant, user)
    assert scrape(user)["endpoint_requests_total", "nlp embed completed"] == 0


def test_series_of_an_endpoint_are_bounded(endpoint, user):
    for _ in range(3):
        complete(ask(endpoint, user)[0])
    assert len([series for series in scrape(user) if "embed" in series[1]]) <= 65


def test_counts_stay_pending_while_the_database_is_away(pending, monkeypatch):
    def fail(*args):
        pending.add("name", "label", 0.25)  # another thread, meanwhile
        raise DatabaseError("away")

    pending.add("name", "label", 0.2)
    with monkeypatch.context() as outage:
        outage.setattr(histograms, "execute", fail)
        with pytest.raises(DatabaseError):
            pending.flush()
    pending.add("name", "label", 0.3)
    pending.flush()
    [(numbers, total)] = histograms.read("name").values()
    assert (sum(numbers), round(total, 3), bool(pending)) == (3, 0.75, False)


@pytest.mark.parametrize(("kind", "size"), [(Kind.DATA, 3), (Kind.CREDIT, 0)])
def test_only_data_of_streams_is_counted(kind, size):
    assert data_bytes(encode(7, kind, b"abc")) == size
