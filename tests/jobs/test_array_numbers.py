"""Sets of element numbers: parse, format and count them like PostgreSQL."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.lib.db.sql import query
from gpusched.protocol import arrays
from gpusched.protocol.arrays import ArrayRequest


@pytest.mark.parametrize(
    ("text", "ranges"),
    [("3-7,9", ((3, 8), (9, 10))), ("0", ((0, 1),)), ("5,3-4", ((3, 6),)), ("1,1, 1-2", ((1, 3),))],
)
def test_parse_ranges_accepts_ranges_and_numbers(text, ranges):
    assert arrays.parse_ranges(text) == ranges


@pytest.mark.parametrize(
    "text", ["", "a", "1-", "-1", "7-3", "1,,2", "10", "0-10", "9" * 20, "1;2", "1" + ",1" * 20_000]
)
def test_parse_ranges_refuses_other_text(text):
    with pytest.raises(ValueError, match=r"must|numbered"):
        arrays.parse_ranges(text, 10)


@given(st.sets(st.integers(0, 60)))
def test_representations_of_a_set_are_equivalent(numbers):
    ranges = arrays.to_ranges(sorted(numbers))
    assert list(arrays.numbers(ranges)) == sorted(numbers)
    assert arrays.size(ranges) == len(numbers)
    assert arrays.from_multirange(arrays.multirange(ranges)) == ranges
    if numbers:
        assert arrays.parse_ranges(arrays.format_ranges(ranges)) == ranges


@pytest.mark.django_db
@pytest.mark.parametrize("text", ["0-9", "3-7,9", "0,2,4"])
def test_postgresql_reads_and_counts_the_same_set(text):
    ranges = arrays.parse_ranges(text)
    [row] = query(
        "SELECT s::text AS s, jobs_numbers(s) AS n FROM (SELECT %s::int4multirange AS s) x", [arrays.multirange(ranges)]
    )
    assert (arrays.from_multirange(row["s"]), row["n"]) == (ranges, arrays.size(ranges))


def test_array_of_parses_count_and_max_parallel():
    assert arrays.array_of("100%10") == ArrayRequest(count=100, max_parallel=10)
    assert arrays.array_of("100") == ArrayRequest(count=100)
    for wrong in ("0-99", "5%0"):
        with pytest.raises(ValueError, match="100%10"):
            arrays.array_of(wrong)
