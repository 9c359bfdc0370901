"""The command that reruns a recorded cycle without a database, and says why and why not."""

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
        parser.add_argument("--why", metavar="JOB", type=int, help="where the job goes, or why it waits and what helps")
        parser.add_argument(
            "--why-not", nargs=2, metavar=("JOB", "NODE"), help="why the job does not go to this node (name or number)"
        )

    def handle(self, *args: Any, file: str, why: int | None, why_not: list[str] | None, **options: Any) -> None:
        try:
            read = recording.decode(Path(file).read_bytes())
        except OSError as error:
            raise CommandError(f"cannot read {file}: {error.strerror}.") from error
        except ValueError as error:
            raise CommandError(f"{file}: {error}.") from error
        try:
            made = rerun(read.recording)
        except (ValueError, KeyError, ZeroDivisionError) as error:
            # Made or edited by hand: what the database gives always has a plan.
            raise CommandError(f"{file}: nothing can be planned from it: {type(error).__name__}: {error}.") from error
        counts = f"{len(made.placements)} placements, {len(made.preemptions)} preemptions, {len(made.reasons)} reasons"
        if why is not None:
            self.stdout.write("\n".join(_why(read.recording, why)))
        if why_not is not None:
            self.stdout.write("\n".join(_why_not(read.recording, *why_not)))
        if recording.encode_plan(made) != read.plan:
            raise CommandError(f"the plan is NOT the recorded one: {_difference(read.recording.plan, made)}.")
        self.stdout.write(f"the plan is the recorded one, byte for byte: {counts}")


def _why(cycle: Recording, job_id: int) -> list[str]:
    names = {node.id: node.name for node in cycle.snapshot.nodes}
    placed = placement_of(cycle.plan, job_id)
    if placed is not None:
        ranks = [f"rank {rank.rank} on {names[rank.node_id]}, GPUs {_ids(rank)}" for rank in placed.ranks]
        return [f"job {job_id} starts: {'; '.join(ranks)}"]
    steps = obstacles(cycle.snapshot, cycle.policy, cycle.now, job_id)
    if not steps:
        raise CommandError(f"job {job_id} does not wait in this recording.")
    lines = [f"job {job_id} waits: {reasons.sentence(steps[0].reason.code, steps[0].reason.evidence)}"]
    for step, then in zip(steps, [*steps[1:], None], strict=True):
        if step.change is not None:
            following = reasons.sentence(then.reason.code, then.reason.evidence) if then else ""
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


def _why_not(cycle: Recording, job: str, node: str) -> list[str]:
    found = [one.id for one in cycle.snapshot.nodes if node in (one.name, str(one.id))]
    if not (job.isascii() and job.isdecimal()) or not found:
        raise CommandError(f"there is no job {job} or no node {node} in this recording.")
    try:
        failed = why_not(cycle, int(job), found[0])
    except KeyError as error:
        raise CommandError(f"job {job} does not wait in this recording.") from error
    if not failed:
        return [f"job {job} does go to {node}"]
    return [f"job {job} does not go to {node}:", *(f"  {test.name}: {test.sentence}" for test in failed)]


def _difference(recorded: Plan, made: Plan) -> str:
    """The first thing that is not the same."""
    for name in ("placements", "preemptions", "claims", "reservation", "waits"):
        before, after = getattr(recorded, name), getattr(made, name)
        if before == after:
            continue
        if not isinstance(before, tuple):
            return f"{name} was {before}, is {after}"
        pair = next(((one, other) for one, other in zip(before, after, strict=False) if one != other), None)
        if pair is None:
            return f"{len(before)} {name} were recorded, {len(after)} are made now"
        return f"of the {name}, {pair[0]} was recorded, {pair[1]} is made now"
    return "the same decisions are written in another way"
