"""Send changes between processes through Redis instead of PostgreSQL, if GPUSCHED_REDIS_URL is set.

Redis stores nothing for processes that do not listen at that moment. So each sender numbers its messages, and repeats
its last number when it has nothing to send: a receiver that misses a number treats every topic as changed. Each web
process also sends itself a message each second, which proves both directions."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

import msgspec
from channels.layers import get_channel_layer
from redis.exceptions import RedisError

from gpusched.lib.bus.changes import EVERYTHING, Changes

logger = logging.getLogger(__name__)
LAYER = GROUP = "changes"
SEND_SECONDS = 1.0
# After a failure, publish through PostgreSQL alone for this time.
AVOID_SECONDS = 2.0
BEAT_SECONDS, SILENCE_SECONDS, SETTLE_SECONDS = 1.0, 3.0, 0.7
MAX_SENDERS = 1000
# A malformed address is a ValueError. On any failure PostgreSQL takes over.
FAILURES = (RedisError, OSError, TimeoutError, ValueError, RuntimeError)


class ChangeMessage(msgspec.Struct, omit_defaults=True):
    """`number` counts the messages of `sender` with changes; one without `changed` repeats the last number. `is_beat`:
    a web process sends it to itself."""

    sender: str
    number: int = 0
    changed: dict[str, list[int]] = {}
    is_beat: bool = False


class Publisher:
    """Publish for one thread, and wait at most a second each time."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._message = ChangeMessage(uuid.uuid4().hex)
        self._avoided_until = float("-inf")
        self._is_away = False

    def publish(self, changed: Changes) -> bool:
        """Publish changes. Return False if they must go another way."""
        self._message.number += 1
        self._message.changed = {topic: sorted(ids) for topic, ids in changed.items()}
        return self._send_message()

    def repeat(self) -> None:
        """Repeat the last number."""
        self._message.changed = {}
        self._send_message()

    def close(self) -> None:
        self._loop.close()

    def _send_message(self) -> bool:
        if time.monotonic() < self._avoided_until:
            return False
        try:
            self._loop.run_until_complete(asyncio.wait_for(_send(self._message), SEND_SECONDS))
        except FAILURES as error:
            if not self._is_away:
                logger.warning("cannot publish changes through Redis, using PostgreSQL: %r", error)
            self._is_away, self._avoided_until = True, time.monotonic() + AVOID_SECONDS
            return False
        if self._is_away:
            logger.warning("publishing changes through Redis again")
        self._is_away = False
        return True


class Subscriber:
    """Receive messages for a web process, in its event loop. `is_connected`: messages of Redis arrive here. While they
    do not, `notify` is called every second with every topic."""

    def __init__(self, notify: Callable[[dict[str, list[int]]], None]) -> None:
        self._notify = notify
        self._sender = uuid.uuid4().hex
        self._numbers: dict[str, int] = {}
        self.is_connected = False

    async def listen(self) -> None:
        """Receive messages until Redis falls silent or fails, and pause a moment."""
        layer = get_channel_layer(LAYER)
        beat = asyncio.get_running_loop().create_task(self._beat())
        try:
            channel = await layer.new_channel()
            await layer.group_add(GROUP, channel)
            await self._receive_all(channel)
        except FAILURES as error:
            if self.is_connected:
                logger.warning("lost the messages of Redis, polling each second: %r", error)
        finally:
            self.is_connected = False
            beat.cancel()
            await asyncio.gather(beat, layer.flush(), return_exceptions=True)
        self._notify(EVERYTHING)
        await asyncio.sleep(SETTLE_SECONDS)

    async def _beat(self) -> None:
        while True:
            with suppress(*FAILURES):
                await _send(ChangeMessage(self._sender, is_beat=True))
            await asyncio.sleep(BEAT_SECONDS)

    async def _receive_all(self, channel: str) -> None:
        layer = get_channel_layer(LAYER)
        while True:
            message = await asyncio.wait_for(layer.receive(channel), SILENCE_SECONDS)
            try:
                self._handle(msgspec.convert(message, ChangeMessage))
            except msgspec.ValidationError as error:
                logger.warning("received a message of another version from Redis: %s", error)
                self._notify(EVERYTHING)

    def _handle(self, message: ChangeMessage) -> None:
        if message.is_beat:
            if message.sender == self._sender and not self.is_connected:
                self.is_connected = True
                self._notify(EVERYTHING)  # earlier messages were not received
            return
        expected = self._numbers.get(message.sender, 0) + bool(message.changed)
        if len(self._numbers) > MAX_SENDERS:
            self._numbers.clear()
        self._numbers[message.sender] = message.number
        if message.number != expected:
            self._notify(EVERYTHING)
        elif message.changed:
            self._notify(message.changed)


async def _send(message: ChangeMessage) -> None:
    await get_channel_layer(LAYER).group_send(GROUP, msgspec.to_builtins(message))
