"""What runs on one node: obeys assignments, notices starts and ends, and says what the server has yet to hear.

Facts are monotone: a key starts at most once ever, a stop is for ever, and what is absent means nothing. So
messages may come late, twice or in another order."""

import contextlib
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpusched.agent.gpus.occupancy import Live
from gpusched.agent.rank_files import log_truncation, rank_dir
from gpusched.agent.ranks import launch_span
from gpusched.agent.ranks.journal import Journal, wake_supervisor
from gpusched.agent.ranks.launcher import Launcher
from gpusched.agent.ranks.rank_state import Known, RankState, with_current_age
from gpusched.agent.supervisor import signals, time_limit
from gpusched.json_log import job_fields, rank_fields
from gpusched.protocol.agent_messages import Ended, Limit, Report, Run, Signal, Stop
from gpusched.protocol.reasons import EndReason

logger = logging.getLogger(__name__)
# A supervisor takes its rank within milliseconds; a launcher that was killed with the request unread never does.
RELAUNCH_SECONDS = 10.0
# A disk that has no room for so long will not have it soon; another node may.
PREPARE_SECONDS = 10.0


class Ranks:
    """All ranks of one node. Methods that change them or touch the disk block for milliseconds: they are called in a
    thread, one at a time. The event loop reads at any moment (`reports`, `held`, …)."""

    def __init__(self, journal: Journal, launcher: Launcher, node: str, log_most_bytes: int | None = None) -> None:
        self._journal = journal
        self._launcher = launcher
        self._node = node
        self._log_most = log_most_bytes
        self.known = Known()
        for key in journal.on_disk():
            rank = self.known.add(key)
            rank.limit_version, rank.signalled = (
                time_limit.known(journal.ranks / key),
                signals.last_sequence(journal.ranks / key),
            )
            self.look(key)

    def obey(self, assignments: Iterable[Run | Stop], came_at: float | None = None) -> None:
        """Carry out orders, which came at a time of the monotonic clock."""
        came_at = time.monotonic() if came_at is None else came_at
        prepared = []
        for order in assignments:
            if isinstance(order, Stop):
                self._stop(order)
            elif (directory := self._prepare(order, came_at)) is not None:
                prepared.append(directory)
        try:
            if prepared:
                self._journal.settle()
            for directory in prepared:
                self._launcher.launch(directory)
        except OSError as error:  # those that were not launched are ordered again
            concerned = job_fields(int(directory.name.partition(".")[0]) for directory in prepared)
            logger.error("%d ranks cannot be launched, trying again: %s", len(prepared), error, extra=concerned)

    def _about(self, key: str) -> dict[str, Any]:
        return rank_fields(key, self._node)

    def _prepare(self, order: Run, came_at: float) -> Path | None:
        """The directory of a rank that is to be launched now; None if it has been, or cannot be."""
        if self._journal.is_over(order.key):
            self._tell_over(order.key, EndReason.NODE_LOST)
            return None
        rank = self.known.add(order.key)
        recently = rank.launched_at is not None and time.monotonic() - rank.launched_at < RELAUNCH_SECONDS
        if rank.started or rank.ended or rank.is_alive or recently:
            return None
        launch_span.begin(rank, order, came_at)
        try:
            directory = self._journal.prepare(order.key, order.spec, self._node)
        except Exception as error:  # noqa: BLE001
            # A full disk: nothing was started, and the server is told when the disk takes a word again.
            logger.error("%s cannot be prepared, trying again: %r", order.key, error, extra=self._about(order.key))
            rank.refused_at = rank.refused_at or time.monotonic()
            if time.monotonic() - rank.refused_at > PREPARE_SECONDS:
                detail = f"it cannot be prepared: {error}"[:500]
                rank.ended = Ended(key=order.key, at=rank_dir.now(), reason=EndReason.NODE_FAULT, detail=detail)
                launch_span.end(rank, self._node)
            return None
        rank.refused_at, rank.limit_version = None, order.spec.limit_version
        rank.launched_at = time.monotonic()
        return directory

    def _stop(self, order: Stop) -> None:
        if self._journal.is_over(order.key):
            self._tell_over(order.key, order.reason)
            return
        rank = self.known.add(order.key)
        if rank.ended:
            return
        try:
            self._journal.stop(order.key, order.reason, order.grace_seconds)
        except Exception as error:  # noqa: BLE001 - as in `look`
            logger.error("%s cannot be told to stop, trying again: %r", order.key, error, extra=self._about(order.key))
        self.look(order.key)

    def limit(self, changed: Iterable[Limit]) -> None:
        """Time limits that were changed since their ranks were ordered; of others nothing is known here."""
        for new in changed:
            rank = self.known.get(new.key)
            if rank is not None and rank.ended is None and new.version > rank.limit_version:
                with contextlib.suppress(OSError):  # a full disk: it is told again
                    time_limit.change(self._journal.ranks / new.key, new.version, new.max_runtime_seconds)
                    wake_supervisor(self._journal.ranks / new.key)
                    rank.limit_version = new.version

    def limits(self) -> dict[str, int]:
        """The versions of time limits that were changed since they were submitted."""
        return {rank.key: rank.limit_version for rank in self.known.all() if rank.limit_version and not rank.ended}

    def signal(self, asked: Iterable[Signal]) -> None:
        """Signals for ranks that run here; those that come again were sent before."""
        for one in sorted(asked, key=lambda one: one.sequence):
            rank = self.known.get(one.key)
            if rank is None or rank.ended is not None or one.sequence <= rank.signalled:
                continue
            if rank.started is not None:  # before, its program could not expect it, and would end
                with contextlib.suppress(OSError):  # a full disk: it is told again
                    signals.enqueue(self._journal.ranks / one.key, one.sequence, one.signal)
                    wake_supervisor(self._journal.ranks / one.key)
                    rank.signalled = one.sequence
            else:
                rank.signalled = one.sequence

    def signalled(self) -> dict[str, int]:
        """The latest signals that ranks were sent."""
        return {rank.key: rank.signalled for rank in self.known.all() if rank.signalled and not rank.ended}

    def _tell_over(self, key: str, reason: str) -> None:
        """Answers an order for what is over and forgotten: a server whose database was restored would wait for ever."""
        if self.known.get(key) is None and self._journal.is_long_over(key):
            detail = "it ran here before, and its end was told"
            self.known.add(key).ended = Ended(key=key, at=rank_dir.now(), reason=reason, detail=detail)

    def joined(self, credential: str) -> None:
        """The orders are another control plane's from now on."""
        self._journal.joined(credential)

    def prune(self) -> None:
        """To be called once a day."""
        self._journal.prune()

    def look(self, key: str) -> bool:
        """Reads the files of a rank again; True if the server has something new to hear."""
        rank = self.known.get(key)
        if rank is None or rank.ended is not None:
            return False
        before = rank.started, rank.ended
        try:
            rank.looked_at = time.monotonic()
            rank.started, ended, rank.is_alive = self._journal.look(key)
            rank.ended = None if ended is None else self._as_sent(rank, ended)
            launch_span.end(rank, self._node)
        except Exception as error:  # noqa: BLE001
            # A full disk, files that a job has written: what is not known of one rank must not end the agent of all.
            logger.error("%s cannot be looked at, trying again: %r", key, error, extra=self._about(key))
        return (rank.started, rank.ended) != before

    def look_at_all(self) -> bool:
        """The same for each that has not ended: a doorbell may be lost, and a supervisor may be killed."""
        return any([self.look(rank.key) for rank in self.known.all() if rank.ended is None])

    def stop_all(self, reason: str, grace_seconds: int) -> None:
        for rank in self.known.all():
            if rank.ended is None:
                self._stop(Stop(key=rank.key, reason=reason, grace_seconds=grace_seconds))

    def acknowledge(self, started: Iterable[str], ended: Iterable[str]) -> None:
        for key in started:
            if rank := self.known.get(key):
                rank.start_known = True
        for key in ended:
            if rank := self.known.get(key):
                rank.end_known = True

    def forget_settled(self) -> None:
        """Forgets what the server knows to the last byte."""
        for rank in [rank for rank in self.known.all() if rank.end_known and rank.is_log_complete]:
            try:
                self._journal.forget(rank.key)
            except Exception as error:  # noqa: BLE001 - as in `look`
                logger.error("%s cannot be forgotten, trying again: %r", rank.key, error, extra=self._about(rank.key))
            else:
                self.known.drop(rank.key)

    @property
    def has_trash(self) -> bool:
        return self._journal.has_trash

    def empty_trash(self) -> None:
        """Removes the files of what was forgotten. Beside all else, for they may be many."""
        self._journal.empty_trash()

    def reports(self) -> list[Report]:
        """What is not acknowledged yet. An end says when it started, so one report is enough."""
        told: list[Report] = []
        for rank in self.known.all():
            started, ended = rank.started, rank.ended  # a thread may be at them
            if ended is not None:
                if not rank.end_known:
                    told.append(with_current_age(ended, rank.looked_at))
            elif started is not None and not rank.start_known:
                told.append(with_current_age(started, rank.looked_at))
        return told

    def held(self) -> list[str]:
        return [rank.key for rank in self.known.all() if not rank.end_known]

    def has_unreported_end(self) -> bool:
        return any(rank.ended and not rank.end_known for rank in self.known.all())

    def has_live(self) -> bool:
        """Whether any rank has yet to end."""
        return any(rank.ended is None for rank in self.known.all())

    def running(self) -> list[str]:
        return [rank.key for rank in self._alive()]

    def _alive(self) -> list[RankState]:
        return [rank for rank in self.known.all() if rank.is_alive and rank.ended is None]

    def saved(self) -> dict[str, str]:
        """Live ranks that have told of a checkpoint, and when it was."""
        found = ((key, rank_dir.saved_at(f"{self._journal.ranks}/{key}")) for key in self.running())
        return {key: at for key, at in found if at is not None}

    def busy_devices(self) -> set[str]:
        """UUIDs that live ranks were given (only the made-up readings of pretend nodes ask)."""
        return {uuid for rank in self._alive() for uuid in self._specified(rank).devices}

    def devices_of(self, key: str) -> frozenset[str]:
        """UUIDs that a rank was given."""
        rank = self.known.get(key)
        return self._specified(rank).devices if rank is not None else frozenset()

    def live(self) -> Live:
        """What ranks that have not ended hold, for judging who is on the devices. Called beside other threads."""
        ranks = self.known.all()
        lasting = [self._specified(rank) for rank in ranks if rank.ended is None]
        return Live(
            devices=frozenset(uuid for rank in lasting for uuid in rank.devices),
            scopes=frozenset(rank.scope for rank in lasting if rank.scope),
            sessions=frozenset(started.pid for rank in lasting if (started := rank.started)),
            ended_sessions=frozenset(started.pid for rank in ranks if rank.ended and (started := rank.started)),
            ended_scopes=frozenset(scope for rank in ranks if rank.ended and (scope := self._specified(rank).scope)),
            supervisors=lambda: frozenset(pid for rank in lasting if (pid := self._holder(rank.key)) is not None),
        )

    def _holder(self, key: str) -> int | None:
        with contextlib.suppress(OSError):  # a job has put something else there
            return rank_dir.holder(self._journal.ranks / key)
        return None

    def _specified(self, rank: RankState) -> RankState:
        """The same, with what its specification says; that never changes, so it is read once."""
        if not rank.scope and (spec := rank_dir.read(self._journal.ranks / rank.key, rank_dir.SPEC)) is not None:
            with contextlib.suppress(KeyError, TypeError, AttributeError):  # a job has spoiled it
                given = spec["environment"]
                rank.devices = frozenset(filter(None, given["CUDA_VISIBLE_DEVICES"].split(",")))
                rank.scope = given[rank_dir.SCOPE_VARIABLE]
        return rank

    def _as_sent(self, rank: RankState, ended: Ended) -> Ended:
        """The end, with the size that its log has as it is sent."""
        parts = log_truncation.parts(ended.log_bytes, self.log_limit(rank, ended.log_bytes), is_final=True)
        return replace(ended, log_bytes=log_truncation.total(parts))

    def wants_at_most(self, log_bytes: int | None) -> None:
        """The server keeps no more of a log; it holds for ranks whose limit has not been asked for yet."""
        if log_bytes is not None:
            self._log_most = min(log_bytes, self._log_most or log_bytes)

    def log_limit(self, rank: RankState, size: int) -> int | None:
        """How much of its log of this size is sent at most; None as long as that needs no answer. Asked once per rank:
        what was sent by one limit could not be gone on with by another."""
        if size <= log_truncation.MIN_BYTES or self._log_most is None:
            return rank.log_limit
        if rank.log_limit is None:
            directory = self._journal.ranks / rank.key
            fact = rank_dir.read(directory, rank_dir.LOG_LIMIT)
            if fact is None or not isinstance(fact.get("bytes"), int):
                fact = {"bytes": max(self._log_most, log_truncation.MIN_BYTES)}
                rank_dir.write(directory, rank_dir.LOG_LIMIT, fact)
            rank.log_limit = int(fact["bytes"])
        return rank.log_limit

    def log_path(self, key: str) -> str:
        return str(self._journal.ranks / key / rank_dir.LOG)

    def remind(self) -> None:
        """Signals once more those that were asked to stop: the first signal may have been sent to nobody."""
        for rank in self.known.all():
            directory = self._journal.ranks / rank.key
            with contextlib.suppress(OSError):  # files that a job has put there
                if (
                    rank.is_alive
                    and not (directory / rank_dir.NOTICE).exists()
                    and (directory / rank_dir.STOP).exists()
                ):
                    wake_supervisor(directory)
