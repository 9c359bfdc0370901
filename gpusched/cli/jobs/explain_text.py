"""Words for what the scheduler says of a job: why it waits, what would help, when it starts, what it would become."""

from typing import TYPE_CHECKING

from gpusched.cli.terminal.output import age
from gpusched.protocol.reasons import fix_plurals

if TYPE_CHECKING:
    from gpusched.protocol.rest.explain import Explanation, Simulation

# Of a long history the latest periods are shown; `-o json` has all.
_MAX_PERIODS = 10


def explanation_lines(it: "Explanation") -> str:
    """The answer of `why`, one thing a line."""
    lines = [f"job {it.job_id} is {it.state}" + (f": {it.sentence}" if it.sentence else "")]
    if it.since:
        lines.append(f"since: {it.since:%Y-%m-%d %H:%M:%S} UTC ({age(it.since)} ago)")
    if it.next_step:
        lines.append(f"next:  {it.next_step}")
    if it.counterfactual:
        lines.append(f"if:    {it.counterfactual.sentence}")
    # What the job would wait for instead has been said with the change.
    said = it.counterfactual.sentence if it.counterfactual else ""
    lines += [f"also:  {also.sentence}" for also in it.also if also.sentence not in said]
    if it.position:
        ahead = fix_plurals(f"{it.position.jobs} jobs, {it.position.gpus:g} GPUs") if it.position.jobs else "no job"
        lines.append(f"ahead: {ahead} by priority and age; shares decide before that")
    lines += _start(it)
    if len(it.history) > 1:
        periods = it.history[-_MAX_PERIODS:]
        lines.append("was:   " + ", ".join(f"{one.code} {_duration(one.seconds)}" for one in periods))
    if it.cycle_id is not None:
        lines.append(f"more:  gpusched cycles replay {it.cycle_id} --job {it.job_id}")
    return "\n".join(lines)


def simulation_lines(it: "Simulation") -> str:
    """The answer of `submit --dry-run`, one thing a line."""
    lines = [it.sentence]
    lines += [f"rank {one.rank}: {one.node}" + _gpus(one.gpus, one.models) for one in it.placement]
    if it.reason and it.reason.next_step:
        lines.append(f"next:  {it.reason.next_step}")
    if it.victims:
        stopped = fix_plurals(f"{it.victims.jobs} jobs, {it.victims.gpus} GPUs")
        lines.append(f"stops: {stopped} (by {it.victims.rule})")
    lines += _start(it)
    lines += [f"or:    {way.sentence}" for way in it.alternatives]
    return "\n".join(lines)


def _start(it: "Explanation | Simulation") -> list[str]:
    said = it.estimate.sentence if it.estimate else it.estimate_reason
    return [f"start: {said}"] if said else []


def _gpus(numbers: list[int], models: list[str]) -> str:
    of = f" ({', '.join(models)})" if models else ""
    return f", GPU{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}{of}" if numbers else ""


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
