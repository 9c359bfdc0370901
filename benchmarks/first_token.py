"""The time that the OpenAI API of the server adds to the first token of a stream, and many streams at once."""

import asyncio
import json
import sys
import time
from urllib.parse import urlsplit

from benchmarks.report import percentile
from tests.system.stack import ROOT, Stack, free_port
from tests.waiting import wait_for

NAME, TOKENS = "chat", 50
# Between the tokens of the streams that run at once.
PAUSE_SECONDS = 0.1


def first_token(stack: Stack, requests: int, streams: int) -> tuple[dict[str, float | int | str], int]:
    """Return medians of streams through the server and directly to the replica, in turns, and how many streams that
    run at once were complete."""
    port = free_port()
    template = {
        "command": [sys.executable, str(ROOT / "tests/serving/openai_replica.py"), str(port)],
        "gpu_count": 1,
    }
    with stack.client() as client:
        client.create_endpoint(
            NAME, template, protocol="openai", port=port, min_replicas=1, max_batch=2 * streams, max_queue=10_000,
            timeout_seconds=120,
        )  # fmt: skip
        wait_for(lambda: client.endpoint(NAME).warm, 60, "a warm replica")
    through, direct = urlsplit(stack.url).netloc, f"127.0.0.1:{port}"
    figures = asyncio.run(_measure(through, direct, stack.token(), requests, streams))
    with stack.client() as client:
        client.remove_endpoint(NAME, with_queue=True)
    failures = int(2 * requests - figures.pop("answered")) + int(streams - figures["complete_streams"])
    return dict(figures), failures


async def _measure(through: str, direct: str, token: str, requests: int, streams: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {through: [], direct: []}
    answered = 0
    for number in range(requests + 5):
        for address in (through, direct):
            first, tokens = await _stream(address, token, "count 3")
            if number >= 5:  # the first warm the caches
                seconds[address].append(first)
                answered += tokens == 3
    medians = {address: 1000 * percentile(values, 50) for address, values in seconds.items()}
    many = await asyncio.gather(
        *(_stream(through, token, f"count {TOKENS} {PAUSE_SECONDS}") for _ in range(streams)), return_exceptions=True
    )
    complete = [result for result in many if not isinstance(result, BaseException) and result[1] == TOKENS]
    return {
        "first_token_overhead_p50_ms": medians[through] - medians[direct],
        "first_token_p50_ms": medians[through],
        "direct_first_token_p50_ms": medians[direct],
        "complete_streams": len(complete),
        "answered": answered,
    }


async def _stream(address: str, token: str, content: str) -> tuple[float, int]:
    """Return the seconds until the first token of a chat, and the number of its tokens."""
    host, _, port = address.partition(":")
    message = {"role": "user", "content": content}
    body = json.dumps({"model": NAME, "stream": True, "messages": [message]})
    lines = [
        "POST /v1/chat/completions HTTP/1.1", f"Host: {address}", f"Authorization: Bearer {token}",
        "Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close",
    ]  # fmt: skip
    reader, writer = await asyncio.open_connection(host, int(port))
    began, first, tokens = time.perf_counter(), 0.0, 0
    writer.write("\r\n".join([*lines, "", body]).encode())
    async with asyncio.timeout(120):
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                tokens += 1
                first = first or time.perf_counter() - began
            elif line.startswith(b"data: [DONE]"):
                break
    writer.close()
    return first, tokens
