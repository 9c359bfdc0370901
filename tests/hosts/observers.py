"""Observe the effects of a fault on users: submits, pages and cycles, each with the time that it takes to recover."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from itertools import pairwise

import httpx
import psycopg

from tests.hosts.cluster import Cluster
from tests.system.page import LivePage, log_in
from tests.waiting import wait_for

PAGES = 4
_CYCLES = "SELECT 1 FROM scheduling_beat WHERE at > %s AND worker NOT LIKE %s"
_SILENT = "SELECT 1 FROM nodes_node WHERE last_seen_at <= %s LIMIT 1"


class Submits:
    """Acknowledged submits, job by job with their times, from a submitter of its own that needs no idle moment."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.at = cluster, dict[int, float]()
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        headers = {"Authorization": f"Bearer {self.cluster.token()}"}
        body = {"tenant": "default", "command": ["true"], "gpu_count": 0}
        while not self._has_ended.wait(0.2):
            # A new connection each time, as a new client has; each try has its own key, as it is never repeated.
            with suppress(httpx.HTTPError):
                answer = httpx.post(f"{self.cluster.url}/api/v1/jobs", json=body, headers=headers, timeout=3)
                if answer.status_code == 201:
                    self.at[int(answer.json()["job_id"])] = time.monotonic()

    def between(self, moment: float, until: float) -> dict[int, float]:
        return {job: at for job, at in list(self.at.items()) if moment <= at <= until}

    def gap_after(self, moment: float, until: float) -> float:
        """Return the longest time without a successful submit between these moments."""
        times = [moment, *self.between(moment, until).values(), until]
        return max(later - earlier for earlier, later in pairwise(times))

    def close(self) -> None:
        self._has_ended.set()
        self._thread.join()


class Pages:
    """Pages that are open through the proxy."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._cookie = cluster, log_in(cluster.url, cluster.password())
        self.pages = [LivePage(cluster.url, self._cookie) for _ in range(PAGES)]

    def delay(self, jobs: dict[int, float]) -> float:
        """Return the longest time from the acknowledgement of one of these jobs until every page shows it."""
        with suppress(TimeoutError):
            wait_for(lambda: all(jobs.keys() <= page.shown.keys() for page in self.pages), 30, "the pages", pause=0.1)
        never = time.monotonic()
        return max((page.shown.get(job, never) - at for page in self.pages for job, at in jobs.items()), default=0.0)

    def wrong(self) -> int:
        """Return how many pages do not show what a new page shows. Call it when nothing changes any more."""
        return sum(not self._is_right(page) for page in self.pages)

    def _is_right(self, page: LivePage) -> bool:
        with suppress(TimeoutError):
            wait_for(lambda: page.rows["jobs"] == self._fresh(), 10, "the rows of a new page", pause=0.5)
            return True
        return False

    def _fresh(self) -> object:
        answer = httpx.get(
            f"{self._cluster.url}/live/", params={"topic": "jobs"}, cookies={"sessionid": self._cookie}, timeout=30
        )
        return answer.raise_for_status().json()["topics"]["jobs"]

    def close(self) -> None:
        for page in self.pages:
            page.close()


def seconds_until_cycle(cluster: Cluster, since: datetime, leader: int) -> float:
    """Return how long after `since` another worker than the process `leader` has ended a cycle."""
    return _seconds_until(cluster, lambda database: bool(database.execute(_CYCLES, [since, f"%:{leader}"]).fetchone()))


def seconds_until_agents(cluster: Cluster, since: datetime) -> float:
    """Return how long after `since` a head has received a message of every node."""
    return _seconds_until(cluster, lambda database: not database.execute(_SILENT, [since]).fetchone())


def _seconds_until(cluster: Cluster, condition: Callable[[psycopg.Connection], bool]) -> float:
    began = time.monotonic()
    with psycopg.connect(cluster.database_url(), autocommit=True) as database, suppress(TimeoutError):
        wait_for(lambda: condition(database), 30, "the recovery", pause=0.02)
    return time.monotonic() - began
