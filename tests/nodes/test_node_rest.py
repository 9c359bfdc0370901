"""REST fields of a node beside its devices."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tests.api.calls import call
from tests.factories import make_node, make_token

pytestmark = pytest.mark.django_db


def test_node_shows_its_clock_offset(user):
    """Null before the first report; negative: behind."""
    node, token = make_node(gpus=1), make_token(user)

    def told():
        return call("GET", f"/api/v1/nodes/{node.name}", token).json()["clock_off_seconds"]

    node.sync(at=(timezone.now() - timedelta(seconds=90)).isoformat())
    assert -100 < told() < -80
    node.sync()
    assert abs(told()) < 10
