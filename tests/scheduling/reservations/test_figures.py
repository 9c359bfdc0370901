"""The metrics of reservations."""

import pytest

from scheduling.reservations.figures import figures
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
