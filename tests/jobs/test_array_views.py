"""Arrays in simulations, the queue, extensions and pages."""

import pytest
from django.test import Client

from gpusched.lib.api.problems import Problem
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.job_request import JobRequest
from gpusched.protocol.rest.time_limits import Extension
from jobs.actions import job_actions
from jobs.models import Job
from jobs.submit.submit import simulate
from scheduling.status import cluster, metrics
from scheduling.whatif import extend
from tests.factories import make_node, run_cycle, submit
from tests.jobs.arrays import submit_array

pytestmark = pytest.mark.django_db


def test_simulation_counts_the_elements_that_would_start(user, tenant, identity):
    make_node(gpus=3)
    request = JobRequest(command=["x"], gpu_count=1, tenant="nlp", array=ArrayRequest(count=10))
    simulation = simulate(request, identity)
    assert (simulation["starts_now"], simulation["sentence"].split(", the first on ")[0]) == (
        True, "3 of its 10 elements would start now",
    )  # fmt: skip
    submit(user, tenant, gpu_count=3, max_runtime_minutes=60)
    run_cycle()
    simulation = simulate(request, identity)
    assert (simulation["starts_now"], simulation["reason"]["code"]) == (False, "capacity")
    assert simulation["estimate"]["p90_at"] is not None
    assert not Job.objects.filter(array_count__isnull=False).exists()


def test_queue_counts_waiting_elements(user, tenant, identity):
    node = make_node(gpus=2)
    array = submit_array(user, tenant, 10, gpu_count=2)
    after = submit(user, tenant, gpu_count=2)
    run_cycle()
    node.start_all()
    queue = cluster.queue(identity, None, 100)
    assert (queue["total"], queue["total_gpus"]) == (10, 20)
    assert [(entry["job_id"], entry["position"], entry["gpus_ahead"], entry["elements"]) for entry in queue["items"]] == [
        (array, 1, 0, 9), (after, 10, 18, None),
    ]  # fmt: skip
    assert queue["items"][0]["state"] == "running"
    status = cluster.cluster_status()
    assert (status["total_jobs"], status["running_jobs"], status["pending_jobs"]) == (11, 1, 10)
    job_actions.cancel(array, identity, "5-9")
    assert cluster.cluster_status()["jobs_by_state"] == {"running": 1, "pending": 5, "cancelled": 5}
    sizes = next(entry for entry in metrics._jobs() if entry.name == "gpu_scheduler_queue_size")
    assert sum(sample.value for sample in sizes.samples) == 5


def test_array_time_limit_applies_to_later_elements(user, tenant, identity):
    node = make_node(gpus=1)
    array = submit_array(user, tenant, 3, max_runtime_minutes=10)
    extend.extend(array, Extension(max_runtime_minutes=20), identity, is_dry_run=False)
    run_cycle()
    assert Job.objects.get(array_id=array).max_runtime_seconds == 1200
    node.start_all()
    run_cycle()
    first = Job.objects.get(array_id=array)
    with pytest.raises(Problem, match=f"job {array} is promised a start"):
        extend.extend(first.pk, Extension(max_runtime_minutes=60), identity, is_dry_run=True)


def test_page_offers_the_actions_of_an_array(user, tenant):
    make_node(gpus=1)
    array = submit_array(user, tenant, 3)
    run_cycle()
    browser = Client()
    browser.force_login(user)
    page = browser.get(f"/jobs/{array}/").content.decode()
    assert (f"/jobs/{array}/hold" in page, f"/jobs/{array}/requeue" in page) == (True, False)
    assert '"array":{"count":3' in page
