"""The options of `simulate jobs`, parsed: the jobs, their cluster, and the policy."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import ceil, inf
from pathlib import Path
from typing import Any

from scheduling.engine.model import Policy
from scheduling.engine.policies import POLICIES
from scheduling.simulator.errors import InputError
from scheduling.simulator.runs.cluster import Cluster, never_fitting
from scheduling.simulator.traces.csv_rows import instant
from scheduling.simulator.traces.formats import FORMATS, read_trace
from scheduling.simulator.traces.jobs import TraceJob
from scheduling.simulator.traces.predictions import KINDS

FILLED = 0.8
MAX_NODES = 100_000
LIMITS = ("given", "none", "oracle")
# The settings of a policy that a number or a word can set.
_SETTABLE = {
    setting.name: type(setting.default) for setting in fields(Policy) if isinstance(setting.default, bool | int | float)
}
_MIN_POSITIVE = 1e-6
_RANGES = {
    "usage_half_life_seconds": (_MIN_POSITIVE, inf), "window_seconds": (_MIN_POSITIVE, inf), "online_percent": (0, 100),
    "dynamic_share_bound": (0, 0.9), "load_ceiling": (_MIN_POSITIVE, 1),
    "load_ceiling_shared": (_MIN_POSITIVE, 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """Jobs and the cluster that they have to themselves; `never_fit`: those of its jobs that could never start."""

    cluster: Cluster
    jobs: list[TraceJob]
    never_fit: list[TraceJob]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the trace, .csv or .csv.gz")
    parser.add_argument("--format", choices=sorted(FORMATS), default="csv", help="what the trace is written in")
    parser.add_argument(
        "--nodes",
        type=_nodes,
        metavar="N",
        help="how many nodes there are; or NAME=N,NAME=N: each of these tenants has nodes of its own; left out: so many"
        " that the jobs would fill four fifths of them",
    )
    parser.add_argument("--gpus-per-node", type=_positive, default=8, metavar="N")
    parser.add_argument("--tenant", metavar="NAME", help="only this tenant's jobs (a virtual cluster of Philly)")
    parser.add_argument("--since", metavar="DATE", help="only jobs submitted from then on, in UTC")
    parser.add_argument("--until", metavar="DATE", help="only jobs submitted before then")
    parser.add_argument("--policy", choices=sorted(POLICIES), default="fair")
    parser.add_argument("--predictions", choices=KINDS, default="given", help="what is known of run times beforehand")
    parser.add_argument("--limits", choices=LIMITS, default="given", help="the time limits of the jobs")
    parser.add_argument("--seeds", type=_positive, default=1, metavar="N", help="how many replays with other noise")
    parser.add_argument("--quota", action="append", default=[], metavar="TENANT=GPUS", help="most GPUs at once")
    parser.add_argument("--guarantee", action="append", default=[], metavar="TENANT=GPUS", help="GPUs guaranteed")
    parser.add_argument("--weight", action="append", default=[], metavar="TENANT=W", help="its weight, 1 by default")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the policy")
    parser.add_argument(
        "--preemption-seconds", type=_seconds, default=45.0, metavar="S", help="what each preemption costs a job"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw queue and use over time, as .svg or .png")


def parts_of(options: dict[str, Any], policy: Policy) -> list[Part]:
    """Return the parts of the simulation. Raises InputError for options or a trace that cannot be used, OSError for
    files."""
    jobs = _chosen(read_trace(options["file"], options["format"]), options)
    if options["nodes"] is None:
        options = {**options, "nodes": _enough(jobs, options["gpus_per_node"])}
    nodes: int | dict[str, int] = options["nodes"]
    if isinstance(nodes, int):
        return [_part(jobs, nodes, options, policy)]
    _check_names("--nodes", nodes, {job.tenant for job in jobs})
    return [_part([job for job in jobs if job.tenant == name], count, options, policy) for name, count in nodes.items()]


def _enough(jobs: Sequence[TraceJob], gpus_per_node: int) -> int:
    """Return the nodes that the jobs would fill to FILLED from the first submission to the last end if none waited, but
    at least as many as the widest of them takes."""
    begin = min(job.submitted_at for job in jobs)
    seconds = max(job.submitted_at + job.run_seconds for job in jobs) - begin
    busy = sum(job.gpus * job.run_seconds for job in jobs) / seconds if seconds > 0 else 0.0
    widest = max(job.gpus for job in jobs)
    return min(max(1, ceil(busy / FILLED / gpus_per_node), ceil(widest / gpus_per_node)), MAX_NODES)


def policy_of(options: dict[str, Any]) -> Policy:
    """Return the policy with the settings that `--set` names. Raises InputError."""
    settings: dict[str, Any] = {"name": options["policy"]}
    for name, text in _pairs("--set", options["set"]).items():
        kind = _SETTABLE.get(name)
        if kind is None:
            raise InputError(f"--set: no setting is named {name!r}; the settings are {', '.join(sorted(_SETTABLE))}.")
        value = _number("--set", name, {"true": "1", "false": "0"}.get(text, text))
        low, high = _RANGES.get(name, (0.0, inf))
        if not low <= value <= high:
            raise InputError(f"--set: {name} must be between {low:g} and {high:g}, not {value:g}.")
        settings[name] = kind(value)
    return Policy(**settings)


def _part(jobs: list[TraceJob], nodes: int, options: dict[str, Any], policy: Policy) -> Part:
    tenants = {job.tenant for job in jobs} if isinstance(options["nodes"], int) else set(options["nodes"])
    quotas, guarantees, weights = (
        _numbers(flag, options[flag.strip("-")], tenants) for flag in ("--quota", "--guarantee", "--weight")
    )
    cluster = Cluster(
        nodes,
        options["gpus_per_node"],
        quotas={name: int(value) for name, value in quotas.items()},
        guarantees={name: int(value) for name, value in guarantees.items()},
        weights=weights,
    )
    never_fit = never_fitting(cluster, jobs, policy)
    never_fit_ids = {job.id for job in never_fit}
    fitting = [job for job in jobs if job.id not in never_fit_ids]
    if not fitting:
        raise InputError(f"{options['file']}: none of the {len(jobs)} jobs fits on the cluster.")
    return Part(cluster, fitting, never_fit)


def _chosen(jobs: Sequence[TraceJob], options: dict[str, Any]) -> list[TraceJob]:
    since, until = (_date(flag, options[flag.strip("-")]) for flag in ("--since", "--until"))
    tenant = options["tenant"]
    if tenant is not None:
        _check_names("--tenant", [tenant], {job.tenant for job in jobs})
    chosen = [
        job
        for job in jobs
        if (tenant is None or job.tenant == tenant)
        and (since is None or job.submitted_at >= since)
        and (until is None or job.submitted_at < until)
    ]
    if not chosen:
        raise InputError(f"{options['file']}: no job was submitted between --since and --until.")
    return chosen


def _date(flag: str, text: str | None) -> float | None:
    if text is None:
        return None
    return instant(text, InputError(f"{flag}: {text!r} is no date; write 2026-03-31 or 2026-03-31T12:00."))


def _check_names(flag: str, names: Sequence[str] | dict[str, Any], tenants: set[str]) -> None:
    for name in names:
        if name not in tenants:
            first = ", ".join(sorted(tenants)[:20])
            raise InputError(f"{flag}: no job is of tenant {name!r}; the tenants are {first}.")


def _numbers(flag: str, options: Sequence[str], tenants: set[str]) -> dict[str, float]:
    pairs = _pairs(flag, options)
    _check_names(flag, pairs, tenants)
    return {name: _number(flag, name, text) for name, text in pairs.items()}


def _pairs(flag: str, options: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in options:
        name, is_pair, value = text.rpartition("=")
        if not is_pair or not name:
            raise InputError(f"{flag}: {text!r} is not NAME=VALUE.")
        pairs[name] = value
    return pairs


def _number(flag: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1e12:
        raise InputError(f"{flag}: {name}={text} is not a number of at least 0.")
    return value


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= MAX_NODES:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 to {MAX_NODES}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return _number("", "", text)
    except InputError:
        raise ArgumentTypeError(f"{text!r} is not a number of at least 0") from None


def _nodes(text: str) -> int | dict[str, int]:
    if "=" not in text:
        return _positive(text)
    return {name: _positive(count) for name, _, count in (pair.partition("=") for pair in text.split(","))}
