"""Arrays on the command line and in the SDK: submitted, listed, and cancelled and retried in parts."""

import pytest

from gpusched.client import AsyncClient, Client, NotFound, Timeout
from gpusched.client.calls.jobs import JobFilters
from gpusched.client.transport import polling
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.rest.jobs import Log
from tests.client.commandline import call
from tests.client.fakeserver import Answer, FakeServer, Request, acted, job, log

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


def element_pages(request: Request) -> Answer:
    """Two pages, or the one requested element."""
    if "index" in request.query:
        return Answer(200, {"items": [row for row in ELEMENTS if str(row["index"]) == request.query["index"]]})
    at = int(request.query.get("cursor", 0))
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
def test_flag_submits_an_array(arrays: FakeServer, flag: str, sent: dict[str, int]) -> None:
    assert call(arrays.url, "submit", "--array", flag, "--", "true").exit_code == 0
    assert arrays.requests[-1].json["array"] == sent


@pytest.mark.parametrize("flag", ["0-9", "x", "5%", "%5", "5%0"])
def test_invalid_array_is_a_usage_error(arrays: FakeServer, flag: str) -> None:
    result = call(arrays.url, "submit", "--array", flag, "--", "true")
    assert (result.exit_code, "100%10" in result.stderr) == (2, True)


def test_run_refuses_an_array(arrays: FakeServer) -> None:
    assert call(arrays.url, "run", "--array", "5", "--", "true").exit_code == 2


def test_array_is_one_line_with_its_progress(arrays: FakeServer) -> None:
    result = call(arrays.url, "ps")
    assert "5/100 ended, 2 failed, 5 live" in result.stdout
    assert len(result.stdout.splitlines()) == 3


def test_elements_are_listed_over_all_pages(arrays: FakeServer) -> None:
    result = call(arrays.url, "elements", "42", "-o", "csv")
    assert [line.split(",")[:3] for line in result.stdout.splitlines()[1:]] == [
        ["3", "57", "failed"],
        ["4", "", "pending"],
    ]


def test_job_that_is_no_array_is_noted(server: FakeServer) -> None:
    """Not when its elements only do not match."""
    server.on("GET", "/jobs/42/elements", Answer(200, {"items": []}))
    server.on("GET", "/jobs/42", Answer(200, job()))
    result = call(server.url, "elements", "42", "-o", "json")
    assert (result.exit_code, result.stdout) == (0, "[]\n")
    assert result.stderr == "job 42 is not an array, so it has no elements\n"
    server.on("GET", "/jobs/42", Answer(200, job(array=ARRAY)))
    assert call(server.url, "elements", "42", "--state", "failed").stderr == ""


def test_name_format_prints_the_job_ids_of_elements(arrays: FakeServer) -> None:
    """For other commands: elements that are not jobs yet are left out, with a note."""
    result = call(arrays.url, "elements", "42", "-o", "name")
    assert (result.exit_code, result.stdout) == (0, "57\n")
    assert result.stderr == "1 of these elements is not a job yet and has no id\n"


def test_part_of_an_array_is_cancelled_and_retried(arrays: FakeServer) -> None:
    assert call(arrays.url, "cancel", "42", "--elements", "3-7,9").exit_code == 0
    assert arrays.requests[-1].json == {"elements": "3-7,9"}
    assert call(arrays.url, "retry", "42").exit_code == 0
    assert arrays.requests[-1].json == {"elements": "failed"}


def test_log_of_an_element_is_its_jobs_log(arrays: FakeServer) -> None:
    arrays.on("GET", "/jobs/57/logs", log(b"element 3\n", complete=True))
    assert call(arrays.url, "logs", "42", "--element", "3").stdout == "element 3\n"
    result = call(arrays.url, "logs", "42", "--element", "4")
    assert (result.exit_code, "element 4 of array 42 is pending and no job yet" in result.stderr) == (3, True)


def test_array_without_output_points_to_its_elements(arrays: FakeServer) -> None:
    arrays.on("GET", "/jobs/42", Answer(200, job(state="running", array=ARRAY)))
    arrays.on("GET", "/jobs/42/logs", log(b"", complete=True))
    assert "see --element N of this array" in call(arrays.url, "logs", "42").stderr


def test_handle_lists_its_elements(arrays: FakeServer) -> None:
    with Client(arrays.url) as c:
        handle = c.submit(["x"], array=ArrayRequest(count=100, max_parallel=5))
        assert [row.index for row in handle.elements()] == [3, 4]
        array_data = handle.cancel(elements="4").array
        assert array_data is not None
        assert array_data.remaining == 90
        assert handle.retry().message == "job 42 retry"
    assert arrays.requests[-1].json == {"elements": "failed"}


