"""Counts of the jobs ahead of a waiting one."""

import pytest

from frontend.pages.job.queue_ahead import MAX_SIZES, ahead_of
from jobs.actions import job_actions
from tests.factories import identity_for, submit

pytestmark = pytest.mark.django_db


def test_jobs_ahead_list_largest_sizes_and_exclude_held_jobs(nlp, member):
    sizes = range(1, MAX_SIZES + 3)
    for size in sizes:
        submit(member, nlp, gpu_count=size)
    job_actions.hold(submit(member, nlp, gpu_count=1), identity_for(member))
    last = submit(member, nlp, gpu_count=1)
    submit(member, nlp, gpu_count=1)
    payload = ahead_of(last, None)
    assert (payload["jobs"], payload["gpus"], payload["other"]) == (len(sizes), sum(sizes), 2)
    assert [(row["gpus"], row["jobs"]) for row in payload["sizes"]] == [(size, 1) for size in reversed(sizes)][
        :MAX_SIZES
    ]
