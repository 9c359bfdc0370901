"""The loop that follows events, makes deliveries and sends them, in a thread of the housekeeping worker.

Sends run in threads of their own, each with a sending process, and with time limits. A destination uses only a share of
them (shares.py). So a target that hangs delays neither other targets nor housekeeping, and cycles run in another
process altogether."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

from django.conf import settings
from django.db import close_old_connections, connections, transaction

from gpusched.lib.db.outages import is_outage, summary
from jobs.events.log import Frontier
from notifications import claims, expansion, expiring, follower, heartbeat, incidents, retention, thresholds
from notifications.sending import bundles
from notifications.sending.child import SendingProcess, Stopped
from notifications.sending.shares import Shares, destination_of

logger = logging.getLogger(__name__)
TICK_SECONDS = 1.0
THREADS = 4
EXPIRING_SECONDS, INCIDENT_SECONDS, BUDGET_SECONDS, BEAT_SECONDS, RETENTION_SECONDS = 15.0, 10.0, 60.0, 5.0, 60.0
CLOCK_SECONDS = 60.0
# A sending process without work ends.
IDLE_SECONDS = 120.0


@dataclass(frozen=True)
class _Send:
    """A send that runs. `destination`: whose share of the threads it uses."""

    future: Future[int]
    destination: str


class Sender:
    """The state of the loop. `tick` belongs to one thread."""

    def __init__(self, allowed_networks: str | None = None) -> None:
        networks = settings.ENV.notify_allowed_networks if allowed_networks is None else allowed_networks
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="notifications")
        self._processes: SimpleQueue[SendingProcess] = SimpleQueue()
        self._all = [SendingProcess(networks) for _ in range(THREADS)]
        for process in self._all:
            self._processes.put(process)
        self._frontier = Frontier()
        self._busy: dict[int, _Send] = {}
        self._shares = Shares(THREADS)
        self._last_runs: dict[str, float] = {}
        self._used_at = time.monotonic()

    def run(self, stopping: threading.Event) -> None:
        """Tick until `stopping`. A failure is logged, and the next tick tries again."""
        while not stopping.is_set():
            try:
                has_more = self.tick()
            except Exception as error:  # noqa: BLE001 it is logged, and the next tick tries again
                has_more = False
                self._recover(error)
            stopping.wait(0.05 if has_more else TICK_SECONDS)
        self.stop()

    def tick(self) -> bool:
        """Do what is due. Return whether there is more already."""
        close_old_connections()
        self._each(BEAT_SECONDS, "heartbeat", heartbeat.renew)
        with transaction.atomic():
            has_more = follower.follow(self._frontier.advance())
        self._each(EXPIRING_SECONDS, "jobs about to end", expiring.note_expiring)
        self._each(INCIDENT_SECONDS, "incidents", incidents.note_incidents)
        self._each(BUDGET_SECONDS, "budgets", thresholds.note_thresholds)
        self._each(RETENTION_SECONDS, "retention", lambda: retention.drop_old(settings.ENV.notify_retention_days))
        self._each(CLOCK_SECONDS, "steps of the clock", claims.end_pauses_of_the_future)
        has_more |= expansion.expand()
        return self._send_due() or has_more

    def wait(self, seconds: float) -> None:
        """Wait until the sends that run have ended, for tests."""
        for send in list(self._busy.values()):
            send.future.result(seconds)

    def stop(self) -> None:
        """End the sending processes. Claims of unfinished sends return to the queue by themselves."""
        for process in self._all:
            process.stop()
        self._pool.shutdown(cancel_futures=True)
        for process in self._all:
            process.end()
        connections.close_all()

    def _send_due(self) -> bool:
        """Hand what is due to free threads. Return whether anything was."""
        self._busy = {route_id: send for route_id, send in self._busy.items() if not send.future.done()}
        free = THREADS - len(self._busy)
        shares = self._shares.round(send.destination for send in self._busy.values())
        claimed = claims.claim(free, self._busy, shares.take) if free else []
        for bundle in claimed:
            destination = destination_of(bundle.sealed_target)
            self._busy[bundle.route_id] = _Send(self._pool.submit(self._send, bundle, destination), destination)
        if claimed or self._busy:
            self._used_at = time.monotonic()
        elif time.monotonic() - self._used_at > IDLE_SECONDS:
            for process in self._all:
                process.end()
        return bool(claimed)

    def _send(self, bundle: claims.Bundle, destination: str) -> int:
        process, began = self._processes.get(), time.monotonic()
        try:
            return bundles.send(bundle, process)
        except Stopped:
            return 0
        except Exception as error:  # noqa: BLE001 it is logged, and counts as a failed try
            self._recover(error)
            if not is_outage(error):  # after an outage the claim ends by itself
                claims.record_failed(bundle.route_id, bundle.deliveries, f"the send failed ({type(error).__name__})")
            return 0
        finally:
            self._shares.record(destination, time.monotonic() - began)
            connections.close_all()
            self._processes.put(process)

    def _each(self, seconds: float, name: str, work: Callable[[], object]) -> None:
        now = time.monotonic()
        if now - self._last_runs.get(name, float("-inf")) >= seconds:
            self._last_runs[name] = now
            try:
                work()
            except Exception as error:
                if is_outage(error):
                    raise
                logger.exception("notifications: %s failed, and continue at their next turn", name)

    def _recover(self, error: Exception) -> None:
        """Log a failure. After an outage, forget which events are settled: a crash may have lost unsettled ones."""
        if is_outage(error):
            logger.warning("notifications wait: %s", summary(error))
            self._frontier = Frontier()
            connections["default"].close()
        else:
            logger.exception("notifications failed, and are tried again", exc_info=error)


def start() -> threading.Event:
    """Start the loop in a thread. It ends with the process, or when the returned event is set."""
    stopping = threading.Event()
    threading.Thread(target=Sender().run, args=(stopping,), name="notifications", daemon=True).start()
    return stopping
