"""The ranks of one node: carry out assignments, detect starts and ends, and collect reports for the server.

Facts are monotone: a key starts at most once ever, a stop is final, and absence means nothing. So messages may arrive
late, twice or in another order."""

import contextlib
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from signal import SIGKILL
from typing import Any

from msgspec.structs import replace

from gpusched.agent import processes
from gpusched.agent.gpus.occupancy import Live
from gpusched.agent.rank_files import log_truncation, rank_dir
from gpusched.agent.rank_files.rank_dir import NOTICE, STOP
from gpusched.agent.ranks import launch_span
from gpusched.agent.ranks.journal import Journal, wake_supervisor
from gpusched.agent.ranks.launcher import Launcher
from gpusched.agent.ranks.rank_state import RankState, RankTable, with_current_age
from gpusched.agent.supervisor import signals, time_limit
from gpusched.json_log import job_fields, rank_fields
from gpusched.protocol.agent_messages import Ended, Limit, Report, Run, Signal, Started, Stop
from gpusched.protocol.reasons import EndReason

logger = logging.getLogger(__name__)
# A supervisor takes its rank within milliseconds; a launcher that was killed never reads its request.
RELAUNCH_SECONDS = 10.0
# A disk that has been full for this long will stay full; another node may have space.
PREPARE_SECONDS = 10.0
# After the grace of a rank that has not started: a supervisor that its disk does not hold up has stopped it long ago.
STOP_SECONDS = 10.0


def _is_launching(rank: RankState) -> bool:
    return rank.launched_at is not None and time.monotonic() - rank.launched_at < RELAUNCH_SECONDS


