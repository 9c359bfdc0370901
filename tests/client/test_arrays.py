"""Arrays on the command line and in the SDK: submitted, listed, cancelled and retried by parts."""

import pytest

from gpusched.cli.elements import job_of
from gpusched.client import AsyncClient, Client, NotFound
from gpusched.protocol.arrays import ArrayRequest
from tests.client.commandline import call
from tests.client.fakeserver import Answer, FakeServer, acted, job, log

ARRAY = {
    "count": 100,
    "max_parallel": 5,
    "remaining": 90,
    "by_state": {"pending": 90, "running": 5, "failed": 2, "completed": 3},
}
ELEMENTS = [
    {"index": 3, "state": "failed", "job_id": 57, "exit_code": 3},
    {"index": 4, "state": "pending"},
]  # fmt: skip


def element_pages(asked):
    """Two pages, or the one element that is asked for."""
    if "index" in asked.query:
        return Answer(200, {"items": [one for one in ELEMENTS if str(one["index"]) == asked.query["index"]]})
    at = int(asked.query.get("cursor", 0))
    return Answer(200, {"items": ELEMENTS[at : at + 1], "next_cursor": "1" if at == 0 else None})


@pytest.fixture
def arrays(server: FakeServer) -> FakeServer:
    server.on("POST", "/jobs", acted())
    server.on("GET", "/jobs", Answer(200, {"items": [job(state="running", array=ARRAY), job(43)]}))
    server.on("GET", "/jobs/42/elements", element_pages)
    for verb in ("cancel", "retry"):
        server.on("POST", f"/jobs/42/{verb}", acted(verb, array=ARRAY))
    return server


@pytest.mark.parametrize(("flag", "sent"), [("100", {"count": 100}), ("100%5", {"count": 100, "max_parallel": 5})])
def test_an_array_is_submitted_by_a_flag(arrays: FakeServer, flag: str, sent: dict[str, int]) -> None:
    assert call(arrays.url, "submit", "--array", flag, "--", "true").exit_code == 0
    assert arrays.asked[-1].json["array"] == sent


@pytest.mark.parametrize("flag", ["0-9", "x", "5%", "%5"])
def test_an_array_that_makes_no_sense_is_a_usage_error(arrays: FakeServer, flag: str) -> None:
    done = call(arrays.url, "submit", "--array", flag, "--", "true")
    assert (done.exit_code, "100%10" in done.stderr) == (2, True)


def test_run_takes_no_array(arrays: FakeServer) -> None:
    assert call(arrays.url, "run", "--array", "5", "--", "true").exit_code == 2


def test_an_array_is_one_line_with_its_progress(arrays: FakeServer) -> None:
    done = call(arrays.url, "ps")
    assert "5/100 ended, 2 failed, 5 live" in done.stdout
    assert len(done.stdout.splitlines()) == 3


def test_elements_are_listed_over_all_pages(arrays: FakeServer) -> None:
    done = call(arrays.url, "elements", "42", "-o", "csv")
    assert [line.split(",")[:3] for line in done.stdout.splitlines()[1:]] == [
        ["3", "57", "failed"],
        ["4", "", "pending"],
    ]


def test_a_part_is_cancelled_and_retried(arrays: FakeServer) -> None:
    assert call(arrays.url, "cancel", "42", "--elements", "3-7,9").exit_code == 0
    assert arrays.asked[-1].json == {"elements": "3-7,9"}
    assert call(arrays.url, "retry", "42").exit_code == 0
    assert arrays.asked[-1].json == {"elements": "failed"}


def test_the_log_of_an_element_is_that_of_its_job(arrays: FakeServer) -> None:
    arrays.on("GET", "/jobs/57/logs", log(b"element 3\n", complete=True))
    assert call(arrays.url, "logs", "42", "--element", "3").stdout == "element 3\n"
    done = call(arrays.url, "logs", "42", "--element", "4")
    assert (done.exit_code, "element 4 of array 42 is pending and no job yet" in done.stderr) == (3, True)


def test_an_array_itself_has_no_output_and_says_where_to_look(arrays: FakeServer) -> None:
    arrays.on("GET", "/jobs/42", Answer(200, job(state="running", array=ARRAY)))
    arrays.on("GET", "/jobs/42/logs", log(b"", complete=True))
    assert "see --element N of this array" in call(arrays.url, "logs", "42").stderr


def test_a_handle_has_its_elements(arrays: FakeServer) -> None:
    with Client(arrays.url) as c:
        handle = c.submit(["x"], array=ArrayRequest(count=100, max_parallel=5))
        assert [one.index for one in handle.elements()] == [3, 4]
        shown = handle.cancel(elements="4").array
        assert shown is not None
        assert shown.remaining == 90
        assert handle.retry().message == "job 42 retry"
    assert arrays.asked[-1].json == {"elements": "failed"}


async def test_the_asynchronous_handle_has_them_too(arrays: FakeServer) -> None:
    async with AsyncClient(arrays.url) as c:
        handle = await c.submit(["x"], array=ArrayRequest(count=100))
        assert [one.state for one in await handle.elements(state="failed")] == ["failed", "pending"]
        shown = (await handle.retry("3")).array
        assert shown is not None
        assert shown.count == 100


def test_a_job_that_is_no_array_has_no_element(server: FakeServer) -> None:
    server.on("GET", "/jobs/42/elements", Answer(200, {"items": []}))
    with Client(server.url) as c, pytest.raises(NotFound, match="no array"):
        job_of(c, 42, 1)
