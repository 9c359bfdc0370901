"""`manage.py export_history FILE`: write ended jobs as a trace that `manage.py simulate jobs` replays."""

import csv
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from django.core.management.base import BaseCommand, CommandError
from django.db.models import DurationField, ExpressionWrapper, F, QuerySet, Sum
from django.utils import timezone

from gpusched.lib.times import rfc3339
from gpusched.protocol.reasons import fix_plurals
from jobs.models import Job
from scheduling.simulator.traces.formats import CSV_COLUMNS


class Command(BaseCommand):
    help = "Write the jobs that have run and ended as a csv file for `manage.py simulate jobs`."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="the output file; - is the standard output")
        parser.add_argument("--since", metavar="DATE", help="only jobs submitted from then on, in UTC")
        parser.add_argument("--until", metavar="DATE", help="only jobs submitted before then")

    def handle(self, *args: Any, **options: Any) -> None:
        jobs = _submitted(Job.objects.filter(array_count=None), options)  # without arrays: their elements ran
        ended = _ran(jobs)
        try:
            with self._opened(options["file"]) as file:
                count = _write(file, ended)
        except OSError as problem:
            raise CommandError(f"{problem.filename}: {problem.strerror}.") from problem
        left_out = jobs.count() - count
        self.stderr.write(
            f"{fix_plurals(f'{count} jobs')} written; {left_out} left out, as they have not ended, or never started."
        )

    def _opened(self, file: str) -> AbstractContextManager[Any]:
        return nullcontext(self.stdout) if file == "-" else Path(file).open("w", encoding="utf-8", newline="")


def _submitted(jobs: QuerySet[Job], options: dict[str, Any]) -> QuerySet[Job]:
    if options["since"]:
        jobs = jobs.filter(submitted_at__gte=_date("--since", options["since"]))
    if options["until"]:
        jobs = jobs.filter(submitted_at__lt=_date("--until", options["until"]))
    return jobs


def _ran(jobs: QuerySet[Job]) -> QuerySet[Any]:
    """Return the jobs that have finally ended, with the total time of their attempts (`ran`)."""
    length = ExpressionWrapper(F("attempts__ended_at") - F("attempts__started_at"), output_field=DurationField())
    ended = jobs.filter(ended_at__isnull=False, ended_at__lte=timezone.now())
    return ended.annotate(ran=Sum(length)).filter(ran__isnull=False).order_by("submitted_at", "id")


def _write(file: TextIO, jobs: QuerySet[Any]) -> int:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    count = 0
    for row in _rows(jobs):
        writer.writerow(row)
        count += 1
    return count


def _rows(jobs: QuerySet[Any]) -> Iterator[tuple[object, ...]]:
    """Yield rows in the order of CSV_COLUMNS. Unknown values are empty."""
    values = jobs.values_list(
        "id", "submitted_at", "gpu_count", "ran", "tenant__name", "user__username", "priority",
        "max_runtime_seconds", "predicted_seconds",
    )  # fmt: skip
    for job_id, submitted_at, gpus, ran, *fields in values.iterator(chunk_size=2000):
        yield (job_id, rfc3339(submitted_at), gpus, f"{max(ran.total_seconds(), 0.0):.3f}", *fields)


def _date(flag: str, text: str) -> datetime:
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(f"{flag}: {text!r} is not a date; write 2026-03-31 or 2026-03-31T12:00.") from None
    return read if read.tzinfo else read.replace(tzinfo=UTC)
