"""Format the scheduler's answers about a job: why it waits, what would help, when it starts, what a submit would do."""

from typing import TYPE_CHECKING

from gpusched.cli.terminal.output import age
from gpusched.protocol.reasons import fix_plurals

if TYPE_CHECKING:
    from gpusched.protocol.rest.explain import Explanation, Simulation

# Show the latest periods of a long history; `-o json` has all.
_MAX_PERIODS = 10


def explanation_lines(it: "Explanation") -> str:
    """Return the text of `why`, one fact per line."""
    lines = [f"job {it.job_id} is {it.state}" + (f": {it.sentence}" if it.sentence else "")]
    if it.since:
        lines.append(f"since: {it.since:%Y-%m-%d %H:%M:%S} UTC ({age(it.since)} ago)")
    if it.next_step:
        lines.append(f"next:  {it.next_step}")
    if it.counterfactual:
        lines.append(f"if:    {it.counterfactual.sentence}")
    # The counterfactual's sentence already names the job's next reason.
    counterfactual = it.counterfactual.sentence if it.counterfactual else ""
    lines += [f"also:  {also.sentence}" for also in it.also if also.sentence not in counterfactual]
    if it.position:
        ahead = fix_plurals(f"{it.position.jobs} jobs, {it.position.gpus} GPUs") if it.position.jobs else "no job"
        lines.append(f"ahead: {ahead} by priority and age; shares decide before that")
    lines += [*_start(it), *_run_time(it)]
    if len(it.history) > 1:
        periods = it.history[-_MAX_PERIODS:]
        lines.append("was:   " + ", ".join(f"{period.code} {_duration(period.seconds)}" for period in periods))
    if it.cycle_id is not None:
        lines.append(f"more:  gpusched cycles replay {it.cycle_id} --job {it.job_id}")
    return "\n".join(lines)


def simulation_lines(it: "Simulation") -> str:
    """Return the text of `submit --dry-run`, one fact per line."""
    lines = [it.sentence]
    lines += [f"rank {rank.rank}: {rank.node}" + _gpus(rank.gpus, rank.models) for rank in it.placement]
    if it.reason and it.reason.next_step:
        lines.append(f"next:  {it.reason.next_step}")
    if it.victims:
        stopped = fix_plurals(f"{it.victims.jobs} jobs, {it.victims.gpus} GPUs")
        lines.append(f"stops: {stopped} (by {it.victims.rule})")
    lines += [*_start(it), *_run_time(it), *_memory(it)]
    lines += [f"advice: {item.sentence}" for item in it.advice]
    lines += [f"or:    {way.sentence}" for way in it.alternatives]
    return "\n".join(lines)


def _start(it: "Explanation | Simulation") -> list[str]:
    sentence = it.estimate.sentence if it.estimate else it.estimate_reason
    return [f"start: {sentence}"] if sentence else []


def _run_time(it: "Explanation | Simulation") -> list[str]:
    return [f"runs:  {it.predicted.source}"] if it.predicted else []


def _memory(it: "Simulation") -> list[str]:
    """Return the line about GPU memory that the server would choose (`--gpu-memory-mb auto`)."""
    choice = it.gpu_memory_auto
    if choice is None:
        return []
    amount = f"{choice.gpu_memory_mb} MiB of each GPU: " if choice.gpu_memory_mb else ""
    return [f"memory: {amount}{choice.source}"]


def _gpus(numbers: list[int], models: list[str]) -> str:
    of = f" ({', '.join(models)})" if models else ""
    return f", GPU{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}{of}" if numbers else ""


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
