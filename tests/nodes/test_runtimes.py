"""Jobs with an image wait for a node that has a container runtime, and reach its agent with all that it needs."""

import pytest

from gpusched.protocol.agent_messages import Run
from jobs.listing import representation
from nodes.inventory.representation import nodes
from nodes.models import Node
from scheduling.whatif.simulate_submit import simulate
from tests.factories import identity_for, make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def report_runtimes(job):
    [represented] = representation.select("j.id = %s", [job])
    return represented


def with_runtimes(**versions):
    node = make_node(gpus=2)
    Node.objects.filter(pk=node.id).update(runtimes=versions)
    return node


def test_image_waits_for_a_container_runtime_with_that_reason(user, tenant):
    make_node()
    job = submit(user, tenant, image="ubuntu:24.04")
    run_cycle()
    reason = report_runtimes(job)["reason"]
    assert (reason["code"], reason["sentence"]) == ("constraint", "no node matches container runtime")
    assert "install podman, docker or apptainer" in reason["next_step"]
    with_runtimes(podman="4.3.1")
    run_cycle()
    assert report_runtimes(job)["state"] == "scheduled"


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"image": "ubuntu", "runtime": "docker"}, "container runtime docker"),
        ({"image": "/images/train.sif"}, "container runtime apptainer"),
        ({"image": "ubuntu", "node_selector": {"zone": "b"}}, "label zone=b"),
    ],
)
def test_named_or_implied_runtime_is_waited_for(user, tenant, fields, missing):
    with_runtimes(podman="4.3.1")
    job = submit(user, tenant, **fields)
    run_cycle()
    assert missing in report_runtimes(job)["reason"]["sentence"]
    assert report_runtimes(job)["node_selector"] == fields.get("node_selector", {}), (
        "what the owner did not ask for is not told"
    )


def test_job_without_an_image_needs_no_runtime(user, tenant):
    make_node()
    job = submit(user, tenant)
    run_cycle()
    assert report_runtimes(job)["state"] == "scheduled"


def test_dry_run_considers_runtimes_and_blames_no_selector(user, tenant):
    """A20: leaving out a node selector that the owner did not give is no cure."""
    from gpusched.protocol.job_request import JobRequest
    from jobs.submit.submit import _validated

    make_node()
    request = JobRequest(command=["x"], gpu_count=1, image="ubuntu", tenant=tenant.name)
    request, row, _, _ = _validated(request, identity_for(user))
    answer = simulate(request, row, None)
    assert answer["reason"]["code"] == "constraint"
    assert "node_selector" not in [way["change"] for way in answer["alternatives"]]


def test_agent_gets_the_image_the_runtime_and_the_mounts(user, tenant):
    node = with_runtimes(podman="4.3.1", docker="27.1")
    submit(user, tenant, image="ghcr.io/team/train:1", runtime="docker", mounts=["/data:/data:ro"])
    run_cycle()
    [order] = node.sync().assignments
    assert isinstance(order, Run)
    assert (order.spec.image, order.spec.runtime) == ("ghcr.io/team/train:1", "docker")
    assert order.spec.mounts == ["/data:/data:ro"]


def test_reported_runtimes_are_shown_and_replaced(user):
    from msgspec.structs import replace

    node = make_node()
    for versions in ({"podman": "4.3.1", "docker": "27.1"}, {"podman": "5.0"}):
        node.sync(facts=replace(node.facts(), runtimes=versions))
        assert nodes(None, node.name)[0]["runtimes"] == versions
