"""Sets of numbers of elements: read, written and counted as people and PostgreSQL do."""

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
def test_numbers_are_read_as_people_write_them(text, ranges):
    assert arrays.parse_ranges(text) == ranges


@pytest.mark.parametrize(
    "text", ["", "a", "1-", "-1", "7-3", "1,,2", "10", "0-10", "9" * 20, "1;2", "1" + ",1" * 20_000]
)
def test_what_is_no_such_set_is_refused_with_a_sentence(text):
    with pytest.raises(ValueError, match=r"must|numbered"):
        arrays.parse_ranges(text, 10)


@given(st.sets(st.integers(0, 60)))
def test_all_ways_of_writing_a_set_say_the_same(numbers):
    ranges = arrays.to_ranges(sorted(numbers))
    assert list(arrays.numbers(ranges)) == sorted(numbers)
    assert arrays.size(ranges) == len(numbers)
    assert arrays.from_multirange(arrays.multirange(ranges)) == ranges
    if numbers:
        assert arrays.parse_ranges(arrays.format_ranges(ranges)) == ranges


@pytest.mark.django_db
@pytest.mark.parametrize("text", ["0-9", "3-7,9", "0,2,4"])
def test_postgresql_reads_and_counts_them_alike(text):
    ranges = arrays.parse_ranges(text)
    [row] = query(
        "SELECT s::text AS s, jobs_numbers(s) AS n FROM (SELECT %s::int4multirange AS s) x", [arrays.multirange(ranges)]
    )
    assert (arrays.from_multirange(row["s"]), row["n"]) == (ranges, arrays.size(ranges))


def test_a_count_and_how_many_at_once():
    assert arrays.array_of("100%10") == ArrayRequest(count=100, max_parallel=10)
    assert arrays.array_of("100") == ArrayRequest(count=100)
    for wrong in ("0-99", "5%0"):
        with pytest.raises(ValueError, match="100%10"):
            arrays.array_of(wrong)
