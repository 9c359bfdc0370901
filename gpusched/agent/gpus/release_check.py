"""Looks at the devices of ranks that have ended before their ends are told: whether one failed with its rank, and
whether they are free, or who or what is on them (A34)."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable

from msgspec.structs import replace

from gpusched.agent.threads import Lane
from gpusched.protocol.agent_messages import Ended, Report

logger = logging.getLogger(__name__)
# A driver lists a process, and counts its memory, for a moment after its end.
MOMENT_SECONDS, PAUSE_SECONDS = 0.5, 0.02
# A driver in trouble must not keep an end from being told; but what it does not say is not free.
ANSWER_SECONDS = 2.0
SILENT = "the driver did not say whether it is free"


class ReleaseCheck:
    """The verdicts on ends that the server does not know yet. `devices_of`: those of a rank, by key. `left_on`: what is
    on devices that should not be, by UUID. Both block. `read`: reads all devices for errors before a failure is told.
    `driver`: where devices are looked at, in turn with all other looks."""

    def __init__(
        self,
        devices_of: Callable[[str], Collection[str]],
        left_on: Callable[[Collection[str]], dict[str, str]],
        read: Callable[[], Awaitable[None]],
        driver: Lane,
    ) -> None:
        self._devices_of, self._left_on, self._read, self._driver = devices_of, left_on, read, driver
        self._verdicts: dict[str, dict[str, str]] = {}

    async def look(self, reports: Iterable[Report]) -> None:
        """Looks once per end, and at the devices of all new ones together."""
        ends = {report.key: report for report in reports if isinstance(report, Ended)}
        self._verdicts = {key: self._verdicts[key] for key in ends if key in self._verdicts}
        if new := [key for key in ends if key not in self._verdicts]:
            of = await asyncio.to_thread(lambda: {key: self._devices_of(key) for key in new})
            devices = frozenset(uuid for uuids in of.values() for uuid in uuids)
            has_failed = any(of[key] and (ends[key].signal is not None or ends[key].exit_code) for key in new)
            left = await self._inspect(devices, has_failed) if devices else {}
            self._verdicts |= {key: {uuid: left[uuid] for uuid in of[key] if uuid in left} for key in new}

    def told(self, reports: Iterable[Report]) -> list[Report]:
        """The reports, each end with what was left on its devices; those that came after the look wait for the next."""
        ready = [one for one in reports if not isinstance(one, Ended) or one.key in self._verdicts]
        return [replace(one, left=self._verdicts[one.key]) if isinstance(one, Ended) else one for one in ready]

    async def _inspect(self, devices: Collection[str], has_failed: bool) -> dict[str, str]:
        try:
            if has_failed:
                await self._read()
            return await self._left(devices)
        except Exception:  # an error of the driver must not keep an end from being told, either
            logger.exception("the devices of ranks that ended cannot be looked at")
            return dict.fromkeys(devices, SILENT)

    async def _left(self, devices: Collection[str]) -> dict[str, str]:
        until = time.monotonic() + MOMENT_SECONDS
        while True:
            try:  # a look that takes longer goes on by itself, and keeps others from looking at the same time
                left = await asyncio.wait_for(self._driver.run(lambda: self._left_on(devices)), ANSWER_SECONDS)
            except TimeoutError:
                return dict.fromkeys(devices, SILENT)
            if not left or time.monotonic() > until:
                return left
            await asyncio.sleep(PAUSE_SECONDS)
