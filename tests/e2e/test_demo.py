"""The first minutes of `make demo`, with real processes: a reservation, a prediction with its source, and
an endpoint kept warm."""

import re
from collections.abc import Iterator

import pytest

from gpusched.client import Client
from gpusched.protocol.rest.jobs import Predicted
from tests.system.stack import Stack
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]


class Demo(Stack):
    """The control plane, the pretend fleet and the trickle of jobs and requests of `make demo`."""

    no_agent = ("--demo",)


@pytest.fixture(scope="module")
def demo() -> Iterator[Client]:
    with Demo() as stack, Client(stack.url, stack.token(), tenant="nlp") as client:
        yield client


def test_demo_shows_a_reservation(demo: Client) -> None:
    wait_for(lambda: list(demo.reservations(tenant="vision", state="planned,active")), 240, "a reservation", pause=1.0)
    reservations = list(demo.reservations(tenant="vision", state="planned,active"))
    assert {(row.gpus, row.kind, row.note) for row in reservations} == {(4, "hard", "demo for visitors")}
    assert len({node for row in reservations[-1:] for node in {gpu.node for gpu in row.devices}}) == 1


def test_demo_keeps_an_endpoint_warm(demo: Client) -> None:
    wait_for(lambda: any(row.name == "search" for row in demo.endpoints()), 240, "the endpoint", pause=1.0)
    wait_for(lambda: demo.endpoint("search", tenant="nlp").is_kept_warm, 240, "it to be kept warm", pause=1.0)
    wait_for(lambda: demo.endpoint("search", tenant="nlp").warm > 0, 240, "a warm replica", pause=1.0)
    endpoint = demo.endpoint("search", tenant="nlp")
    assert endpoint.cold_starts_avoided > 0 and endpoint.keep_from_chance is not None


def test_demo_shows_a_prediction_with_its_source(demo: Client) -> None:
    found: list[Predicted] = []

    def is_predicted() -> bool:
        live = [job.id for job in demo.list(state="live", tenant="nlp", limit=20)]
        predicted = [it for job_id in live if (it := demo.get(job_id).predicted) is not None]
        found.extend(it for it in predicted if re.search(r"ada's last \d+ runs of (count|train_digits)\.py", it.source))
        return bool(found)

    wait_for(is_predicted, 420, "a predicted run time of a known program", pause=2.0)
    assert found[0].n >= 2 and 0 < found[0].p10 <= found[0].p50 <= found[0].p90 <= 300
