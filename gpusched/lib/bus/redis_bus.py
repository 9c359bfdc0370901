"""Carries what changed from process to process by Redis instead of by PostgreSQL, where GPUSCHED_REDIS_URL names one.

Redis keeps nothing for who does not listen at that moment. So each sender numbers what it says, and says its last
number once more when it has nothing to say: who finds that one is missing takes everything as changed. Each web process
also hears itself once a second, which proves the way there and back."""

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
SAY_SECONDS = 1.0
# After a failure, for so long everything goes by PostgreSQL at once.
AVOID_SECONDS = 2.0
BEAT_SECONDS, SILENCE_SECONDS, LOOK_SECONDS = 1.0, 3.0, 0.7
MAX_SENDERS = 1000
# An address that nobody understands is a ValueError; whatever it is, PostgreSQL stands in.
FAILURES = (RedisError, OSError, TimeoutError, ValueError, RuntimeError)


class Said(msgspec.Struct, omit_defaults=True):
    """`number` counts what `sender` said changed; without `changed` it is the number of what was said last. A web
    process that says `is_beat` wants to hear itself."""

    sender: str
    number: int = 0
    changed: dict[str, list[int]] = {}
    is_beat: bool = False


class Publisher:
    """Speaks for one thread, which never waits longer than a second."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._said = Said(uuid.uuid4().hex)
        self._avoided_until = float("-inf")
        self._is_away = False

    def tell(self, changed: Changes) -> bool:
        """False: it is to be told in another way."""
        self._said.number += 1
        self._said.changed = {topic: sorted(ids) for topic, ids in changed.items()}
        return self._say()

    def repeat(self) -> None:
        """Says which number was the last."""
        self._said.changed = {}
        self._say()

    def close(self) -> None:
        self._loop.close()

    def _say(self) -> bool:
        if time.monotonic() < self._avoided_until:
            return False
        try:
            self._loop.run_until_complete(asyncio.wait_for(_send(self._said), SAY_SECONDS))
        except FAILURES as error:
            if not self._is_away:
                logger.warning("Redis does not take what changed, it goes by PostgreSQL: %r", error)
            self._is_away, self._avoided_until = True, time.monotonic() + AVOID_SECONDS
            return False
        if self._is_away:
            logger.warning("Redis takes what changed again")
        self._is_away = False
        return True


class Subscriber:
    """Hears for a web process, in its event loop. `hears`: what is told by Redis arrives here; while it does not,
    `tell` is told every second that everything may have changed."""

    def __init__(self, tell: Callable[[dict[str, list[int]]], None]) -> None:
        self._tell = tell
        self._own = uuid.uuid4().hex
        self._numbers: dict[str, int] = {}
        self.hears = False

    async def hear(self) -> None:
        """Until Redis falls silent or fails, and a moment more."""
        layer = get_channel_layer(LAYER)
        beat = asyncio.get_running_loop().create_task(self._beat())
        try:
            channel = await layer.new_channel()
            await layer.group_add(GROUP, channel)
            await self._take_all(channel)
        except FAILURES as error:
            if self.hears:
                logger.warning("lost what Redis tells, looking each second: %r", error)
        finally:
            self.hears = False
            beat.cancel()
            await asyncio.gather(beat, layer.flush(), return_exceptions=True)
        self._tell(EVERYTHING)
        await asyncio.sleep(LOOK_SECONDS)

    async def _beat(self) -> None:
        while True:
            with suppress(*FAILURES):
                await _send(Said(self._own, is_beat=True))
            await asyncio.sleep(BEAT_SECONDS)

    async def _take_all(self, channel: str) -> None:
        layer = get_channel_layer(LAYER)
        while True:
            message = await asyncio.wait_for(layer.receive(channel), SILENCE_SECONDS)
            try:
                self._take(msgspec.convert(message, Said))
            except msgspec.ValidationError as error:
                logger.warning("Redis tells what is no message of this version: %s", error)
                self._tell(EVERYTHING)

    def _take(self, said: Said) -> None:
        if said.is_beat:
            if said.sender == self._own and not self.hears:
                self.hears = True
                self._tell(EVERYTHING)  # what was said before this was not heard
            return
        expected = self._numbers.get(said.sender, 0) + bool(said.changed)
        if len(self._numbers) > MAX_SENDERS:
            self._numbers.clear()
        self._numbers[said.sender] = said.number
        if said.number != expected:
            self._tell(EVERYTHING)
        elif said.changed:
            self._tell(said.changed)


async def _send(said: Said) -> None:
    await get_channel_layer(LAYER).group_send(GROUP, msgspec.to_builtins(said))
