"""Run a django-q2 cluster: `cycles` (the scheduler) or `housekeeping`."""

import os
import sys
from argparse import ArgumentParser
from importlib import import_module
from typing import Any

from django.core.management.base import BaseCommand

from gpusched import tracing
from gpusched.lib.process.children import forks_die_with_parent, settle_heap


class Command(BaseCommand):
    help = "Run a background worker: scheduling cycles, or housekeeping."
    requires_system_checks = []  # they would double the start-up time

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("cluster", choices=["cycles", "housekeeping"])

    def handle(self, *args: Any, **options: Any) -> None:
        if os.environ.get("Q_CLUSTER_NAME") != options["cluster"]:
            # django-q2 has already read the name of its cluster from the environment, which it does once.
            os.environ["Q_CLUSTER_NAME"] = options["cluster"]
            os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606
        # Otherwise its processes survive a kill -9 of their parent and continue to schedule.
        forks_die_with_parent()
        if options["cluster"] == "housekeeping":
            _plan_housekeeping()
        from django_q.cluster import Cluster

        from notifications.sending import sender

        import_module("scheduling.worker.tasks")  # once for all its processes
        tracing.load()
        settle_heap()
        cluster = Cluster()
        cluster.start()
        if options["cluster"] == "housekeeping":
            # After the fork, in this process, which only waits for the cluster.
            stopping = sender.start()
        cluster.sentinel.join()
        if options["cluster"] == "housekeeping":
            stopping.set()


def _plan_housekeeping() -> None:
    from django_q.models import Schedule

    from scheduling.worker.housekeeping import EVERY_MINUTES

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
