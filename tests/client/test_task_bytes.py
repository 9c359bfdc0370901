"""Tasks with JSON or bytes as their input and result, in the SDK and on the command line."""

import asyncio
from pathlib import Path
from typing import Any

from gpusched.client import AsyncClient, Client
from tests.client.commandline import call
from tests.client.fakeserver import Answer, FakeServer

TASK = {"id": 7, "endpoint": "embed", "tenant": "nlp", "user": "ada", "state": "queued", "cost": 1.0}
DONE = {**TASK, "state": "completed", "batch_size": 1, "flush_reason": "idle"}


def queued(server: FakeServer) -> None:
    server.on("POST", "/tasks", Answer(201, {"items": [TASK], "queued": 1}))


def completed(server: FakeServer, result: Any = None, **fields: Any) -> None:
    server.on("GET", "/tasks", Answer(200, {"items": [{**DONE, **fields}], "next_cursor": None}))
    server.on("GET", "/tasks/7/result", Answer(200, result, {"Content-Disposition": "attachment"}))


def test_small_json_is_sent_in_an_envelope(server: FakeServer) -> None:
    queued(server)
    with Client(server.url) as client:
        client.submit_task("embed", {"text": "a"}, tenant="nlp", units=2.0)
    [request] = server.requests
    assert request.json == {"endpoint": "embed", "tenant": "nlp", "inputs": [{"text": "a"}], "units": 2.0}
    assert request.query == {}


def test_bytes_are_the_body_with_their_type(server: FakeServer) -> None:
    queued(server)
    with Client(server.url) as client:
        client.submit_task("embed", b"\x00\xff", tenant="nlp", units=1234.5678, content_type="image/png")
        client.submit_task("embed", bytearray(b"ab"))
    first, second = server.requests
    assert (first.body, first.headers["content-type"]) == (b"\x00\xff", "image/png")
    assert first.query == {"endpoint": "embed", "tenant": "nlp", "units": "1234.5678"}
    assert first.headers["idempotency-key"]
    assert (second.body, second.headers["content-type"]) == (b"ab", "application/octet-stream")


def test_large_json_is_the_body(server: FakeServer) -> None:
    queued(server)
    with Client(server.url) as client:
        client.submit_task("embed", "x" * (300 << 10))
    [request] = server.requests
    assert (request.headers["content-type"], len(request.body)) == ("application/json", (300 << 10) + 2)


def test_output_is_fetched_unless_it_is_small_json(server: FakeServer) -> None:
    async def output() -> Any:
        async with AsyncClient(server.url) as client:
            return await client.task_output(await client.wait_task(7))

    completed(server, output=[1], output_type="application/json", output_bytes=3)
    assert asyncio.run(output()) == [1]
    completed(server, [2], output_type="application/json", output_bytes=300 << 10)
    assert asyncio.run(output()) == [2]
    completed(server, [3], output_type="application/octet-stream", output_bytes=3)
    assert asyncio.run(output()) == b"[3]"


def test_map_sends_and_returns_bytes(server: FakeServer) -> None:
    queued(server)
    completed(server, [3], output_type="application/octet-stream", output_bytes=3)
    with Client(server.url) as client:
        assert list(client.map("embed", [b"a", b"b"])) == [b"[3]", b"[3]"]
    assert [request.body for request in server.requests if request.method == "POST"] == [b"a", b"b"]


def test_command_sends_a_file_by_its_type_and_writes_the_result(server: FakeServer, tmp_path: Path) -> None:
    queued(server)
    completed(server, [3], output_type="image/png", output_bytes=3)
    picture, text = tmp_path / "cat.png", tmp_path / "a.json"
    picture.write_bytes(b"\x89PNG")
    text.write_text('{"a": 1}')
    done = call(server.url, "task", "submit", "embed", "--file", str(picture), "--wait")
    assert "3 bytes of image/png: gpusched task result 7" in done.stdout
    assert (server.requests[0].body, server.requests[0].headers["content-type"]) == (b"\x89PNG", "image/png")
    assert call(server.url, "task", "submit", "embed", "-f", str(text), "--units", "2").exit_code == 0
    assert server.requests[-1].json == {"endpoint": "embed", "inputs": [{"a": 1}], "units": 2.0}
    assert call(server.url, "task", "result", "7").stdout == "[3]"


def test_command_refuses_a_file_beside_an_input_and_one_that_is_missing(server: FakeServer, tmp_path: Path) -> None:
    assert call(server.url, "task", "submit", "embed", "text", "--file", "a.png").exit_code == 2
    assert call(server.url, "task", "submit", "embed", "--file", str(tmp_path / "no.png")).exit_code == 2
    assert server.requests == []


def test_command_creates_an_endpoint_that_shares_replicas_without_a_program(server: FakeServer) -> None:
    endpoint = {"id": 3, "name": "rerank", "tenant": "nlp", "owner": "ada", "state": "active", "type": "other", "cost": 1.0,
                "protocol": "batch", "template": {}, "shares_replicas_with": "embed"}  # fmt: skip
    server.on("POST", "/endpoints", Answer(201, endpoint))
    create = ("endpoint", "create", "--shares-replicas-with", "embed")
    assert call(server.url, *create, "rerank").exit_code == 0
    assert server.requests[0].json["shares_replicas_with"] == "embed"
    assert server.requests[0].json["template"] == {}
    assert call(server.url, *create, "rerank", "--", "serve").exit_code == 2
    assert call(server.url, "endpoint", "create", "rerank").exit_code == 2
