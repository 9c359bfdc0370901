"""`gpusched watch` books soft reservations on the real server."""

from datetime import UTC, datetime

import httpx
import pytest

from gpusched.client.config import Config
from gpusched.watch import booking
from gpusched.watch.booking import ControlPlane
from gpusched.watch.rules import Reserve, Rule
from tests.system.stack import Stack

pytestmark = pytest.mark.e2e


def test_booking_of_a_rule_is_a_soft_reservation(stack: Stack) -> None:
    """A75: and repeated with its key it is the same one."""
    rule = Rule(name="evaluation", log="x", match="y", reserve=Reserve(gpus=2, in_minutes=30))
    plane = ControlPlane(Config(stack.url, stack.token(), "default"))
    request = booking.body(rule, 0.8, datetime.now(UTC), "default")
    booked = [plane.book(request, "watch-e2e") for _ in range(2)]
    assert booked[0].id == booked[1].id and booked[0].state == "planned", booked
    headers = {"Authorization": f"Bearer {stack.token()}"}
    reservation = httpx.get(f"{stack.url}/api/v1/reservations/{booked[0].id}", headers=headers).json()
    assert (reservation["kind"], reservation["source"], reservation["confidence"]) == ("soft", "agent", 0.8)
    assert reservation["note"] == "watch: evaluation" and reservation["gpus"] == 2
    httpx.post(f"{stack.url}/api/v1/reservations/{booked[0].id}/cancel", headers=headers).raise_for_status()
