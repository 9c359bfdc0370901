"""Replay a recorded cycle without a database, and explain its decisions."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gpusched.protocol import reasons
from scheduling.cycle import recording
from scheduling.engine.model import Plan
from scheduling.engine.whatif.counterfactual import obstacles
from scheduling.engine.whatif.replay import Recording, placement_of, rerun, why_not


class Command(BaseCommand):
    help = "Rerun a cycle that `manage.py dump_snapshot` recorded, and say whether the plan is the recorded one."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", help="the recording")
        parser.add_argument(
            "--why", metavar="JOB", type=int, help="where the job starts, or why it waits and what would help"
        )
        parser.add_argument(
            "--why-not",
            nargs=2,
            metavar=("JOB", "NODE"),
            help="why the job does not start on this node (name or number)",
        )

    def handle(self, *args: Any, file: str, why: int | None, why_not: list[str] | None, **options: Any) -> None:
        try:
            read = recording.decode(Path(file).read_bytes())
        except OSError as error:
            raise CommandError(f"cannot read {file}: {error.strerror}.") from error
        except ValueError as error:
            raise CommandError(f"{file}: {error}.") from error
        try:
            replayed = rerun(read.recording)
        except (ValueError, KeyError, ZeroDivisionError) as error:
            # A file written or edited by hand: snapshots of the database always have a plan.
            raise CommandError(f"{file}: cannot plan from it: {type(error).__name__}: {error}.") from error
        numbers = len(replayed.placements), len(replayed.preemptions), len(replayed.reasons)
        counts = "{} placements, {} preemptions, {} reasons".format(*numbers)
        if why is not None:
            self.stdout.write("\n".join(_explain(read.recording, why)))
        if why_not is not None:
            self.stdout.write("\n".join(_explain_obstacles(read.recording, *why_not)))
        if recording.encode_plan(replayed) != read.plan:
            raise CommandError(f"the plan is NOT the recorded one: {_difference(read.recording.plan, replayed)}.")
        self.stdout.write(f"the plan is the recorded one, byte for byte: {counts}")


def _explain(cycle: Recording, job_id: int) -> list[str]:
    names = {node.id: node.name for node in cycle.snapshot.nodes}
    placed = placement_of(cycle.plan, job_id)
    if placed is not None:
        ranks = [f"rank {rank.rank} on {names[rank.node_id]}, GPUs {_ids(rank)}" for rank in placed.ranks]
        return [f"job {job_id} starts: {'; '.join(ranks)}"]
    steps = obstacles(cycle.snapshot, cycle.policy, cycle.now, job_id)
    if not steps:
        raise CommandError(f"job {job_id} does not wait in this recording.")
    lines = [f"job {job_id} waits: {reasons.sentence(steps[0].reason.code, steps[0].reason.evidence)}"]
    for step in steps:
        if step.change is not None:
            following = reasons.sentence(step.then.code, step.then.evidence) if step.then else ""
            change = step.change
            lines.append(
                "  "
                + reasons.change_sentence(
                    change.change, change.to, change.dimension, following, change.jobs or change.names
                )
            )
    return lines


def _ids(rank: Any) -> str:
    return ", ".join(str(hold.device_id) for hold in rank.holds) or "none"


def _explain_obstacles(cycle: Recording, job: str, node: str) -> list[str]:
    node_ids = [one.id for one in cycle.snapshot.nodes if node in (one.name, str(one.id))]
    if not (job.isascii() and job.isdecimal()) or not node_ids:
        raise CommandError(f"there is no job {job} or no node {node} in this recording.")
    try:
        failed = why_not(cycle, int(job), node_ids[0])
    except KeyError as error:
        raise CommandError(f"job {job} does not wait in this recording.") from error
    if not failed:
        return [f"job {job} does go to {node}"]
    return [f"job {job} does not go to {node}:", *(f"  {test.name}: {test.sentence}" for test in failed)]


def _difference(recorded: Plan, replayed: Plan) -> str:
    """Describe the first difference."""
    for name in ("placements", "preemptions", "claims", "reservation", "waits"):
        original, current = getattr(recorded, name), getattr(replayed, name)
        if original == current:
            continue
        if not isinstance(original, tuple):
            return f"{name} was {original}, is {current}"
        pair = next(((one, other) for one, other in zip(original, current, strict=False) if one != other), None)
        if pair is None:
            return f"{len(original)} {name} were recorded, {len(current)} are planned now"
        return f"of the {name}, {pair[0]} was recorded, {pair[1]} is planned now"
    return "the same decisions are encoded differently"
