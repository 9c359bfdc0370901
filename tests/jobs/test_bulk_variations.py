"""Similar jobs of a bulk are checked and written by their differences, with the results of single submits."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.protocol.bulk import bulk_problems, field_path, first_identical
from gpusched.protocol.job_request import FieldError, JobRequest, validate
from jobs.submit.job_row import job_row, vary_row
from tenants.auth.identity import Identity

IDENTITY = cast(Identity, SimpleNamespace(user_id=1, default_minutes={}))
names = st.sampled_from(["", "trial 1", "x" * 200, "x" * 201, "a\x00b"])
arguments = st.lists(st.sampled_from(["--seed", "7", "a\x00", "y" * 70_000]), max_size=3)
variables = st.dictionaries(
    st.sampled_from(["SEED", "LR", "1X", "GPUSCHED_JOB_ID", "a\x00"]), st.sampled_from(["", "1", "z" * 140_000]),
    max_size=2,
)  # fmt: skip
other_fields = st.sampled_from(
    [{}, {"priority": 1}, {"gpu_count": 2}, {"labels": {"a": "b"}}, {"image": "ubuntu"}, {"depends_on": [5]}]
)
requests = st.builds(
    lambda name, args, environment, other: JobRequest(
        command=["python", "train.py"], name=name, args=args, environment=environment, **cast(dict[str, Any], other)
    ),
    names, arguments, variables, other_fields,
)  # fmt: skip


def one_by_one(requested: list[JobRequest]) -> list[FieldError]:
    return [
        FieldError(field_path(number, error.field), error.code, error.message)
        for number, request in enumerate(requested)
        for error in validate(request)
    ]


@settings(max_examples=200, deadline=None)
@given(st.lists(requests, min_size=1, max_size=8))
def test_bulk_reports_the_errors_of_single_submits(requested: list[JobRequest]) -> None:
    assert bulk_problems(requested) == one_by_one(requested)


@settings(max_examples=200, deadline=None)
@given(st.lists(requests, min_size=1, max_size=8))
def test_varied_row_equals_that_of_a_single_submit(requested: list[JobRequest]) -> None:
    for number, original in enumerate(first_identical(requested)):
        assert original <= number
        assert vary_row(job_row(requested[original], 1, IDENTITY), requested[number]) == job_row(
            requested[number], 1, IDENTITY
        )


def test_requests_are_identical_when_only_varying_fields_differ() -> None:
    first = JobRequest(command=["true"], name="a", args=["1"], environment={"A": "1"})
    changed = [
        msgspec.structs.replace(first, **{name: value})
        for name, value in (("name", "b"), ("args", []), ("environment", {}), ("gpu_count", 3), ("ref", "x"))
    ]
    assert first_identical([first, *changed, first]) == [0, 0, 0, 0, 4, 5, 0]