async def test_async_handle_lists_its_elements(arrays: FakeServer) -> None:
    async with AsyncClient(arrays.url) as c:
        handle = await c.submit(["x"], array=ArrayRequest(count=100))
        assert [row.state for row in await handle.elements(state="failed")] == ["failed", "pending"]
        array_data = (await handle.retry("3")).array
        assert array_data is not None
        assert array_data.count == 100


def elements_that_go_on(server: FakeServer) -> None:
    """Element 3 has failed until it is retried; 4 is a job at the third look, and then ends."""
    looks: list[int] = []

    def answer(request: Request) -> Answer:
        if request.query["index"] == "3":
            has_retried = any(row.path.endswith("/42/retry") for row in server.requests)
            return Answer(200, {"items": [{**ELEMENTS[0], **({"state": "pending"} if has_retried else {})}]})
        looks.append(4)
        later = {"job_id": 58, "state": "running" if len(looks) < 5 else "completed", "exit_code": 0}
        return Answer(200, {"items": [{**ELEMENTS[1], **(later if len(looks) > 2 else {})}]})

    listed = server.routes["GET", "/api/v1/jobs/42/elements"]
    assert callable(listed)
    server.on(
        "GET", "/jobs/42/elements", lambda request: answer(request) if "index" in request.query else listed(request)
    )
    server.on("GET", "/jobs/57", Answer(200, job(57, "failed")))
    server.on("GET", "/jobs/57/logs", log(b"element 3\n", complete=True))


def test_element_handle_acts_on_its_element(arrays: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "QUICK_SECONDS", 0.001)
    elements_that_go_on(arrays)
    with Client(arrays.url) as c:
        failed, waiting = c.elements(42)
        assert (failed.array_id, failed.job().id, failed.logs().text) == (42, 57, "element 3\n")
        with pytest.raises(NotFound, match="element 4 of array 42 is pending and no job yet"):
            waiting.logs()
        assert failed.retry().state == "pending"
        assert arrays.requests[-2].json == {"elements": "3"}
        with pytest.raises(Timeout, match="element 3 of array 42 is still pending"):
            failed.wait(timeout=0)
        result = waiting.wait(timeout=60)
        assert (result.index, result.state, result.job_id) == (4, "completed", 58)
        assert result.cancel().index == 4
        assert arrays.requests[-2].json == {"elements": "4"}
        assert b"".join(item.data for item in failed.follow() if isinstance(item, Log)) == b"element 3\n"


async def test_async_element_handle_acts_on_its_element(arrays: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "QUICK_SECONDS", 0.001)
    elements_that_go_on(arrays)
    async with AsyncClient(arrays.url) as c:
        failed, waiting = await c.elements(42)
        assert ((await failed.job()).id, (await failed.logs()).text) == (57, "element 3\n")
        with pytest.raises(NotFound, match="no job yet"):
            await waiting.logs()
        assert (await failed.retry()).state == "pending"
        assert arrays.requests[-2].json == {"elements": "3"}
        assert (await waiting.wait(timeout=60)).state == "completed"
        assert (await waiting.cancel()).index == 4
        chunks = [item.data async for item in failed.follow() if isinstance(item, Log)]
        assert b"".join(chunks) == b"element 3\n"


async def test_list_accepts_all_filters_of_rest(arrays: FakeServer) -> None:
    filters: JobFilters = {
        "tenant": "nlp",
        "state": ["failed", "live"],
        "user": "ada",
        "name": "train",
        "array": 42,
        "submitted_after": "2030-01-01",
        "submitted_before": "2030-01-02",
        "ended_after": "2030-01-03",
        "ended_before": "2030-01-04",
    }
    sent = {**{name: str(value) for name, value in filters.items()}, "state": "failed,live", "limit": "5"}
    with Client(arrays.url) as c:
        c.list(limit=5, **filters)
        assert arrays.requests[-1].query == sent
        with pytest.raises(TypeError, match="no filter weather"):
            c.list(weather="fine")  # type: ignore[call-arg]
    async with AsyncClient(arrays.url) as c:
        await c.list(limit=5, **filters)
    assert arrays.requests[-1].query == sent


def test_job_without_elements_has_no_element(server: FakeServer) -> None:
    server.on("GET", "/jobs/42/elements", Answer(200, {"items": []}))
    with Client(server.url) as c, pytest.raises(NotFound, match="no array"):
        c.element(42, 1)
