"""Jobs of a bulk that are alike are judged and written by what they differ in, and as the single submits would be."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.protocol.bulk import bulk_problems, field_path, first_identical
from gpusched.protocol.job_request import FieldError, JobRequest, validate
from jobs.submit.job_row import job_row, vary_row
from tenants.auth.identity import Identity

WHO = cast(Identity, SimpleNamespace(user_id=1))
names = st.sampled_from(["", "trial 1", "x" * 200, "x" * 201, "a\x00b"])
arguments = st.lists(st.sampled_from(["--seed", "7", "a\x00", "y" * 70_000]), max_size=3)
variables = st.dictionaries(
    st.sampled_from(["SEED", "LR", "1X", "GPUSCHED_JOB_ID", "a\x00"]), st.sampled_from(["", "1", "z" * 140_000]),
    max_size=2,
)  # fmt: skip
others = st.sampled_from(
    [{}, {"priority": 1}, {"gpu_count": 2}, {"labels": {"a": "b"}}, {"image": "ubuntu"}, {"depends_on": [5]}]
)
requests = st.builds(
    lambda name, args, environment, other: JobRequest(
        command=["python", "train.py"], name=name, args=args, environment=environment, **cast(dict[str, Any], other)
    ),
    names, arguments, variables, others,
)  # fmt: skip


def one_by_one(wanted: list[JobRequest]) -> list[FieldError]:
    return [
        FieldError(field_path(number, error.field), error.code, error.message)
        for number, request in enumerate(wanted)
        for error in validate(request)
    ]


@settings(max_examples=200, deadline=None)
@given(st.lists(requests, min_size=1, max_size=8))
def test_what_is_wrong_is_what_single_submits_would_find(wanted: list[JobRequest]) -> None:
    assert bulk_problems(wanted) == one_by_one(wanted)


@settings(max_examples=200, deadline=None)
@given(st.lists(requests, min_size=1, max_size=8))
def test_the_row_of_a_job_is_that_of_a_single_submit(wanted: list[JobRequest]) -> None:
    for number, like in enumerate(first_identical(wanted)):
        assert like <= number
        assert vary_row(job_row(wanted[like], 1, WHO), wanted[number]) == job_row(wanted[number], 1, WHO)


def test_only_what_a_sweep_differs_in_is_no_difference() -> None:
    first = JobRequest(command=["true"], name="a", args=["1"], environment={"A": "1"})
    changed = [
        msgspec.structs.replace(first, **{name: value})
        for name, value in (("name", "b"), ("args", []), ("environment", {}), ("gpu_count", 3), ("ref", "x"))
    ]
    assert first_identical([first, *changed, first]) == [0, 0, 0, 0, 4, 5, 0]
