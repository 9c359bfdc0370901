"""Arrays on the command line and in the SDK: submitted, listed, cancelled and retried by parts."""

import inspect

import pytest

from gpusched.client import ArrayElement, AsyncArrayElement, AsyncClient, AsyncJob, Client, Job, NotFound, Timeout
from gpusched.client.calls import flows
from gpusched.client.calls.jobs import JobFilters
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.rest.jobs import Log
from tests.client.commandline import call
from tests.client.fakeserver import Answer, Asked, FakeServer, acted, job, log

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


def element_pages(asked: Asked) -> Answer:
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


@pytest.mark.parametrize("flag", ["0-9", "x", "5%", "%5", "5%0"])
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


def test_the_name_of_an_element_is_the_id_of_its_job(arrays: FakeServer) -> None:
    """Made for other commands: of those that are no jobs yet there is none, which is said."""
    done = call(arrays.url, "elements", "42", "-o", "name")
    assert (done.exit_code, done.stdout) == (0, "57\n")
    assert done.stderr == "1 of these elements is not a job yet and has no id\n"


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


def elements_that_go_on(server: FakeServer) -> None:
    """Element 3 has failed until it is retried; 4 is a job at the third look, and then ends."""
    looks: list[int] = []

    def answer(asked: Asked) -> Answer:
        if asked.query["index"] == "3":
            again = any(one.path.endswith("/42/retry") for one in server.asked)
            return Answer(200, {"items": [{**ELEMENTS[0], **({"state": "pending"} if again else {})}]})
        looks.append(4)
        later = {"job_id": 58, "state": "running" if len(looks) < 5 else "completed", "exit_code": 0}
        return Answer(200, {"items": [{**ELEMENTS[1], **(later if len(looks) > 2 else {})}]})

    listed = server.routes["GET", "/api/v1/jobs/42/elements"]
    assert callable(listed)
    server.on("GET", "/jobs/42/elements", lambda asked: answer(asked) if "index" in asked.query else listed(asked))
    server.on("GET", "/jobs/57", Answer(200, job(57, "failed")))
    server.on("GET", "/jobs/57/logs", log(b"element 3\n", complete=True))


def test_an_element_is_a_handle(arrays: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "_QUICK_SECONDS", 0.001)
    elements_that_go_on(arrays)
    with Client(arrays.url) as c:
        failed, waiting = c.elements(42)
        assert (failed.array_id, failed.job().id, failed.logs().text) == (42, 57, "element 3\n")
        with pytest.raises(NotFound, match="element 4 of array 42 is pending and no job yet"):
            waiting.logs()
        assert failed.retry().state == "pending"
        assert arrays.asked[-2].json == {"elements": "3"}
        with pytest.raises(Timeout, match="element 3 of array 42 is still pending"):
            failed.wait(timeout=0)
        done = waiting.wait(timeout=60)
        assert (done.index, done.state, done.job_id) == (4, "completed", 58)
        assert done.cancel().index == 4
        assert arrays.asked[-2].json == {"elements": "4"}
        assert b"".join(item.data for item in failed.follow() if isinstance(item, Log)) == b"element 3\n"


async def test_an_element_is_an_asynchronous_handle(arrays: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "_QUICK_SECONDS", 0.001)
    elements_that_go_on(arrays)
    async with AsyncClient(arrays.url) as c:
        failed, waiting = await c.elements(42)
        assert ((await failed.job()).id, (await failed.logs()).text) == (57, "element 3\n")
        with pytest.raises(NotFound, match="no job yet"):
            await waiting.logs()
        assert (await failed.retry()).state == "pending"
        assert arrays.asked[-2].json == {"elements": "3"}
        assert (await waiting.wait(timeout=60)).state == "completed"
        assert (await waiting.cancel()).index == 4
        said = [item.data async for item in failed.follow() if isinstance(item, Log)]
        assert b"".join(said) == b"element 3\n"


def test_both_handles_can_do_the_same() -> None:
    def verbs(kind: type) -> dict[str, list[str]]:
        named = {name: getattr(kind, name) for name in vars(kind) if not name.startswith("_")}
        return {name: list(inspect.signature(one).parameters) for name, one in named.items() if callable(one)}

    assert verbs(ArrayElement) == verbs(AsyncArrayElement)
    assert set(verbs(ArrayElement)) == {"cancel", "follow", "job", "logs", "refresh", "retry", "wait"}
    assert verbs(Job) == verbs(AsyncJob)


async def test_jobs_are_listed_by_all_that_rest_knows(arrays: FakeServer) -> None:
    wanted: JobFilters = {
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
    sent = {**{name: str(value) for name, value in wanted.items()}, "state": "failed,live", "limit": "5"}
    with Client(arrays.url) as c:
        c.list(limit=5, **wanted)
        assert arrays.asked[-1].query == sent
        with pytest.raises(TypeError, match="no filter weather"):
            c.list(weather="fine")  # type: ignore[call-arg]
    async with AsyncClient(arrays.url) as c:
        await c.list(limit=5, **wanted)
    assert arrays.asked[-1].query == sent


def test_a_job_that_is_no_array_has_no_element(server: FakeServer) -> None:
    server.on("GET", "/jobs/42/elements", Answer(200, {"items": []}))
    with Client(server.url) as c, pytest.raises(NotFound, match="no array"):
        c.element(42, 1)
