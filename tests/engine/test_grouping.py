"""Groups that are made from those of the last cycle equal groups that are made anew."""

from dataclasses import replace
from random import Random

import pytest

from scheduling.engine.model import Job, Request
from scheduling.engine.queue import grouping

NOTHING = grouping.Grouped((), 0.0, {}, {}, [])


def made_anew(jobs, now, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(grouping, "_last", NOTHING)
        return grouping.group_jobs(jobs, now)


def as_lists(groups):
    """Return what a plan reads, with the order of the groups and of the requests."""
    identical = [(likeness, found.jobs, found.job_ids) for likeness, found in groups.identical.items()]
    return list(groups.numbers.items()), identical, groups.later, groups.jobs


class Waiting:
    """A queue that changes at random."""

    def __init__(self, seed):
        self.rng, self.next_id, self.oldest_id, self.now, self.jobs = Random(seed), 0, 0, 100.0, []
        self.submit(60)

    def submit(self, number):
        for _ in range(number):
            self.next_id += 1
            self.jobs.append(self.job(self.next_id))

    def job(self, id):
        rng = self.rng
        return Job(
            id=id, tenant_id=rng.randint(1, 2), request=Request(rng.choice([1, 1, 2, 4])),
            priority=rng.choice([500, 500, 700]), queued_at=float(rng.randint(0, 20)),
            eligible_at=self.now + 5 if rng.random() < 0.02 else 0.0, booking_id=rng.choice([None, None, None, 7]),
        )  # fmt: skip

    def step(self):
        self.now += self.rng.choice([0.0, 1.0])
        self.rng.choice([self.start_oldest, self.remove, self.change, self.release, self.reread, lambda: None])()
        self.submit(self.rng.choice([0, 1, 1, 3]))

    def start_oldest(self):
        self.jobs.pop(0)

    def remove(self):
        for _ in range(self.rng.choice([1, 2, 30])):
            if self.jobs:
                self.jobs.pop(self.rng.randrange(len(self.jobs)))

    def change(self):
        at = self.rng.randrange(len(self.jobs))
        self.jobs[at] = replace(self.jobs[at], priority=900)

    def release(self):
        """Insert a job that is older than others."""
        self.oldest_id -= 1
        self.jobs.insert(0, self.job(self.oldest_id))

    def reread(self):
        self.jobs = [replace(job) for job in self.jobs]


@pytest.mark.parametrize("seed", range(5))
def test_groups_after_small_changes_equal_groups_made_anew(seed, monkeypatch):
    monkeypatch.setattr(grouping, "_last", NOTHING)
    waiting = Waiting(seed)
    for _ in range(60):
        waiting.step()
        changed = as_lists(grouping.group_jobs(waiting.jobs, waiting.now))
        assert changed == as_lists(made_anew(waiting.jobs, waiting.now, monkeypatch))
        if len(waiting.jobs) < 40:
            waiting.submit(40)


def test_arrival_keeps_the_groups_of_the_other_jobs(monkeypatch):
    monkeypatch.setattr(grouping, "_last", NOTHING)
    jobs = [Job(id=id, tenant_id=id % 2, request=Request(1)) for id in range(100)]
    before = grouping.group_jobs(jobs, 1.0)
    after = grouping.group_jobs([*jobs, Job(id=100, tenant_id=0, request=Request(1))], 1.0)
    assert after.identical[1, 0, 500, None] is before.identical[1, 0, 500, None]
    assert after.identical[0, 0, 500, None].job_ids == (*before.identical[0, 0, 500, None].job_ids, 100)
