"""Each list of the API that grows is read in pages, and the pages together are the list (A54)."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusched.client.calls.jobs import JobFilters
from gpusched.lib.api.rest import encode_cursor
from tests.api.calls import call
from tests.api.every_operation import everything
from tests.factories import make_token, make_user

pytestmark = pytest.mark.django_db
DOCS = Path(__file__).resolve().parents[2] / "docs"
KEYS = ("job_id", "username", "index", "number", "version", "key", "id", "at")


def lists() -> Iterator[tuple[str, set[str]]]:
    """Each list of the document, with the names of its parameters."""
    described = json.loads((DOCS / "openapi.json").read_text())
    for path, operations in described["paths"].items():
        answers = operations.get("get", {}).get("responses", {})
        for media in answers.get("200", {}).get("content", {}).values():
            name = media["schema"].get("$ref", "").rpartition("/")[2]
            if "next_cursor" in described["components"]["schemas"].get(name, {}).get("properties", {}):
                yield path.removeprefix("/api/v1/"), {row["name"] for row in operations["get"].get("parameters", ())}


def test_sdk_lists_jobs_by_every_filter():
    """A54"""
    assert JobFilters.__optional_keys__ == dict(lists())["jobs"] - {"limit", "cursor"}


def test_each_list_has_pages_or_is_documented_as_complete():
    """A54: in docs/rest.md, of which no other sentence than this one names addresses so."""
    [complete] = re.findall(
        r"is answered whole, with a `next_cursor` of null: ([^.]+)\.", (DOCS / "rest.md").read_text()
    )
    result = dict(lists())
    assert {path for path, names in result.items() if not {"limit", "cursor"} <= names} == set(
        re.findall("`/([^`]+)`", complete)
    )


def key_of(item: dict[str, Any]) -> Any:
    return next(item[name] for name in KEYS if name in item)


def pages(ask: Any, first: dict[str, Any]) -> Iterator[Any]:
    page = first
    while page["next_cursor"] is not None:
        page = ask(f"limit=1&cursor={page['next_cursor']}")
        yield from map(key_of, page["items"])


def test_pages_of_one_item_equal_a_page_of_all():
    paged: set[str] = set()
    growing = {path for path, names in lists() if "cursor" in names}
    for name, response in everything():
        path = name.removeprefix("GET /api/v1/")
        if path not in growing:
            continue
        requested = response.request

        def ask(more: str, requested: Any = requested) -> dict[str, Any]:
            query = "&".join(part for part in requested["QUERY_STRING"].split("&") if part and "limit=" not in part)
            token = requested["HTTP_AUTHORIZATION"].removeprefix("Bearer ")
            answer = call("GET", f"{requested['PATH_INFO']}?{query}&{more}".replace("?&", "?"), token)
            assert answer.status_code == 200, (requested["PATH_INFO"], more, answer.content)
            body: dict[str, Any] = answer.json()
            return body

        complete = [key_of(item) for item in ask("limit=1000")["items"]]
        first = ask("limit=1")
        assert [*map(key_of, first["items"]), *pages(ask, first)] == complete, path
        if len(complete) > 1:
            paged.add(path)
    assert paged == growing, "each has two items somewhere"


def test_cursor_of_another_list_is_rejected():
    token = make_token(make_user(admin=True))
    growing = {path for path, names in lists() if "cursor" in names and "{" not in path}
    assert {"jobs", "audit"} <= growing
    for path in growing:
        for cursor in (encode_cursor("another", 5), encode_cursor("another", 5, 5.0, 5), "NQ", "W10", "bnVsbA"):
            answer = call("GET", f"/api/v1/{path}?cursor={cursor}", token)
            assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "cursor"), (path, cursor)
