"""Looks at the devices of ranks that have ended before their ends are told: free, or who or what is on them (A34)."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable

from msgspec.structs import replace

from gpusched.protocol.messages import Ended, Report

# A driver lists a process, and counts its memory, for a moment after its end.
MOMENT_SECONDS, PAUSE_SECONDS = 0.5, 0.02
# A driver in trouble must not keep an end from being told; but what it does not say is not free.
ANSWER_SECONDS = 2.0
SILENT = "the driver did not say whether it is free"


class Freed:
    """The verdicts on ends that the server does not know yet. `devices_of`: those of a rank, by key. `left_on`: what is
    on devices that should not be, by UUID. Both block. `looking`: held while the devices are looked at."""

    def __init__(
        self,
        devices_of: Callable[[str], Collection[str]],
        left_on: Callable[[Collection[str]], dict[str, str]],
        looking: asyncio.Lock,
    ) -> None:
        self._devices_of, self._left_on, self._looking = devices_of, left_on, looking
        self._verdicts: dict[str, dict[str, str]] = {}

    async def look(self, reports: Iterable[Report]) -> None:
        """Looks once per end, and at the devices of all new ones together."""
        keys = [report.key for report in reports if isinstance(report, Ended)]
        self._verdicts = {key: self._verdicts[key] for key in keys if key in self._verdicts}
        if new := [key for key in keys if key not in self._verdicts]:
            of = await asyncio.to_thread(lambda: {key: self._devices_of(key) for key in new})
            devices = frozenset(uuid for uuids in of.values() for uuid in uuids)
            left = await self._left(devices) if devices else {}
            self._verdicts |= {key: {uuid: left[uuid] for uuid in of[key] if uuid in left} for key in new}

    def told(self, reports: Iterable[Report]) -> list[Report]:
        """The reports, each end with what was left on its devices; those that came after the look wait for the next."""
        ready = [one for one in reports if not isinstance(one, Ended) or one.key in self._verdicts]
        return [replace(one, left=self._verdicts[one.key]) if isinstance(one, Ended) else one for one in ready]

    async def _left(self, devices: Collection[str]) -> dict[str, str]:
        until = time.monotonic() + MOMENT_SECONDS
        while True:
            look = asyncio.create_task(self._look(devices))
            done, _ = await asyncio.wait([look], timeout=ANSWER_SECONDS)
            if not done:  # it goes on by itself, and keeps others from looking at the same time
                return dict.fromkeys(devices, SILENT)
            left = look.result()
            if not left or time.monotonic() > until:
                return left
            await asyncio.sleep(PAUSE_SECONDS)

    async def _look(self, devices: Collection[str]) -> dict[str, str]:
        async with self._looking:
            return await asyncio.to_thread(self._left_on, devices)
