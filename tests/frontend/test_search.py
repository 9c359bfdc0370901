"""Results of the command palette by viewer."""

import pytest
from django.test import Client

from jobs.models import Job
from tests.factories import make_member, make_node, make_tenant, make_user, submit
from tests.frontend.browsing import browser
from tests.serving.requests import make_endpoint

pytestmark = pytest.mark.django_db


def found(client: Client, text: str) -> list[tuple[str, str]]:
    return [(row["kind"], row["href"]) for row in client.get("/search/", {"q": text}).json()["found"]]


def test_search_finds_parts_of_names():
    tenant = make_tenant("vision")
    member = make_member(tenant)
    job = submit(member, tenant, name="Vision-Sweep")
    agent = make_node()
    client = browser(member)
    assert found(client, "vis") == [("job", f"/jobs/{job}/"), ("tenant", "/tenants/vision/")]
    assert found(client, agent.name.upper()) == [("node", f"/nodes/{agent.name}/")]
    assert found(client, "") == found(client, "   ") == found(client, "\x00") == []


def test_search_matches_all_words_and_kind_narrows():
    """As the help promises, "node r01" finds r01-n10, which has no "node" in its name."""
    tenant = make_tenant("r01-lab")
    member = make_member(tenant)
    job, other = submit(member, tenant, name="r01 train node"), submit(member, tenant, name="eval")
    make_node(name="r01-n10")
    client = browser(member)
    node = ("node", "/nodes/r01-n10/")
    assert found(client, "node r01") == found(client, "Nodes N10 r01") == found(client, "n10 r01") == [node]
    assert found(client, "tenant r01") == [("tenant", "/tenants/r01-lab/")]
    assert found(client, "job r01") == found(client, "node train") == [("job", f"/jobs/{job}/")]
    assert found(client, f"job #{other}") == [("job", f"/jobs/{other}/")]
    assert node in found(client, "r01") and found(client, "r01 no-such-word") == []


def test_search_lists_exact_job_id_first(monkeypatch):
    monkeypatch.setattr("frontend.pages.search.view._LATEST", 1)
    tenant = make_tenant()
    member = make_member(tenant)
    old, new = submit(member, tenant), submit(member, tenant)
    client = browser(member)
    assert ("job", f"/jobs/{old}/") == found(client, f"#{old}")[0]
    assert ("job", f"/jobs/{new}/") in found(client, str(new))
    assert found(client, "9" * 30) == []


def test_search_hides_other_tenants():
    """Neither their jobs, by name or id, nor that they are there."""
    theirs = make_tenant("theirs")
    secret = submit(make_member(theirs), theirs, name="top-secret")
    client = browser(make_member(make_tenant("ours")))
    for text in ("top-secret", str(secret), f"#{secret}", "theirs"):
        assert found(client, text) == []
    assert found(browser(make_user(admin=True)), "top-secret") == [("job", f"/jobs/{secret}/")]
    assert Job.objects.filter(pk=secret).exists()


def test_search_finds_endpoints_of_own_tenants():
    tenant = make_tenant("nlp")
    member = make_member(tenant)
    make_endpoint(tenant, member, name="embed-text")
    address = ("endpoint", "/endpoints/nlp/embed-text/")
    assert found(browser(member), "embed") == found(browser(member), "endpoint text") == [address]
    assert found(browser(make_member(make_tenant("ours"))), "embed") == []


def test_search_needs_login():
    assert Client().get("/search/", {"q": "a"}).status_code == 302


def test_search_escapes_wildcards():
    tenant = make_tenant()
    member = make_member(tenant)
    submit(member, tenant, name="plain")
    assert found(browser(member), "%") == found(browser(member), "_") == []
