"""The metrics of reservations."""

import pytest

from scheduling.reservations.figures import figures
from scheduling.reservations.representation import represent_reservations
from tests.factories import make_node, run_cycle, submit
from tests.scheduling.reservations.booking import reserve

pytestmark = pytest.mark.django_db(transaction=True)


def test_figures_count_reservations_and_what_jobs_use_of_them(user, tenant):
    node = make_node(gpus=4)
    reserve(user, tenant, 0, 60, gpus=3)
    reserve(user, tenant, 120, 60)
    reserve(user, tenant, 0, 60, kind="soft")
    assert figures() == (1, 2, 0, 3)
    submit(user, tenant)
    run_cycle()
    node.start_all()
    assert figures() == (1, 2, 1, 2)


def test_gpu_that_jobs_share_is_used_once(user, tenant):
    make_node(gpus=1)
    reservation = reserve(user, tenant, 0, 60)
    jobs = [submit(user, tenant, gpu_sharing="shared", gpu_memory_mb=8000) for _ in range(3)]
    run_cycle()
    assert figures() == (0, 1, 1, 0)
    [represented] = represent_reservations(None, [reservation.pk])
    assert (represented["jobs"], represented["used_gpus"]) == (jobs, 1)
