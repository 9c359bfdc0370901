"""Generates histories of jobs for predictions: users who repeat commands, commands that drift, newcomers, failures."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import cos, exp, pi
from random import Random

from scheduling.simulator.traces.jobs import TraceJob

DAY = 86400.0


@dataclass(frozen=True)
class HistoryJob:
    """A job with its command. `ends_by_itself` False: it failed early, which tells little about its run time.
    `median_seconds`: the median of the command's run times then, which only the generator knows."""

    job: TraceJob
    command: tuple[str, ...]
    ends_by_itself: bool
    median_seconds: float


@dataclass
class _Command:
    """A command that a user repeats: its run times are lognormal around a median that drifts."""

    words: tuple[str, ...]
    gpus: int
    log_median: float
    spread: float
    drift: float

    def seconds(self, rng: Random) -> float:
        self.log_median += rng.gauss(0.0, self.drift)
        if rng.random() < 0.01:  # another data set or model size under the same command
            self.log_median += rng.choice((-0.7, 0.7))
        return min(max(exp(rng.gauss(self.log_median, self.spread)), 15.0), 2 * DAY)


def history(
    seed: int, *, days: float = 21.0, users: int = 24, jobs_per_day: float = 450.0, shift_at: float | None = None,
    shift: float = 1.0,
) -> list[HistoryJob]:  # fmt: skip
    """Return the jobs in the order of their submits. A quarter of the users come later; each user repeats a few
    commands, replaces them now and then, and submits some commands once. `shift_at`: a part of the time after which all
    run times are multiplied by `shift`."""
    rng = Random(seed)
    jobs: list[HistoryJob] = []
    activity = [1.0 / (number + 1) ** 0.6 for number in range(users)]
    joins = [0.0 if number % 4 else rng.uniform(0.2, 0.8) * days * DAY for number in range(users)]
    commands = {number: [_new_command(number, rng) for _ in range(rng.randint(3, 7))] for number in range(users)}
    for at in _submits(rng, days, jobs_per_day):
        user = rng.choices(range(users), [part if joins[n] <= at else 0.0 for n, part in enumerate(activity)])[0]
        owned = commands[user]
        if rng.random() < 0.02:
            owned[rng.randrange(len(owned))] = _new_command(user, rng)
        is_single = rng.random() < 0.15
        command = _new_command(user, rng) if is_single else rng.choices(owned, range(1, len(owned) + 1))[0]
        for number in range(1 if is_single or rng.random() < 0.7 else rng.randint(2, 12)):
            seconds = command.seconds(rng)
            if shift_at is not None and at > shift_at * days * DAY:
                seconds *= shift
            fails = rng.random() < 0.06
            job = TraceJob(
                len(jobs) + 1, "", at + number, command.gpus, seconds * rng.random() * 0.1 + 11.0 if fails else seconds,
                tenant=f"tenant{user % 3}", user=f"user{user}", limit_seconds=int(20 * DAY),
            )  # fmt: skip
            jobs.append(
                HistoryJob(
                    job, (*command.words, "--seed", str(rng.randrange(10**6))), not fails, exp(command.log_median)
                )
            )
    jobs.sort(key=lambda entry: entry.job.submitted_at)
    return [replace(entry, job=replace(entry.job, id=number)) for number, entry in enumerate(jobs, 1)]


def _submits(rng: Random, days: float, jobs_per_day: float) -> Iterator[float]:
    """Yield the times of submits: Poisson with a rhythm of a day. A burst counts as about three jobs."""
    at = 0.0
    while at < days * DAY:
        rate = jobs_per_day / 2.5 / DAY * (1.0 - 0.6 * cos(2 * pi * at / DAY))
        at += rng.expovariate(rate)
        yield at


def _new_command(user: int, rng: Random) -> _Command:
    name = f"{rng.choice(('train', 'eval', 'tune', 'export', 'sweep'))}_{rng.choice('abcdefghijklmnop')}{rng.choice('qrstuvwxyz')}"
    return _Command(
        words=("python", f"/home/user{user}/{name}.py", f"--data={rng.choice(('imagenet', 'coco', 'wiki', 'web'))}"),
        gpus=rng.choice((1, 1, 1, 1, 1, 1, 2, 2, 4)),
        log_median=rng.gauss(7.0, 1.5),
        spread=rng.choice((0.03, 0.1, 0.1, 0.2, 0.4)),
        drift=rng.choice((0.0, 0.0, 0.03)),
    )
