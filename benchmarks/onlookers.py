"""Pretend browsers on the live feed, as cheap as they can be: they share the machine with what they measure, so frames
are cut apart, answered and searched for marks, and not understood."""

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
# So long they take to come: a storm of them is another question.
ARRIVAL_SECONDS, MAX_TRIES = 25, 5
# After the last has come until they are counted.
SETTLING_SECONDS = 3
TIMEOUT_SECONDS, SILENCE_SECONDS = 30, 10
PROCESSES = 2


@dataclass
class Heard:
    """`ages` by kind of page: how old a change was when it was read, in seconds; with frames and bytes of the time
    that counts. `cores`: of these browsers themselves."""

    ages: dict[str, list[float]] = field(default_factory=lambda: {"nodes": [], "queue": [], "job": []})
    frames: int = 0
    bytes: int = 0
    connected: int = 0
    failed: int = 0
    cores: float = 0.0


class Onlooker(asyncio.Protocol):
    """One page: subscribes once it is upgraded, and answers `alive`."""

    def __init__(self, kind: str, greeting: bytes, wanted: list[str], heard: Heard, counts_from: float) -> None:
        self.kind, self._greeting, self._wanted = kind, greeting, wanted
        self._heard, self._counts_from = heard, counts_from
        self._unread = bytearray()
        self._seen = b""
        self.heard_at = time.monotonic()
        self.upgraded: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._greeting)

    def connection_lost(self, error: Exception | None) -> None:
        self.heard_at = float("-inf")
        if not self.upgraded.done():
            self.upgraded.set_result(False)

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self.heard_at = time.monotonic()
        self._unread += data
        if not self.upgraded.done():
            head, end, rest = bytes(self._unread).partition(b"\r\n\r\n")
            if not end:
                return
            self._unread = bytearray(rest)
            self.upgraded.set_result(head.startswith(b"HTTP/1.1 101"))
            self._say(_TEXT, json.dumps({"subscribe": self._wanted}).encode())
        while (frame := self._frame()) is not None:
            self._take(*frame)

    def _frame(self) -> tuple[int, bytes] | None:
        """(opcode, payload) of the next that is whole. Servers do not mask, and ours does not fragment."""
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

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == _PING:
            self._say(_PONG, payload)
        if opcode == _CLOSE:
            self.close()
        if opcode != _TEXT:
            return
        if b'"answer":true' in payload[:200]:
            at = payload.index(_ALIVE) + len(_ALIVE)
            self._say(_TEXT, b'{"seen":"%s"}' % payload[at : payload.index(b'"', at)])
        if self.heard_at < self._counts_from:
            return
        self._heard.frames += 1
        self._heard.bytes += len(payload)
        # A snapshot in place of what was missed is no news of this moment; there are none of it here.
        if (mark := MARK.search(payload)) and mark[1] != self._seen:
            self._seen = mark[1]
            self._heard.ages[self.kind].append(time.time() - float(mark[1]))

    def _say(self, opcode: int, payload: bytes) -> None:
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
        self._transport.write(bytes([0x80 | opcode, 0x80 | len(payload)]) + mask + masked)


@contextmanager
def onlooking(url: str, people: dict[str, Any], job_id: int, browsers: int, seconds: float) -> Iterator[Any]:
    """Browsers in processes of their own, which have come and settled; they are counted for so many seconds from now.
    Gives what waits for what they heard. `people`: `cookie` and its `keys`."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    share = [browsers // PROCESSES + (number < browsers % PROCESSES) for number in range(PROCESSES)]
    processes = [
        context.Process(target=_look, args=(url, people, job_id, sum(share[:number]), count, seconds, queue))
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


def _look(url: str, people: dict[str, Any], job_id: int, first: int, count: int, seconds: float, results: Any) -> None:
    heard = Heard()
    asyncio.run(_look_on(url, people, job_id, range(first, first + count), seconds, heard))
    results.put(heard)


async def _look_on(url: str, people: dict[str, Any], job_id: int, numbers: range, seconds: float, heard: Heard) -> None:
    kinds = {"nodes": ["overview", "nodes", "readings"], "queue": ["queue:0-100"], "job": [f"job:{job_id}"]}
    counts_from = time.monotonic() + ARRIVAL_SECONDS + SETTLING_SECONDS
    looking: list[Onlooker] = []
    port = urlsplit(url).port or 80

    async def come(number: int) -> None:
        kind = list(kinds)[number % 3]
        await asyncio.sleep((number - numbers.start) / len(numbers) * ARRIVAL_SECONDS)
        cookie = f"{people['cookie']}={people['keys'][number % len(people['keys'])]}"
        for tries in range(MAX_TRIES):
            made = Onlooker(kind, greeting(url, cookie), [*kinds[kind], "notices"], heard, counts_from)
            with suppress(OSError, TimeoutError):
                await asyncio.get_running_loop().create_connection(partial(_itself, made), "127.0.0.1", port)
                if await asyncio.wait_for(made.upgraded, TIMEOUT_SECONDS):
                    looking.append(made)
                    return
            await asyncio.sleep(1 + tries)

    await asyncio.gather(*(come(number) for number in numbers))
    heard.connected = len(looking)
    await asyncio.sleep(max(0.0, counts_from - time.monotonic()))
    before = time.process_time()
    await asyncio.sleep(max(0.0, counts_from + seconds - time.monotonic()))
    heard.cores = (time.process_time() - before) / seconds
    heard.failed = sum(time.monotonic() - one.heard_at > SILENCE_SECONDS for one in looking)
    for one in looking:
        one.close()


def _itself(made: Onlooker) -> Onlooker:
    return made


def greeting(url: str, cookie: str) -> bytes:
    """The request of an upgrade."""
    lines = [
        "GET /ws/live/ HTTP/1.1", f"Host: {urlsplit(url).netloc}", f"Origin: {url}", f"Cookie: {cookie}",
        "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ]  # fmt: skip
    return "\r\n".join([*lines, "", ""]).encode()
