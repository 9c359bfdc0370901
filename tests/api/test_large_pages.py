"""A page of jobs is bounded by what they run, too: the scripts of one page could fill the memory of the web process."""

import random

import pytest

from gpusched.protocol.arrays import ArrayRequest
from jobs.listing import job_list, representation
from tests.factories import make_node, run_cycle, submit

pytestmark = pytest.mark.django_db
MIB = 1 << 20


def pages(caller, limit, **values):
    """The numbers of bytes of scripts and the ids of each page."""
    result: list[list[tuple[int, int]]] = []
    cursor = None
    while cursor is not None or not result:
        items, cursor = job_list.list_jobs({**values, **({"cursor": cursor} if cursor else {})}, caller, limit)
        result.append([(len(row["script"]), row["id"]) for row in items])
        assert len(result) < 100
    return result


@pytest.mark.parametrize("is_compressible", [True, False])
def test_page_of_large_scripts_ends_early_and_the_cursor_continues(member, tenant, is_compressible):
    observed, dice = [tenant.pk], random.Random(1)
    text = "x" * (MIB * 3 // 4) if is_compressible else dice.randbytes(MIB * 3 // 8).hex()
    ids = [submit(member, tenant, command=[], script=f"#!/bin/sh\n#{n}{text}") for n in range(25)]
    result = pages(observed, 1000)
    assert [id for page in result for _, id in page] == sorted(ids, reverse=True), "each once, the newest first"
    assert all(sum(size for size, _ in page) <= representation.MAX_PAGE_BYTES + MIB for page in result)
    assert [len(page) for page in result] == [11, 11, 3]
    assert [len(page) for page in pages(observed, 5)] == [5, 5, 5, 5, 5, 0]


def test_elements_count_with_the_script_of_their_array(member, tenant):
    array = submit(member, tenant, command=[], script="#!/bin/sh\n#" + "x" * (MIB - 20), array=ArrayRequest(count=30))
    make_node(gpus=30)
    run_cycle()
    result = pages(None, 1000, array=str(array))
    assert [len(page) for page in result] == [8, 8, 8, 6]


def test_ordinary_pages_have_the_requested_length(member, tenant):
    observed = [tenant.pk]
    for n in range(40):
        submit(member, tenant, command=[], script=f"#!/bin/sh\n#{n}" + "ordinary words of a script\n" * 300)
    assert [len(page) for page in pages(observed, 1000)] == [40]
    assert [len(page) for page in pages(observed, 15)] == [15, 15, 10]