class Ranks:
    """The ranks of one node. Methods that change them or touch the disk block for milliseconds: call them in a thread,
    one at a time. The event loop may read at any moment (`reports`, `unacknowledged`, …)."""

    def __init__(self, journal: Journal, launcher: Launcher, node: str, log_max_bytes: int | None = None) -> None:
        self._journal = journal
        self._launcher = launcher
        self._node = node
        self._log_max_bytes = log_max_bytes
        self.table = RankTable()
        self.unwritten_ends: dict[str, dict[str, Any]] = {}  # by key; their supervisors find the disk read-only
        for key in journal.on_disk():
            rank = self.table.add(key)
            rank.limit_version, rank.signalled = (
                time_limit.version_of(journal.ranks / key),
                signals.last_sequence(journal.ranks / key),
            )
            self.inspect(key)
            if rank.is_alive:  # the previous agent may have been killed between writing an order and this signal
                with contextlib.suppress(OSError):  # files that a job has replaced
                    wake_supervisor(journal.ranks / key)

    def apply(self, assignments: Iterable[Run | Stop], received_at: float | None = None) -> None:
        """Carry out orders. `received_at`: by the monotonic clock."""
        received_at = time.monotonic() if received_at is None else received_at
        prepared = []
        for order in assignments:
            if isinstance(order, Stop):
                self._stop(order)
            elif (directory := self._prepare(order, received_at)) is not None:
                prepared.append(directory)
        try:
            if prepared:
                self._journal.settle()
            for directory in prepared:
                self._launcher.launch(directory)
        except OSError as error:  # the server repeats the orders of ranks that were not launched
            fields = job_fields(int(directory.name.partition(".")[0]) for directory in prepared)
            logger.error("%d ranks cannot be launched, trying again: %s", len(prepared), error, extra=fields)

    def _log_failure(self, rank: RankState, action: str, error: Exception) -> None:
        """Log what is tried again and again once, and anew if the error changes."""
        if rank.failures.get(action) != repr(error):
            logger.error("%s cannot be %s, trying again: %r", rank.key, action, error, extra=self._about(rank.key))
        rank.failures[action] = repr(error)

    def _about(self, key: str) -> dict[str, Any]:
        return rank_fields(key, self._node)

    def _prepare(self, order: Run, received_at: float) -> Path | None:
        """Return the directory of a rank to launch now; None if it was launched already, or cannot be."""
        if self._journal.is_dropped(order.key):
            self._report_dropped(order.key)
            return None
        rank = self.table.add(order.key)
        if rank.started or rank.ended or rank.is_alive or _is_launching(rank):
            return None
        if (other := self._holder_of_gpus(order)) is not None:
            sentence = "%s waits for %s, which still has a GPU of it"
            logger.warning(sentence, order.key, other, extra=self._about(order.key))
            return None  # the server repeats the order
        launch_span.begin(rank, order, received_at)
        try:
            directory = self._journal.prepare(order.key, order.spec, self._node)
        except Exception as error:  # noqa: BLE001
            # A full disk: nothing was started. The agent reports it once it can write to the disk again.
            self._log_failure(rank, "prepared", error)
            rank.refused_at = rank.refused_at or time.monotonic()
            if time.monotonic() - rank.refused_at > PREPARE_SECONDS:
                detail = f"it cannot be prepared: {error}"[:500]
                rank.ended = Ended(key=order.key, at=rank_dir.now(), reason=EndReason.NODE_FAULT, detail=detail)
                launch_span.end(rank, self._node)
            return None
        rank.refused_at, rank.limit_version = None, order.spec.limit_version
        rank.launched_at = time.monotonic()
        return directory

    def _holder_of_gpus(self, order: Run) -> str | None:
        """Return the live rank that has a GPU which this one gets whole. An order that the network held back for long
        may come after the server has lost the node, has ended that rank, and has given its GPU to another."""
        devices = frozenset(order.spec.device_uuids) if order.spec.gpu_memory_mb is None else frozenset()
        for rank in self.table.all() if devices else ():
            is_live = rank.ended is None and (rank.is_alive or _is_launching(rank))
            if is_live and rank.key != order.key and devices & self._specified(rank).devices:
                return rank.key
        return None

    def _stop(self, order: Stop) -> None:
        if self._journal.is_dropped(order.key):
            self._report_dropped(order.key, order.reason)
            return
        rank = self.table.add(order.key)
        if rank.ended:
            return
        rank.stop_reason = order.reason
        rank.stop_due = rank.stop_due or time.monotonic() + order.grace_seconds + STOP_SECONDS
        try:
            self._journal.stop(order.key, order.reason, order.grace_seconds)
            rank.failures.pop("stopped", None)
        except Exception as error:  # noqa: BLE001 - as in `inspect`
            self._log_failure(rank, "stopped", error)
            if self._journal.cannot_start(order.key):  # the order did not fit on the disk, and neither would its end
                rank.ended = Ended(key=order.key, at=rank_dir.now(), reason=order.reason)
        self.inspect(order.key)

    def limit(self, changed: Iterable[Limit]) -> None:
        """Apply changed time limits; ignore those of unknown ranks."""
        for new in changed:
            rank = self.table.get(new.key)
            if rank is not None and rank.ended is None and new.version > rank.limit_version:
                with contextlib.suppress(OSError):  # a full disk: the server repeats it
                    time_limit.change(self._journal.ranks / new.key, new.version, new.max_runtime_seconds)
                    wake_supervisor(self._journal.ranks / new.key)
                    rank.limit_version = new.version

    def limits(self) -> dict[str, int]:
        """Return the versions of time limits that were changed after submission."""
        return {rank.key: rank.limit_version for rank in self.table.all() if rank.limit_version and not rank.ended}

    def signal(self, requests: Iterable[Signal]) -> None:
        """Queue signals for ranks that run here; ignore repeated ones."""
        for request in sorted(requests, key=lambda request: request.sequence):
            rank = self.table.get(request.key)
            if rank is None or rank.ended is not None or request.sequence <= rank.signalled:
                continue
            if rank.started is not None:  # a program that has not started cannot handle it, and would end
                with contextlib.suppress(OSError):  # a full disk: the server repeats it
                    signals.enqueue(self._journal.ranks / request.key, request.sequence, request.signal)
                    wake_supervisor(self._journal.ranks / request.key)
                    rank.signalled = request.sequence
            else:
                rank.signalled = request.sequence

    def signalled(self) -> dict[str, int]:
        """Return the sequence number of the latest signal sent to each rank."""
        return {rank.key: rank.signalled for rank in self.table.all() if rank.signalled and not rank.ended}

    def _report_dropped(self, key: str, reason: str = EndReason.NODE_LOST) -> None:
        """Report an end for an order of a dropped rank: a server with a restored database would wait for ever. It is
        the end that was reported before, so that what has completed does not run again, or else `reason`. A rank that
        was stopped because the server did not know it may run."""
        if self.table.get(key) is not None or not self._journal.is_long_dropped(key):
            return
        detail = "it ran here before, and its end was reported"
        previous = [end for end in self._journal.dropped_ends([key]) if end.reason != EndReason.SUPERSEDED]
        self.table.add(key).ended = (
            previous[0] if previous else Ended(key=key, at=rank_dir.now(), reason=reason, detail=detail)
        )

    def repeat_ends(self, keys: Iterable[str]) -> None:
        """Report the ends of dropped ranks again: a server with a restored database still has them running."""
        for ended in self._journal.dropped_ends(key for key in keys if self.table.get(key) is None):
            self.table.add(ended.key).ended = ended

    def joined(self, plane: str) -> None:
        """Take the following orders from another control plane."""
        self._journal.joined(plane)

    def prune(self) -> None:
        """Drop the oldest keys. Call it once a day."""
        self._journal.prune()

    def inspect(self, key: str) -> bool:
        """Read the files of a rank again; return True if there is something new to report."""
        rank = self.table.get(key)
        if rank is None or rank.ended is not None:
            return False
        previous = rank.started, rank.ended
        try:
            rank.read_at = time.monotonic()
            started, ended = rank.started, self._unwritten_end(rank)  # of a disk that may refuse to be read, too
            if ended is None:
                started, ended, rank.is_alive = self._journal.inspect(key)
            rank.started = None if started is None else self._with_devices(rank, started)
            rank.ended = None if ended is None else self._as_sent(rank, ended)
            launch_span.end(rank, self._node)
            rank.failures.pop("read", None)
        except Exception as error:  # noqa: BLE001
            # A full disk, or files that a job has written: trouble with one rank must not end the agent of all.
            self._log_failure(rank, "read", error)
        return (rank.started, rank.ended) != previous

    def _unwritten_end(self, rank: RankState) -> Ended | None:
        fact = self.unwritten_ends.pop(rank.key, None)
        ended = None if fact is None else self._journal.end_of(rank.key, fact)
        if ended and ended.reason == EndReason.AGENT_STOPPED and rank.stop_reason:
            ended = replace(ended, reason=rank.stop_reason)  # its supervisor cannot know the order
        return ended

    def inspect_all(self) -> bool:
        """Inspect each rank that has not ended: a notification may be lost, and a supervisor may be killed."""
        return any([self.inspect(rank.key) for rank in self.table.all() if rank.ended is None])

    def stop_all(self, reason: str, grace_seconds: int) -> None:
        for rank in self.table.all():
            if rank.ended is None:
                self._stop(Stop(key=rank.key, reason=reason, grace_seconds=grace_seconds))

    def acknowledge(self, started: Iterable[str], ended: Iterable[str]) -> None:
        for key in started:
            if rank := self.table.get(key):
                rank.start_acknowledged = True
        for key in ended:
            if rank := self.table.get(key):
                rank.end_acknowledged = True

    def report_starts_again(self) -> None:
        for rank in self.table.all():
            rank.start_acknowledged = False

    def drop_settled(self) -> None:
        """Drop the ranks whose end and complete log the server has."""
        for rank in [rank for rank in self.table.all() if rank.end_acknowledged and rank.is_log_complete]:
            try:
                self._journal.drop(rank.key)
            except Exception as error:  # noqa: BLE001 - as in `inspect`
                self._log_failure(rank, "dropped", error)
            else:
                self.table.drop(rank.key)

    @property
    def has_trash(self) -> bool:
        return self._journal.has_trash

    def empty_trash(self) -> None:
        """Remove the files of dropped ranks. In its own thread: they may be many."""
        self._journal.empty_trash()

    def reports(self) -> list[Report]:
        """Return the unacknowledged starts and ends. An end includes its start, so one report is enough."""
        pending: list[Report] = []
        for rank in self.table.all():
            started, ended = rank.started, rank.ended  # a thread may change them
            if ended is not None:
                if not rank.end_acknowledged:
                    pending.append(with_current_age(ended, rank.read_at))
            elif started is not None and not rank.start_acknowledged:
                pending.append(with_current_age(started, rank.read_at))
        return pending

    def unacknowledged(self) -> list[str]:
        return [rank.key for rank in self.table.all() if not rank.end_acknowledged]

    def has_unreported_end(self) -> bool:
        return any(rank.ended and not rank.end_acknowledged for rank in self.table.all())

    def has_live(self) -> bool:
        """Return True if any rank has yet to end."""
        return any(rank.ended is None for rank in self.table.all())

    def running(self) -> list[str]:
        return [rank.key for rank in self._alive()]

    def _alive(self) -> list[RankState]:
        return [rank for rank in self.table.all() if rank.is_alive and rank.ended is None]

    def saved(self) -> dict[str, str]:
        """Return the time of the latest checkpoint of each rank that has saved one, until its end is acknowledged."""
        times = ((key, rank_dir.saved_at(f"{self._journal.ranks}/{key}")) for key in self.unacknowledged())
        return {key: at for key, at in times if at is not None}

    def busy_devices(self) -> set[str]:
        """Return the UUIDs of live ranks' devices (only the made-up readings of pretend nodes need them)."""
        return {uuid for rank in self._alive() for uuid in self._specified(rank).devices}

    def devices_of(self, key: str) -> frozenset[str]:
        """Return the UUIDs of a rank's devices."""
        rank = self.table.get(key)
        return self._specified(rank).devices if rank is not None else frozenset()

    def live(self) -> Live:
        """Return the devices, scopes and sessions of the ranks, to judge the occupants of devices. Called beside other
        threads."""
        ranks = self.table.all()
        lasting = [self._specified(rank) for rank in ranks if rank.ended is None]
        return Live(
            devices=frozenset(uuid for rank in lasting for uuid in rank.devices),
            scopes=frozenset(rank.scope for rank in lasting if rank.scope),
            sessions=frozenset(started.pid for rank in lasting if (started := rank.started)),
            ended_sessions=frozenset(started.pid for rank in ranks if rank.ended and (started := rank.started)),
            ended_scopes=frozenset(scope for rank in ranks if rank.ended and (scope := self._specified(rank).scope)),
            supervisors=lambda: frozenset(pid for rank in lasting if (pid := self._holder(rank.key)) is not None),
        )

    def _with_devices(self, rank: RankState, started: Started) -> Started:
        specified = self._specified(rank)
        return replace(started, device_uuids=sorted(specified.devices) if specified.scope else None)

    def _holder(self, key: str) -> int | None:
        with contextlib.suppress(OSError):  # a job has replaced the file
            return rank_dir.holder(self._journal.ranks / key)
        return None

    def _specified(self, rank: RankState) -> RankState:
        """Return the rank with the devices and scope of its specification, which never changes, so it is read once."""
        if not rank.scope and (spec := rank_dir.read(self._journal.ranks / rank.key, rank_dir.SPEC)) is not None:
            with contextlib.suppress(KeyError, TypeError, AttributeError):  # a job has spoiled it
                environment = spec["environment"]
                rank.devices = frozenset(filter(None, environment["CUDA_VISIBLE_DEVICES"].split(",")))
                rank.scope = environment[rank_dir.SCOPE_VARIABLE]
        return rank

    def _as_sent(self, rank: RankState, ended: Ended) -> Ended:
        """Return the end with the size of the log as it is sent."""
        parts = log_truncation.parts(ended.log_bytes, self.log_limit(rank, ended.log_bytes), is_final=True)
        return replace(ended, log_bytes=log_truncation.total(parts))

    def limit_logs(self, log_bytes: int | None) -> None:
        """Set the server's maximum size of a log. Ranks whose limit is fixed already keep it."""
        if log_bytes is not None:
            self._log_max_bytes = min(log_bytes, self._log_max_bytes or log_bytes)

    def log_limit(self, rank: RankState, size: int) -> int | None:
        """Return the maximum number of sent bytes of a log of this size; None while it needs no limit. Fixed once per
        rank: a log sent under one limit cannot continue under another."""
        if size <= log_truncation.MIN_BYTES or self._log_max_bytes is None:
            return rank.log_limit
        if rank.log_limit is None:
            directory = self._journal.ranks / rank.key
            fact = rank_dir.read(directory, rank_dir.LOG_LIMIT)
            if fact is None or not isinstance(fact.get("bytes"), int):
                fact = {"bytes": max(self._log_max_bytes, log_truncation.MIN_BYTES)}
                try:
                    rank_dir.write(directory, rank_dir.LOG_LIMIT, fact)
                except OSError as error:  # a full disk, perhaps by this log, whose space is free once it is sent
                    if error.errno not in rank_dir.FULL:
                        raise
            rank.log_limit = int(fact["bytes"])
        return rank.log_limit

    def log_path(self, key: str) -> str:
        return str(self._journal.ranks / key / rank_dir.LOG)

    def live_directory(self, key: str) -> Path | None:
        """Return the directory of a rank that has started and not ended."""
        rank = self.table.get(key)
        return self._journal.ranks / key if rank is not None and rank.started and not rank.ended else None

    def remind(self) -> None:
        """Wake the supervisors of ranks that must stop again: the first signal may have been lost. Kill one that should
        have stopped its rank and has not even started it: it waits for a disk that does not answer."""
        for rank in self.table.all():
            directory = self._journal.ranks / rank.key
            with contextlib.suppress(OSError):  # files that a job has replaced
                if rank.is_alive and not (directory / NOTICE).exists() and (directory / STOP).exists():
                    wake_supervisor(directory)
                    is_due = rank.stop_due is not None and time.monotonic() > rank.stop_due
                    if is_due and rank.started is None and (pid := rank_dir.holder(directory)):
                        # First what it has forked. Killed, none of them runs the program once the disk answers.
                        processes.signal_all(processes.descendants(pid), SIGKILL)
                        wake_supervisor(directory, SIGKILL)
                        detail = "it waited for a disk that did not answer, and was not started"
                        fact = {"at": rank_dir.now(), "reason": rank.stop_reason, "detail": detail}
                        rank_dir.write_surely(directory, rank_dir.EXIT, fact)
