"""The state of one node: its ranks, its readings and its next message. It connects the parts and makes no decisions."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from gpusched.agent import identity as identities
from gpusched.agent.credentials import Credentials
from gpusched.agent.gpus.occupancy import DIRTY, OccupancyChecker
from gpusched.agent.gpus.orphans import OrphanKiller
from gpusched.agent.gpus.release_check import ReleaseCheck
from gpusched.agent.host.machine import Machine
from gpusched.agent.identity import Identity
from gpusched.agent.rank_files.rank_dir import boot_id, now
from gpusched.agent.ranks.journal import Journal
from gpusched.agent.ranks.launcher import Launcher
from gpusched.agent.ranks.ranks import Ranks
from gpusched.agent.streams.streams import Streams
from gpusched.agent.threads import Lane
from gpusched.protocol.addresses import Addresses
from gpusched.protocol.agent_messages import Desired, NodeFacts, Reading, Sync
from gpusched.protocol.reasons import EndReason

logger = logging.getLogger(__name__)
T = TypeVar("T")
# Notifications report starts and ends at once; polling covers a lost one, and a supervisor that was killed.
POLL_SECONDS = 3.0
PRUNE_SECONDS = 86400.0
# Hardware changes rarely, and readings show it earlier (a lost device).
FACTS_SECONDS = 60.0
# Longest wait of the first message for the facts: a container runtime that hangs must not keep the node silent.
FIRST_FACTS_SECONDS = 3.0
# Between two readings, however rarely the agent reports: occupancy needs two in a row.
READ_SECONDS = 1.0
# A driver without persistence mode may take a second or two per GPU.
HUNG_SECONDS = 30.0
HUNG = "the driver has not answered for {:g} s"
# A driver in trouble must not delay the report of a job's end.
LAST_READ_SECONDS = 2.0
# Longest wait of a message for the times of checkpoints: a disk that hangs must not keep the node silent.
SAVED_SECONDS = 1.0


class Node:
    """The state and the parts of one node. The link asks it for messages and passes it the answers."""

    def __init__(
        self, directory: Path, identity: Identity, machine: Machine, launcher: Launcher, token: str, log_max_bytes: int
    ) -> None:
        self.credentials = Credentials(directory, identity)
        self.addresses = Addresses(identity.url)
        self.dirty = asyncio.Event()
        self.log_may_grow = asyncio.Event()
        self._directory = directory
        self._machine = machine
        self._token = token
        self.boot_id = boot_id()
        self.ranks = Ranks(Journal(directory, self.boot_id, identity.plane), launcher, identity.name, log_max_bytes)
        self._seq = 0
        self._readings: list[Reading] = []
        self._occupancy = OccupancyChecker(directory)
        self._orphan_killer = OrphanKiller()
        self._facts: NodeFacts | None = None
        self._facts_sent: NodeFacts | None = None
        self._facts_tried = asyncio.Event()
        self._facts_outdated = asyncio.Event()
        self._saved: dict[str, str] = {}
        self._saved_reading: asyncio.Future[dict[str, str]] | None = None
        self._notified: set[str] = set()
        self._has_notified = asyncio.Event()
        # The disk and the driver may be slow; each does one piece of work at a time, in order, beside the event loop.
        self._disk, self._driver, self._processes = Lane(), Lane(), Lane()
        self._release_check = ReleaseCheck(self.ranks.devices_of, self._occupants_of, self._read_devices, self._driver)

    @property
    def identity(self) -> Identity:
        return self.credentials.identity

    @property
    def url(self) -> str:
        """The address of the control plane to use."""
        return self.addresses.current

    @property
    def _about(self) -> dict[str, str]:
        return {"node": self.identity.name}

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run work on the ranks and their files."""
        return await self._disk.run(work)

    # --- the connection ---

    def begin(self) -> None:
        """Start a new connection: send the facts and the starts of live ranks again. The server may have been restored
        from a backup of before they were reported."""
        self._facts_sent = None
        self.ranks.report_starts_again()

    def streams(self) -> Streams:
        """Return the streams of a new connection."""
        return Streams(self.ranks.live_directory, self._processes, self.identity.name)

    async def message(self) -> Sync:
        """Return the next message. Readings are sent once; reports until they are acknowledged."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._facts_tried.wait(), FIRST_FACTS_SECONDS)
        self._facts_tried.set()  # wait for them only once
        await self._release_check.check(self.ranks.reports())
        self._seq += 1
        readings, self._readings = self._readings, []
        facts = None if self._facts == self._facts_sent else self._facts
        self._facts_sent = self._facts
        message = Sync(
            seq=self._seq,
            at=now(),
            boot_id=self.boot_id,
            held=self.ranks.unacknowledged(),
            running=self.ranks.running(),
            limits=self.ranks.limits(),
            signalled=self.ranks.signalled(),
            reports=self._release_check.with_verdicts(self.ranks.reports()),
            readings=readings,
            facts=facts,
            next_credential_hash=self.credentials.offer,
        )
        # After the reports: a job that is stopped often saves just before its end.
        return replace(message, saved=await self._read_saved()) if message.held else message

    async def _read_saved(self) -> dict[str, str]:
        """Return the times of checkpoints; the previous ones while the disk does not answer."""
        reading = self._saved_reading
        if reading is None or reading.done():
            reading = self._saved_reading = asyncio.ensure_future(asyncio.to_thread(self.ranks.saved))
        if (await asyncio.wait({reading}, timeout=SAVED_SECONDS))[0]:
            self._saved = reading.result()
        return self._saved

    async def handle_answer(self, answer: Desired) -> bool:
        """Do what the server says. Return True if the node must connect anew, with another credential."""
        if not self.credentials.is_proven:
            await self._store(self.credentials.worked)
        if answer.error:
            logger.warning("%s: the server reports an error: %s", self.identity.name, answer.error, extra=self._about)
            self._facts_sent = None  # the failed message may have contained them
        self.ranks.acknowledge(answer.started, answer.acknowledged)
        if answer.assignments:
            received_at = time.monotonic()
            await self.in_thread(lambda: self.ranks.apply(answer.assignments, received_at))
            self.log_may_grow.set()
        if answer.missing:
            await self.in_thread(lambda: self.ranks.repeat_ends(answer.missing))
        # A rank that never started ends at once when it is stopped. After an error, the next heartbeat repeats the
        # ends: the server may be unable to write them, and answers with the same orders each time.
        if (answer.assignments or answer.missing) and not answer.error and self.ranks.has_unreported_end():
            self.dirty.set()
        if answer.limits:
            await self.in_thread(lambda: self.ranks.limit(answer.limits))
        if answer.signals:
            await self.in_thread(lambda: self.ranks.signal(answer.signals))
        if answer.acknowledged:
            await self.in_thread(self.ranks.drop_settled)
        if answer.rotate:
            await self._store(self.credentials.prepare_next)
        return self.credentials.accept(answer.next_credential_hash)

    async def _store(self, work: Callable[[], None]) -> None:
        """Store a change of the credentials. On a full disk the node goes on: the next answer tries again."""
        try:
            await self.in_thread(work)
        except OSError as error:
            logger.warning("%s: cannot store its credential: %s", self.identity.name, error, extra=self._about)

    async def join_again(self) -> bool:
        """Join again if the agent has a join token; return False without one. For a credential that the server does not
        accept."""
        if not self._token:
            return False
        facts = await asyncio.to_thread(self._machine.facts)
        join = identities.join
        self.credentials.joined(
            await asyncio.to_thread(lambda: join(self._directory, self.identity, self.identity.url, self._token, facts))
        )
        await self.in_thread(lambda: self.ranks.joined(self.identity.plane))
        return True

    # --- the ranks and devices ---

    def notify(self, keys: Iterable[str]) -> None:
        """Record that the supervisors of these ranks reported a change."""
        self._notified.update(keys)
        self._has_notified.set()

    async def keep_reading_notified(self) -> None:
        """Read the files of ranks whose supervisors sent a notification. `keep_polling` covers lost ones."""
        while True:
            await self._has_notified.wait()
            self._has_notified.clear()
            keys, self._notified = self._notified, set()
            if await self.in_thread(partial(self._inspect, keys)):
                self.dirty.set()
                self.log_may_grow.set()

    def _inspect(self, keys: Iterable[str]) -> bool:
        return any([self.ranks.inspect(key) for key in keys])

    async def _read_devices(self) -> None:
        """Read the devices before a failure is reported: a lost GPU must be in the same message, not a second later."""
        with contextlib.suppress(TimeoutError):
            reading = self._driver.run(lambda: self._machine.readings(self.ranks.busy_devices))
            self._readings = await asyncio.wait_for(reading, LAST_READ_SECONDS)

    async def keep_polling(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self.ranks.table:
                self.log_may_grow.set()
                if await self.in_thread(self.ranks.inspect_all):
                    self.dirty.set()
                await self.in_thread(self.ranks.remind)
                await self.in_thread(self.ranks.drop_settled)

    async def keep_tidy(self) -> None:
        """Remove old files. Not in the disk lane: a job may have left a million files."""
        clock = asyncio.get_running_loop().time
        pruned_at = clock()
        while True:
            if self.ranks.has_trash:
                await asyncio.to_thread(self.ranks.empty_trash)
            if clock() - pruned_at > PRUNE_SECONDS:
                await self.in_thread(self.ranks.prune)
                pruned_at = clock()
            await asyncio.sleep(POLL_SECONDS)

    async def keep_reading(self, every_seconds: float) -> None:
        """Read the devices. A driver in trouble blocks its own thread, not the heartbeat."""
        while True:
            # In the driver's lane, as the checks after ends: a reading from before an end is never sent after that
            # end's check.
            readings = self._readings = await self._next_readings()
            if self._names_others(readings):
                self._facts_outdated.set()
            await asyncio.sleep(min(every_seconds, READ_SECONDS))

    async def _next_readings(self) -> list[Reading]:
        """Read the devices. While the driver hangs, report again and again that they are not known to be free."""
        reading = asyncio.ensure_future(self._driver.run(self._read))
        name, hung, is_hung = self.identity.name, HUNG.format(HUNG_SECONDS), False
        try:
            while not (await asyncio.wait({reading}, timeout=READ_SECONDS if is_hung else HUNG_SECONDS))[0]:
                if not is_hung:
                    sentence = "%s: %s; no new job gets its GPUs until it does. If it never does, reboot the node"
                    logger.warning(sentence, name, hung, extra=self._about)
                is_hung = True
                devices = self._facts.devices if self._facts else []
                self._readings = [Reading(uuid=device.uuid, occupancy=DIRTY, occupant=hung) for device in devices]
            if is_hung:
                logger.warning("%s: the driver answers again", name, extra=self._about)
            return reading.result()
        finally:
            reading.cancel()

    async def keep_facts(self) -> None:
        """Read the machine's facts from time to time. Without them the server keeps the previous ones."""
        while True:
            try:
                self._facts = await asyncio.to_thread(self._machine.facts)
            finally:
                self._facts_tried.set()
            if self._facts != self._facts_sent:
                self.dirty.set()
            self._facts_outdated.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._facts_outdated.wait(), FACTS_SECONDS)

    def _names_others(self, readings: list[Reading]) -> bool:
        """Return True if devices came or went since the facts were read, such as a new division of a GPU (MIG)."""
        if self._facts is None or not readings:
            return False
        previous = {device.uuid for device in self._facts.devices}
        current = {reading.uuid for reading in readings if not reading.lost}
        return bool(current - previous or previous - {reading.uuid for reading in readings})

    def _occupants_of(self, devices: Collection[str]) -> dict[str, str]:
        readings = self._machine.read_use(devices, self.ranks.busy_devices)
        return self._occupancy.occupants_of(readings, self.ranks.live())

    def _read(self) -> list[Reading]:
        readings = self._machine.readings(self.ranks.busy_devices)
        # After the reading: a process that a rank started before it is then known to be that rank's.
        judged = self._occupancy.judge(readings, self.ranks.live()) if readings else []
        self._orphan_killer.end(self._occupancy.orphans)
        return judged

    async def stop_jobs(self, seconds: float) -> None:
        """Stop all jobs with the agent, and wait until the server has acknowledged their ends."""
        await self.in_thread(lambda: self.ranks.stop_all(EndReason.AGENT_STOPPED, 2))
        try:
            async with asyncio.timeout(seconds):
                while self.ranks.has_live() or self.ranks.reports():
                    if await self.in_thread(self.ranks.inspect_all):
                        self.dirty.set()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            sentence = "%s: not all ends could be reported; they will be at the next start"
            logger.warning(sentence, self.identity.name, extra=self._about)
