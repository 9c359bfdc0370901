"""A74: a replica that pre-warming starts runs the endpoint's warm-up command before its own program."""

import subprocess

import pytest

from gpusched.lib.api.problems import Problem
from gpusched.protocol.job_request import JobRequest
from jobs.models import Job
from serving.endpoints import endpoints
from serving.models import Endpoint
from serving.prewarming import rounds
from serving.replicas.reconcile import reconcile
from serving.replicas.warm_up import with_warm_up
from tests.factories import identity_for, make_member, make_node, make_tenant
from tests.serving.requests import ask
from tests.serving.test_prewarming import let_pass, store_hourly_arrivals
from tests.serving.test_replicas import live, make


def run(warm_up: list[str], seconds: int = 60) -> subprocess.CompletedProcess[str]:
    """Run the command of a replica as an agent would: its program prints its arguments, and is named by its process."""
    request = JobRequest(command=["sh", "-c", 'echo "program $1"', "program"], args=["it's $HOME"])
    job = with_warm_up(request, warm_up, seconds)
    return subprocess.run([*job.command, *job.args], capture_output=True, text=True, timeout=60, stdin=subprocess.PIPE)


def test_program_runs_after_the_warm_up_with_its_own_arguments() -> None:
    done = run(["printf", "%s\n", "two words", "$HOME"])
    assert (done.stdout, done.stderr, done.returncode) == ("two words\n$HOME\nprogram it's $HOME\n", "", 0)


@pytest.mark.parametrize(
    ("warm_up", "status"), [(["sh", "-c", "exit 3"], 3), (["/no/such/program"], 127), (["sleep", "600"], 124)]
)
def test_program_runs_when_the_warm_up_fails_or_takes_too_long(warm_up: list[str], status: int) -> None:
    done = run(warm_up, seconds=1)
    assert f"the warm-up command ended with status {status}" in done.stderr
    assert (done.stdout, done.returncode) == ("program it's $HOME\n", 0)


@pytest.fixture
def endpoint() -> Endpoint:
    make_node(gpus=4)
    tenant = make_tenant("nlp")
    created: Endpoint = make(tenant, make_member(tenant), template={"gpu_count": 0}, warm_up=["cat", "/data/model"])
    return created


@pytest.mark.django_db
@pytest.mark.parametrize("is_requested", [False, True])
def test_replica_warms_up_only_if_no_request_waits_for_it(endpoint: Endpoint, is_requested: bool) -> None:
    store_hourly_arrivals(endpoint)
    rounds.update()
    let_pass(endpoint, 3000)
    if is_requested:
        ask(endpoint, endpoint.owner)
    reconcile()
    [job_id] = live()
    command = Job.objects.get(pk=job_id).payload["command"]
    assert ("timeout -k 5 300 cat /data/model" in " ".join(command)) is not is_requested
    assert command[-1] == "serve"


@pytest.mark.django_db
@pytest.mark.parametrize("warm_up", [[], [""], ["a\x00"], ["x" * 5000]])
def test_wrong_warm_up_is_refused_with_its_field(endpoint: Endpoint, warm_up: list[str]) -> None:
    with pytest.raises(Problem) as refused:
        endpoints.change(endpoint.pk, {"warm_up": warm_up}, identity_for(endpoint.owner))
    assert refused.value.status == 400 and "warm_up" in str(refused.value.errors)
