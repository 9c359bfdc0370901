"""Simulated browsers on the live feed. They share the machine with the system that they measure, so they only split
frames, answer them and search them for marks, without parsing them."""

import asyncio
import json
import multiprocessing
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

MARK = re.compile(rb"mark-(\d+\.\d+)-")
_ALIVE = b'"alive":"'
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10
# All connect within this time: a storm of connections is another question.
ARRIVAL_SECONDS, MAX_TRIES = 25, 5
# From the last connection until the measurement.
SETTLING_SECONDS = 3
TIMEOUT_SECONDS, SILENCE_SECONDS = 30, 10
PROCESSES = 2


@dataclass
class Received:
    """The data that browsers received. `ages`: by kind of page, the age of a change when it was read, in seconds;
    `frames`, `bytes`: of the measured time; `cores`: used by these browsers themselves."""

    ages: dict[str, list[float]] = field(default_factory=lambda: {"nodes": [], "queue": [], "job": []})
    frames: int = 0
    bytes: int = 0
    connected: int = 0
    failed: int = 0
    cores: float = 0.0


class Onlooker(asyncio.Protocol):
    """One page: subscribes once its connection is upgraded, and answers `alive`."""

    def __init__(self, kind: str, greeting: bytes, topics: list[str], received: Received, counts_from: float) -> None:
        self.kind, self._greeting, self._topics = kind, greeting, topics
        self._received, self._counts_from = received, counts_from
        self._unread = bytearray()
        self._last_mark = b""
        self.received_at = time.monotonic()
        self.upgraded: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._greeting)

    def connection_lost(self, error: Exception | None) -> None:
        self.received_at = float("-inf")
        if not self.upgraded.done():
            self.upgraded.set_result(False)

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self.received_at = time.monotonic()
        self._unread += data
        if not self.upgraded.done():
            head, end, frames = bytes(self._unread).partition(b"\r\n\r\n")
            if not end:
                return
            self._unread = bytearray(frames)
            self.upgraded.set_result(head.startswith(b"HTTP/1.1 101"))
            self._send(_TEXT, json.dumps({"subscribe": self._topics}).encode())
        while (frame := self._frame()) is not None:
            self._handle(*frame)

    def _frame(self) -> tuple[int, bytes] | None:
        """Return (opcode, payload) of the next complete frame. Servers do not mask, and ours does not fragment."""
        unread = self._unread
        if len(unread) < 2:
            return None
        length, start = unread[1], 2
        if length > 125:
            start = 4 if length == 126 else 10
            length = int.from_bytes(unread[2:start], "big")
        if len(unread) < start + length:
            return None
        opcode, payload = unread[0] & 15, bytes(unread[start : start + length])
        del unread[: start + length]
        return opcode, payload

    def _handle(self, opcode: int, payload: bytes) -> None:
        if opcode == _PING:
            self._send(_PONG, payload)
        if opcode == _CLOSE:
            self.close()
        if opcode != _TEXT:
            return
        if b'"answer":true' in payload[:200]:
            at = payload.index(_ALIVE) + len(_ALIVE)
            self._send(_TEXT, b'{"seen":"%s"}' % payload[at : payload.index(b'"', at)])
        if self.received_at < self._counts_from:
            return
        self._received.frames += 1
        self._received.bytes += len(payload)
        # Only new marks count; a snapshot that replaces missed frames would repeat an old one.
        if (mark := MARK.search(payload)) and mark[1] != self._last_mark:
            self._last_mark = mark[1]
            self._received.ages[self.kind].append(time.time() - float(mark[1]))

    def _send(self, opcode: int, payload: bytes) -> None:
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
        self._transport.write(bytes([0x80 | opcode, 0x80 | len(payload)]) + mask + masked)


@contextmanager
def onlooking(url: str, people: dict[str, Any], job_id: int, browsers: int, seconds: float) -> Iterator[Any]:
    """Run browsers in processes of their own, and measure them for this many seconds once they have settled.
    Yield a function that waits for their results. `people`: `cookie` and its `keys`."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    share = [browsers // PROCESSES + (number < browsers % PROCESSES) for number in range(PROCESSES)]
    processes = [
        context.Process(target=_browse, args=(url, people, job_id, sum(share[:number]), count, seconds, queue))
        for number, count in enumerate(share)
    ]
    for process in processes:
        process.start()
    try:
        time.sleep(ARRIVAL_SECONDS + SETTLING_SECONDS)
        yield lambda: [queue.get(timeout=seconds + 60) for _ in processes]
    finally:
        for process in processes:
            process.join(20)
            process.kill()


def _browse(
    url: str, people: dict[str, Any], job_id: int, first: int, count: int, seconds: float, results: Any
) -> None:
    received = Received()
    asyncio.run(_browse_all(url, people, job_id, range(first, first + count), seconds, received))
    results.put(received)


async def _browse_all(
    url: str, people: dict[str, Any], job_id: int, numbers: range, seconds: float, received: Received
) -> None:
    kinds = {"nodes": ["overview", "nodes", "readings"], "queue": ["queue:0-100"], "job": [f"job:{job_id}"]}
    counts_from = time.monotonic() + ARRIVAL_SECONDS + SETTLING_SECONDS
    onlookers: list[Onlooker] = []
    port = urlsplit(url).port or 80

    async def connect(number: int) -> None:
        kind = list(kinds)[number % 3]
        await asyncio.sleep((number - numbers.start) / len(numbers) * ARRIVAL_SECONDS)
        cookie = f"{people['cookie']}={people['keys'][number % len(people['keys'])]}"
        for tries in range(MAX_TRIES):
            onlooker = Onlooker(kind, greeting(url, cookie), [*kinds[kind], "notices"], received, counts_from)
            with suppress(OSError, TimeoutError):
                await asyncio.get_running_loop().create_connection(
                    partial(_return_onlooker, onlooker), "127.0.0.1", port
                )
                if await asyncio.wait_for(onlooker.upgraded, TIMEOUT_SECONDS):
                    onlookers.append(onlooker)
                    return
            await asyncio.sleep(1 + tries)

    await asyncio.gather(*(connect(number) for number in numbers))
    received.connected = len(onlookers)
    await asyncio.sleep(max(0.0, counts_from - time.monotonic()))
    cpu_before = time.process_time()
    await asyncio.sleep(max(0.0, counts_from + seconds - time.monotonic()))
    received.cores = (time.process_time() - cpu_before) / seconds
    received.failed = sum(time.monotonic() - onlooker.received_at > SILENCE_SECONDS for onlooker in onlookers)
    for onlooker in onlookers:
        onlooker.close()


def _return_onlooker(onlooker: Onlooker) -> Onlooker:
    return onlooker


def greeting(url: str, cookie: str) -> bytes:
    """Return the request of an upgrade."""
    lines = [
        "GET /ws/live/ HTTP/1.1", f"Host: {urlsplit(url).netloc}", f"Origin: {url}", f"Cookie: {cookie}",
        "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ]  # fmt: skip
    return "\r\n".join([*lines, "", ""]).encode()
