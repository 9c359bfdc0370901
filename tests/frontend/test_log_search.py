"""Search in a log on the server (A40): complete, by line and byte, bounded, for any content."""

import random

import pytest

from jobs.logs import search, store
from tests.factories import make_member, make_node, make_tenant, run_cycle, submit
from tests.frontend.browsing import browser

MIB = 1 << 20


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    settings.DATA_DIR = tmp_path
    settings.STORAGES = {**settings.STORAGES}  # lets go of the storage that knows the folder of before


def write(data, job_id=1):
    for at in range(0, len(data), 8 * MIB):
        store.append(job_id, 1, 0, at, data[at : at + 8 * MIB])


def all_of(text):
    """[(line, offset)] over as many answers as it takes, and how many those were."""
    hits, offset, line, answers = [], 0, 0, 0
    while True:
        result = search.search(1, 1, 0, text, offset, line)
        answers += 1
        assert len(result.hits) <= search.MAX_HITS
        hits += result.hits
        if result.is_all:
            return hits, answers
        assert result.next_offset > offset, "the search would never end"
        offset, line = result.next_offset, result.next_line


def test_search_covers_a_hundred_megabytes(monkeypatch):
    """A40. In as many answers as the time of one needs."""
    line = b"step %09d loss 0.123456 " + b"x" * 70 + b"\n"
    block = b"".join(line % number for number in range(10_000))
    data = b"needle first\n" + block * (100 * MIB // len(block)) + b"and the last Needle\n"
    write(data)
    hits, _ = all_of("needle")
    assert [(hit.line, hit.offset) for hit in hits] == [(1, 0), (data.count(b"\n"), data.rindex(b"Needle"))]
    assert hits[1].text == "and the last Needle"
    monkeypatch.setattr(search, "SECONDS", 0)
    repeated, answers = all_of("needle")
    assert repeated == hits
    assert answers == -(-len(data) // MIB) or answers > 90


def test_search_equals_plain_search_across_chunks(monkeypatch):
    chance = random.Random(7)
    monkeypatch.setattr(store, "MAX_READ", 64)
    for _ in range(200):
        data = bytes(chance.choices(b"ab\xc3\xa4\n", (30, 10, 5, 5, chance.choice((0, 1, 8))), k=chance.randrange(400)))
        store.drop(1, 1, 0)
        store.append(1, 1, 0, 0, data)
        lines = data.split(b"\n")
        expected = [number for number, line in enumerate(lines, 1) if b"bab" in line.lower()]
        hits, _ = all_of("BaB")
        assert sorted({hit.line for hit in hits}) == expected
        assert all(data[hit.offset : hit.offset + 3] == b"bab" for hit in hits)


def test_search_answer_is_bounded_and_continues():
    write(b"a hit\n" * 1000)
    hits, answers = all_of("hit")
    assert [hit.line for hit in hits] == list(range(1, 1001))
    assert answers >= 5


def test_search_continues_into_new_output_and_incomplete_lines():
    write(b"one\nneed")
    result = search.search(1, 1, 0, "need")
    assert ([hit.line for hit in result.hits], result.next_offset, result.next_line, result.is_all) == ([2], 4, 1, True)
    store.append(1, 1, 0, 8, b"le\n")
    assert [hit.line for hit in search.search(1, 1, 0, "needle", result.next_offset, result.next_line).hits] == [2]


def test_search_excerpts_very_long_lines():
    write(b"x" * (3 * MIB) + b" needle " + b"y" * MIB)
    (hit,), _ = all_of("needle")
    assert (hit.line, hit.offset) == (1, 3 * MIB + 1)
    assert " needle " in hit.text
    assert len(hit.text) < 300


@pytest.mark.django_db(transaction=True)
def test_search_from_page_is_restricted_to_viewers(nlp, member):
    """A08, A55"""
    make_node(name="n1", gpus=1).start_all()
    job_id = submit(member, nlp, gpu_count=1)
    run_cycle()
    write(b"one\ntwo needles\n", job_id)
    page = browser(member)
    payload = page.get(f"/jobs/{job_id}/log-hits/?log=1.0&q=Needle").json()
    assert payload["hits"] == [[2, 8, "two needles"]]
    assert (payload["is_all"], payload["next_offset"], payload["next_line"], payload["size"]) == (True, 16, 2, 16)
    for wrong in (
        "log=1.0",
        "log=1.0&q=",
        "log=x&q=a",
        "log=1.0&q=a%0Ab",
        "log=1.0&q=a&offset=-1",
        f"log=1.0&q={'a' * 801}",
    ):
        assert page.get(f"/jobs/{job_id}/log-hits/?{wrong}").status_code == 400, wrong
    other = make_member(make_tenant("vision"), name="otto")
    assert browser(other).get(f"/jobs/{job_id}/log-hits/?log=1.0&q=needle").status_code == 404
