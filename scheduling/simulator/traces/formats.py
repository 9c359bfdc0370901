"""Read traces in published formats as jobs: Philly's, Muri's, Gavel's, and our own history."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from scheduling.simulator.errors import InputError
from scheduling.simulator.traces.csv_rows import Row, read_rows
from scheduling.simulator.traces.jobs import TraceJob

# Our own format; docs/simulator.md describes each column. Only the first four are required.
CSV_COLUMNS = (
    "job_id",
    "submitted_at",
    "gpus",
    "run_seconds",
    "tenant",
    "user",
    "priority",
    "limit_seconds",
    "predicted_seconds",
)
_MAX_GPUS, _MAX_PRIORITY = 100_000, 10_000


def read_trace(path: Path, format_name: str) -> list[TraceJob]:
    """Return the jobs of a file by time of submission, those of one time in the order of the file.

    Raises KeyError for an unknown format, InputError for a file that is not in it, OSError.
    """
    jobs = sorted(FORMATS[format_name](path), key=_submitted)
    if not jobs:
        raise InputError(f"{path}: it has no jobs.")
    return jobs


def _philly(path: Path) -> Iterator[TraceJob]:
    """Read columns timestamp (no zone), duration in seconds, num_gpus, cluster (the virtual cluster: a tenant)."""
    rows = read_rows(path, ("timestamp", "duration", "num_gpus", "cluster"))
    for number, row in enumerate(rows, 1):
        yield TraceJob(
            id=number,
            name=str(number),
            submitted_at=row.seconds("timestamp"),
            gpus=_gpus(row, "num_gpus"),
            run_seconds=row.number("duration"),
            tenant=row.text("cluster") or "all",
        )


def _muri(path: Path) -> Iterator[TraceJob]:
    """Read columns submit_time and duration in milliseconds."""
    for number, row in enumerate(read_rows(path, ("job_id", "num_gpu", "submit_time", "duration")), 1):
        yield TraceJob(
            id=number,
            name=row.text("job_id") or str(number),
            submitted_at=row.number("submit_time") / 1000.0,
            gpus=_gpus(row, "num_gpu"),
            run_seconds=row.number("duration") / 1000.0,
        )


def _gavel(path: Path) -> Iterator[TraceJob]:
    """Read arrival_s and the number of steps of a type of job; its run time is steps / steps per second on one V100, as
    the durations from which the steps were derived show. The speeds are in a file beside the trace."""
    speeds = _speeds(path.with_name("simulation_throughputs.json.gz"))
    for number, row in enumerate(read_rows(path, ("arrival_s", "gpus", "job_type", "steps")), 1):
        speed = speeds.get(f"('{row.text('job_type')}', 1)", 0.0)
        if speed <= 0:
            raise row.bad("job_type", f"the speed of {row.text('job_type')[:50]!r} on a V100 is not known")
        yield TraceJob(
            id=number,
            name=str(number),
            submitted_at=row.number("arrival_s"),
            gpus=_gpus(row, "gpus"),
            run_seconds=row.number("steps") / speed,
        )


def _csv(path: Path) -> Iterator[TraceJob]:
    for number, row in enumerate(read_rows(path, CSV_COLUMNS[:4]), 1):
        yield TraceJob(
            id=number,
            name=row.text("job_id") or str(number),
            submitted_at=row.seconds("submitted_at"),
            gpus=_gpus(row, "gpus", minimum=0),
            run_seconds=row.number("run_seconds"),
            tenant=row.text("tenant") or "all",
            user=row.text("user"),
            priority=_priority(row) if row.text("priority") else 500,
            limit_seconds=row.integer("limit_seconds", minimum=1) if row.text("limit_seconds") else None,
            predicted_seconds=row.number("predicted_seconds") if row.text("predicted_seconds") else None,
        )


FORMATS: dict[str, Callable[[Path], Iterator[TraceJob]]] = {
    "philly": _philly,
    "muri": _muri,
    "gavel": _gavel,
    "csv": _csv,
}


def _submitted(job: TraceJob) -> tuple[float, int]:
    return job.submitted_at, job.id


def _gpus(row: Row, column: str, minimum: int = 1) -> int:
    count = row.integer(column, minimum=minimum)
    if count > _MAX_GPUS:
        raise row.bad(column, f"{count} GPUs are more than the {_MAX_GPUS} that a job may ask for")
    return count


def _priority(row: Row) -> int:
    priority = row.integer("priority")
    if priority > _MAX_PRIORITY:
        raise row.bad("priority", f"{priority} is more than {_MAX_PRIORITY}")
    return priority


def _speeds(path: Path) -> dict[str, float]:
    """Return the steps per second of each type of job alone on a V100."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            alone = {key: runs["null"] for key, runs in json.load(file)["v100"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zlib.error) as problem:
        raise InputError(f"{path}: it does not say how fast jobs run on a V100 ({problem}).") from problem
    return {key: speed for key, speed in alone.items() if isinstance(speed, int | float)}
