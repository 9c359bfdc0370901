"""Check the devices of ended ranks before their ends are reported: whether a device failed with its rank, and whether
it is free (A34)."""

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
# A driver in trouble must not delay the report of an end; but a device without an answer does not count as free.
ANSWER_SECONDS = 2.0
SILENT = "the driver did not say whether it is free"


class ReleaseCheck:
    """The device verdicts of ends that the server has not acknowledged. `devices_of`: the devices of a rank, by key.
    `occupants_of`: the unexpected occupants of devices, by UUID. Both block. `read`: reads all devices for errors
    before a failure is reported. `driver`: the lane in which all device reads take turns."""

    def __init__(
        self,
        devices_of: Callable[[str], Collection[str]],
        occupants_of: Callable[[Collection[str]], dict[str, str]],
        read: Callable[[], Awaitable[None]],
        driver: Lane,
    ) -> None:
        self._devices_of, self._occupants_of, self._read, self._driver = devices_of, occupants_of, read, driver
        self._verdicts: dict[str, dict[str, str]] = {}

    async def check(self, reports: Iterable[Report]) -> None:
        """Check each end once; read the devices of all new ends together."""
        ends = {report.key: report for report in reports if isinstance(report, Ended)}
        self._verdicts = {key: self._verdicts[key] for key in ends if key in self._verdicts}
        if new := [key for key in ends if key not in self._verdicts]:
            devices_by_key = await asyncio.to_thread(lambda: {key: self._devices_of(key) for key in new})
            devices = frozenset(uuid for uuids in devices_by_key.values() for uuid in uuids)
            has_failed = any(
                devices_by_key[key] and (ends[key].signal is not None or ends[key].exit_code) for key in new
            )
            occupants = await self._inspect(devices, has_failed) if devices else {}
            self._verdicts |= {
                key: {uuid: occupants[uuid] for uuid in devices_by_key[key] if uuid in occupants} for key in new
            }

    def with_verdicts(self, reports: Iterable[Report]) -> list[Report]:
        """Return the reports, each end with the occupants of its devices. Ends without a verdict wait for the next
        message."""
        ready = [report for report in reports if not isinstance(report, Ended) or report.key in self._verdicts]
        return [
            replace(report, left=self._verdicts[report.key]) if isinstance(report, Ended) else report
            for report in ready
        ]

    async def _inspect(self, devices: Collection[str], has_failed: bool) -> dict[str, str]:
        try:
            if has_failed:
                await self._read()
            return await self._occupants_after_moment(devices)
        except Exception:  # a driver's error must not delay the report of an end, either
            logger.exception("the devices of ended ranks cannot be read")
            return dict.fromkeys(devices, SILENT)

    async def _occupants_after_moment(self, devices: Collection[str]) -> dict[str, str]:
        until = time.monotonic() + MOMENT_SECONDS
        while True:
            try:  # a read that takes longer continues, and later reads wait for it
                occupants = await asyncio.wait_for(
                    self._driver.run(lambda: self._occupants_of(devices)), ANSWER_SECONDS
                )
            except TimeoutError:
                return dict.fromkeys(devices, SILENT)
            if not occupants or time.monotonic() > until:
                return occupants
            await asyncio.sleep(PAUSE_SECONDS)
