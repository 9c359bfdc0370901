"""Refused submits share one reading of the cluster, and a refusal never rests on an outdated one (A61)."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import execute
from gpusched.protocol.states import Role
from scheduling import admission
from scheduling.cycle import free_nodes
from tenants.tenancy.tenants import change_quota
from tests.factories import make_member, make_node, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def user(tenant):
    return make_member(tenant, Role.OWNER)


@pytest.fixture
def readings(monkeypatch):
    """Count how often submits read the nodes."""
    counted: list[int] = []
    nodes = free_nodes.nodes

    def counting(era):
        counted.append(1)
        return nodes(era)

    monkeypatch.setattr(free_nodes, "nodes", counting)
    return counted


def refused(user, tenant, **fields):
    with pytest.raises(Problem) as caught:
        submit(user, tenant, **fields)
    return caught.value


def test_refused_submits_read_an_unchanged_cluster_once(user, tenant, readings):
    """A61: a loop of impossible jobs costs a comparison of versions each, not a reading of all nodes."""
    make_node(gpus=4)
    for _ in range(5):
        assert refused(user, tenant, gpu_count=99).code == "never_fits"
    assert len(readings) == 1


def test_refusal_does_not_wait_for_a_read_by_another_submit(user, tenant):
    """A61: no lock is shared by submits whose snapshot is current."""
    make_node(gpus=4)
    refused(user, tenant, gpu_count=99)
    reading, is_over = threading.Event(), threading.Event()

    def read():
        with admission._clusters._computing[0]:
            reading.set()
            is_over.wait(60)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(read)
        reading.wait(20)
        try:
            assert refused(user, tenant, gpu_count=99).code == "never_fits"
            submit(user, tenant, gpu_count=1)
            assert not is_over.is_set()
        finally:
            is_over.set()


def test_job_is_accepted_at_once_after_a_fitting_node_joined(user, tenant):
    make_node(gpus=4)
    assert refused(user, tenant, gpu_count=8).code == "never_fits"
    make_node(gpus=8)
    submit(user, tenant, gpu_count=8)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE nodes_device SET memory_mb = 96000",
        "UPDATE nodes_node SET memory_mb = 900000",
        "UPDATE nodes_node SET cpu_cores = 256",
        """UPDATE nodes_node SET labels = '{"zone": "a"}'""",
        """UPDATE nodes_node SET admin_labels = '{"zone": "a"}'""",
        """UPDATE nodes_node SET runtimes = '{"podman": "5"}'""",
        "UPDATE nodes_node SET removed_at = now()",
        "UPDATE nodes_device SET model = 'H100'",
        "UPDATE nodes_device SET numa_node = 7",
        "UPDATE nodes_device SET nvlink_island = 7",
    ],
)
def test_version_changes_with_the_hardware(change):
    make_node(gpus=2)
    previous = admission._version()
    execute(change)
    assert admission._version() != previous


def test_version_does_not_change_with_use_or_readings(user, tenant):
    agent = make_node(gpus=2)
    previous = admission._version()
    agent.sync()
    execute("UPDATE nodes_device SET health = 'hot', held_whole = 1")
    submit(user, tenant)
    assert admission._version() == previous


def test_job_is_accepted_at_once_after_another_process_raised_the_quota(user, tenant):
    make_node(gpus=8)
    change_quota(tenant.pk, {"max_gpus": 2}, actor="test")
    assert refused(user, tenant, gpu_count=4).code == "quota_exceeded"
    execute("UPDATE tenants_quota SET max_gpus = 4, version = version + 1 WHERE tenant_id = %s", [tenant.pk])
    submit(user, tenant, gpu_count=4)


def test_old_snapshot_serves_acceptances_while_one_thread_reads_a_new_one(user, tenant, monkeypatch):
    make_node(gpus=4)
    submit(user, tenant)
    cached = admission._clusters.last(None, None)
    assert cached is not None
    now = time.monotonic()
    monkeypatch.setattr("gpusched.lib.cache.time.monotonic", lambda: now + 1.5 * admission._CACHE_SECONDS)
    during = []

    def read(quota_edits):
        with ThreadPoolExecutor(1) as pool:
            during.append(pool.submit(admission._recent, quota_edits).result(20))
        return replace(cached)

    monkeypatch.setattr(admission, "_read", read)
    assert admission._recent(cached.quota_edits) is not cached
    assert during == [cached]
    assert during[0] is cached


def test_snapshot_with_more_quota_edits_than_the_caller_has_seen_is_not_read_again(user, tenant):
    make_node(gpus=4)
    change_quota(tenant.pk, {"max_gpus": 2}, actor="test")
    submit(user, tenant)
    cached = admission._clusters.last(None, None)
    assert cached is not None
    assert admission._recent(cached.quota_edits - 1) is cached
    assert admission._recent(cached.quota_edits + 1) is not cached
