"""One node of this agent: its ranks, its readings and what it says next. Ties the parts together; decides nothing."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpusched.agent import identity as identities
from gpusched.agent.gpus.occupancy import OccupancyChecker
from gpusched.agent.gpus.orphans import OrphanKiller
from gpusched.agent.gpus.release_check import ReleaseCheck
from gpusched.agent.host.machine import Machine
from gpusched.agent.identity import Identity
from gpusched.agent.rank_files.rank_dir import boot_id, now
from gpusched.agent.ranks.journal import Journal
from gpusched.agent.ranks.launcher import Launcher
from gpusched.agent.ranks.ranks import Ranks
from gpusched.agent.threads import Lane
from gpusched.protocol.agent_messages import Desired, NodeFacts, Reading, Sync
from gpusched.protocol.reasons import EndReason

logger = logging.getLogger(__name__)
T = TypeVar("T")
# The doorbell tells of starts and ends at once; this is for a lost one, and for a supervisor that was killed.
LOOK_SECONDS = 3.0
PRUNE_SECONDS = 86400.0
# Hardware changes rarely, and is told by the readings before (a lost device).
FACTS_SECONDS = 60.0
# For so long the first message waits for the facts: a container runtime that hangs must not keep the node silent.
FIRST_FACTS_SECONDS = 3.0
# Between two looks at the devices, however seldom the agent speaks: who is on a device is judged by two in a row.
READ_SECONDS = 1.0
# A driver in trouble must not keep the end of a job from being told.
LAST_LOOK_SECONDS = 2.0


class Node:
    """Asked by the link what to say, told by it what to do."""

    def __init__(
        self, directory: Path, identity: Identity, machine: Machine, launcher: Launcher, token: str, log_most_bytes: int
    ) -> None:
        self.identity = identity
        self.dirty = asyncio.Event()
        self.log_grew = asyncio.Event()
        self._directory = directory
        self._machine = machine
        self._token = token
        self._boot_id = boot_id()
        self.ranks = Ranks(
            Journal(directory, self._boot_id, identity.credential), launcher, identity.name, log_most_bytes
        )
        self._seq = 0
        self._readings: list[Reading] = []
        self._occupants = OccupancyChecker(directory)
        self._leftovers = OrphanKiller()
        self._facts: NodeFacts | None = None
        self._facts_told: NodeFacts | None = None
        self._facts_tried = asyncio.Event()
        self._facts_outdated = asyncio.Event()
        self._rung: set[str] = set()
        self._has_rung = asyncio.Event()
        # The disk and the driver may be slow; each has one piece of work at a time, in order, beside the event loop.
        self._disk, self._driver = Lane(), Lane()
        self._freed = ReleaseCheck(self.ranks.devices_of, self._left_on, self._look_at_devices, self._driver)

    @property
    def _about(self) -> dict[str, str]:
        return {"node": self.identity.name}

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run work on the ranks and their files."""
        return await self._disk.run(work)

    # --- the conversation ---

    def begin(self) -> None:
        """A new connection: the facts are told again."""
        self._facts_told = None

    async def message(self) -> Sync:
        """What to say now. Readings are told once; reports until they are acknowledged."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._facts_tried.wait(), FIRST_FACTS_SECONDS)
        self._facts_tried.set()  # waited for only once
        await self._freed.look(self.ranks.reports())
        self._seq += 1
        readings, self._readings = self._readings, []
        facts = None if self._facts == self._facts_told else self._facts
        self._facts_told = self._facts
        return Sync(
            seq=self._seq,
            at=now(),
            boot_id=self._boot_id,
            held=self.ranks.held(),
            running=self.ranks.running(),
            saved=self.ranks.saved(),
            limits=self.ranks.limits(),
            signalled=self.ranks.signalled(),
            reports=self._freed.told(self.ranks.reports()),
            readings=readings,
            facts=facts,
        )

    async def hear(self, answer: Desired) -> None:
        if answer.error:
            logger.warning("%s: the server says: %s", self.identity.name, answer.error, extra=self._about)
            self._facts_told = None  # they may have been in what was not written
        self.ranks.acknowledge(answer.started, answer.acknowledged)
        if answer.assignments:
            came_at = time.monotonic()
            await self.in_thread(lambda: self.ranks.obey(answer.assignments, came_at))
            # A stop of what never started has its end at once.
            if self.ranks.has_unreported_end():
                self.dirty.set()
        if answer.limits:
            await self.in_thread(lambda: self.ranks.limit(answer.limits))
        if answer.signals:
            await self.in_thread(lambda: self.ranks.signal(answer.signals))
        if answer.acknowledged:
            await self.in_thread(self.ranks.forget_settled)

    async def join_again(self) -> bool:
        """The server does not know the credential: with a join token at hand, joins; else gives False."""
        if not self._token:
            return False
        facts = await asyncio.to_thread(self._machine.facts)
        join = identities.join
        self.identity = await asyncio.to_thread(
            lambda: join(self._directory, self.identity, self.identity.url, self._token, facts)
        )
        await self.in_thread(lambda: self.ranks.joined(self.identity.credential))
        return True

    # --- what happens here ---

    def ring(self, keys: Iterable[str]) -> None:
        """Note that something happened to these ranks, as their supervisors say."""
        self._rung.update(keys)
        self._has_rung.set()

    async def keep_answering_rings(self) -> None:
        """Look at ranks whose supervisors rang. What is missed here, `keep_looking` finds."""
        while True:
            await self._has_rung.wait()
            self._has_rung.clear()
            rung, self._rung = self._rung, set()
            if await self.in_thread(partial(self._look, rung)):
                self.dirty.set()
                self.log_grew.set()

    def _look(self, keys: Iterable[str]) -> bool:
        return any([self.ranks.look(key) for key in keys])

    async def _look_at_devices(self) -> None:
        """Before a failure is told: a GPU that fell off the bus is to be told with it, not a second later."""
        with contextlib.suppress(TimeoutError):
            look = self._driver.run(lambda: self._machine.readings(self.ranks.busy_devices))
            self._readings = await asyncio.wait_for(look, LAST_LOOK_SECONDS)

    async def keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.ranks.known:
                if await self.in_thread(self.ranks.look_at_all):
                    self.dirty.set()
                await self.in_thread(self.ranks.remind)
                await self.in_thread(self.ranks.forget_settled)

    async def keep_tidy(self) -> None:
        """Not in turn with the rest: a job may have left a million files."""
        clock = asyncio.get_running_loop().time
        pruned_at = clock()
        while True:
            if self.ranks.has_trash:
                await asyncio.to_thread(self.ranks.empty_trash)
            if clock() - pruned_at > PRUNE_SECONDS:
                await self.in_thread(self.ranks.prune)
                pruned_at = clock()
            await asyncio.sleep(LOOK_SECONDS)

    async def keep_reading(self, every_seconds: float) -> None:
        """A driver in trouble keeps its thread, not the heartbeat."""
        while True:
            # In turn with the looks after ends: none that began before an end is told after the look at what it freed.
            readings = self._readings = await self._driver.run(self._read)
            if self._names_others(readings):
                self._facts_outdated.set()
            await asyncio.sleep(min(every_seconds, READ_SECONDS))

    async def keep_facts(self) -> None:
        """Ask what the machine is, now and then. Without an answer the server keeps what it knows."""
        while True:
            try:
                self._facts = await asyncio.to_thread(self._machine.facts)
            finally:
                self._facts_tried.set()
            if self._facts != self._facts_told:
                self.dirty.set()
            self._facts_outdated.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._facts_outdated.wait(), FACTS_SECONDS)

    def _names_others(self, readings: list[Reading]) -> bool:
        """Whether devices came or went since the facts were asked, such as another division of a GPU (MIG)."""
        if self._facts is None or not readings:
            return False
        known = {device.uuid for device in self._facts.devices}
        there = {reading.uuid for reading in readings if not reading.lost}
        return bool(there - known or known - {reading.uuid for reading in readings})

    def _left_on(self, devices: Collection[str]) -> dict[str, str]:
        readings = self._machine.look(devices, self.ranks.busy_devices)
        return self._occupants.left_on(readings, self.ranks.live())

    def _read(self) -> list[Reading]:
        readings = self._machine.readings(self.ranks.busy_devices)
        # Asked after the look: what a rank started before it is then known to be that rank's.
        judged = self._occupants.judge(readings, self.ranks.live()) if readings else []
        self._leftovers.end(self._occupants.left)
        return judged

    async def stop_jobs(self, seconds: float) -> None:
        """Ends all jobs with the agent, and waits for their ends to be known here and there."""
        await self.in_thread(lambda: self.ranks.stop_all(EndReason.AGENT_STOPPED, 2))
        try:
            async with asyncio.timeout(seconds):
                while self.ranks.has_live() or self.ranks.reports():
                    if await self.in_thread(self.ranks.look_at_all):
                        self.dirty.set()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            said = "%s: not all ends could be reported; they will be at the next start"
            logger.warning(said, self.identity.name, extra=self._about)
