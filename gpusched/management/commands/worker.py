"""Run a django-q2 cluster: `cycles` (the scheduler) or `housekeeping`."""

import multiprocessing
import time
from argparse import ArgumentParser
from importlib import import_module
from typing import Any

import django_q.cluster
import django_q.monitor
import django_q.pusher
import django_q.worker
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection
from django_q.conf import Conf

from gpusched import tracing
from gpusched.lib.db.outages import is_outage, summary
from gpusched.lib.process.children import forks_die_with_parent, settle_heap
from gpusched.lib.process.task_cluster import ClusterEnded, wait_for_cluster
from gpusched.management.commands import migrate
from scheduling.worker import leadership
from scheduling.worker.clock_steps import DatabaseClock


class Command(BaseCommand):
    help = "Run a background worker: scheduling cycles, or housekeeping."
    requires_system_checks = []  # they would double the start-up time

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("cluster", choices=["cycles", "housekeeping"])

    def handle(self, *args: Any, **options: Any) -> None:
        _choose_cluster(options["cluster"])
        # Otherwise its processes survive a kill -9 of their parent and continue to schedule.
        forks_die_with_parent()
        self._await_tables()
        if options["cluster"] == "housekeeping":
            _plan_housekeeping()
        from notifications.sending import sender

        import_module("scheduling.worker.tasks")  # once for all its processes
        tracing.load()
        settle_heap()
        clock_set_back = DatabaseClock().host_was_set_back if options["cluster"] == "housekeeping" else None
        cluster = _Cluster()
        cluster.start()
        if options["cluster"] == "housekeeping":
            # After the fork, in this process, which only waits for the cluster.
            stopping = sender.start()
        try:
            wait_for_cluster(cluster, clock_set_back)
        except ClusterEnded as error:
            raise CommandError(str(error)) from error
        finally:
            if options["cluster"] == "housekeeping":
                stopping.set()

    def _await_tables(self) -> None:
        """Wait for the database and its migrations: in containers, the process that runs them may start later."""
        missing = ""
        while True:
            previous = missing
            try:
                if not migrate.is_needed():
                    connection.close()  # before the cluster forks
                    return
                missing = "its tables are missing or outdated, run `migrate`"
            except DatabaseError as error:
                if not is_outage(error):
                    raise
                missing = summary(error)
            if missing != previous:
                self.stderr.write(f"waiting for the database: {missing}")
            time.sleep(migrate.PAUSE_SECONDS)


class _Cluster(django_q.cluster.Cluster):  # type: ignore[misc]
    """A cluster whose standby ends its wait when the cluster stops, by SIGTERM or SIGINT."""

    def __init__(self) -> None:
        super().__init__()
        self._stopping = multiprocessing.Event()
        leadership.stop_waiting_at(self._stopping)

    def stop(self) -> bool:
        self._stopping.set()
        return bool(super().stop())


def _choose_cluster(name: str) -> None:
    """Give django-q2 the settings of this cluster. It read those of another one if it was loaded without the variable
    Q_CLUSTER_NAME, which it reads once."""
    base: dict[str, Any] = settings.Q_CLUSTER
    values = {**base, **base["ALT_CLUSTERS"].get(name, {}), "cluster_name": name}
    for key, value in values.items():
        setattr(Conf, key.upper(), value)
    # It would replace the titles of its processes, which name the cluster, by random words.
    for module in (django_q.cluster, django_q.monitor, django_q.pusher, django_q.worker):
        module.setproctitle = None


def _plan_housekeeping() -> None:
    from django_q.models import Schedule

    from scheduling.worker.housekeeping import EVERY_MINUTES, resume_after_clock_step

    Schedule.objects.filter(name="keep_samples").delete()  # of older versions
    for function, minutes in EVERY_MINUTES.items():
        Schedule.objects.update_or_create(
            name=function,
            defaults={
                "func": f"scheduling.worker.tasks.{function}",
                "schedule_type": Schedule.MINUTES,
                "minutes": minutes,
                "repeats": -1,
                "cluster": "housekeeping",
            },
        )
    # After a step the cluster starts again (gpusched/lib/process/task_cluster.py).
    resume_after_clock_step()
