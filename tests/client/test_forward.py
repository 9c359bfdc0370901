"""`gpusched forward`: what ends it, and what does not."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from gpusched.cli.jobs.forward import _Forwarding
from gpusched.cli.terminal import messages
from gpusched.client.errors import from_answer


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    noted: list[str] = []
    monkeypatch.setattr(messages, "note", noted.append)
    monkeypatch.setattr(messages, "failure", lambda error: noted.append(str(error)))
    return noted


async def local_connection(notes: list[str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the local port, which the first note names."""
    while not notes:
        await asyncio.sleep(0)
    return await asyncio.open_connection("127.0.0.1", int(notes[0].split()[0].rpartition(":")[2]))


def forwarding(state: str = "running") -> _Forwarding:
    job = SimpleNamespace(id=42, state=state, is_final=state == "completed")
    client: Any = SimpleNamespace(get=lambda job_id: job)
    return _Forwarding(client, 42, 0, 8888, None)


@pytest.mark.parametrize(
    ("code", "state", "end"),
    [
        ("rank_ended", "pending", None),
        ("wrong_state", "pending", None),
        ("not_listening", "running", None),
        ("rank_ended", "completed", "job 42 has ended: it is completed"),
        ("wrong_state", "completed", "job 42 has ended: it is completed"),
        ("not_permitted", "running", "why"),
    ],
)
def test_forward_ends_with_the_job_and_not_with_an_attempt(
    monkeypatch: pytest.MonkeyPatch, notes: list[str], code: str, state: str, end: str | None
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise from_answer(409, json.dumps({"detail": "why", "code": code}).encode(), "the stream")

    monkeypatch.setattr("gpusched.client.streams.open_stream", refuse)

    async def run() -> str | None:
        running = asyncio.create_task(forwarding(state).run(0))
        reader, writer = await local_connection(notes)
        assert await reader.read() == b""
        writer.close()
        return str(await running) if end else None if running.cancel() else "it has ended"

    assert asyncio.run(run()) == end
    assert notes[1:] == ([] if end else ["why"])


def test_end_of_forward_with_an_open_connection_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    opening = asyncio.Event()

    async def hang(*_: Any, **__: Any) -> None:
        opening.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("gpusched.client.streams.open_stream", hang)
    reported: list[dict[str, Any]] = []

    async def interrupted() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        asyncio.create_task(forwarding().run(0))  # noqa: RUF006 it is cancelled with the loop
        await local_connection(notes)
        await opening.wait()

    asyncio.run(interrupted())
    assert reported == []
