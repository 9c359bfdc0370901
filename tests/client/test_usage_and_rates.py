"""Use, money, audit and tokens of programs: requests and output of the command and the SDK."""

import asyncio
from datetime import UTC, datetime

import pytest

from gpusched.client import AsyncClient, Client, NotFound
from gpusched.protocol.rest.billing import Usage
from tests.client.answers import ENTRY, PROGRAM, TENANT, USAGE, USED
from tests.client.commandline import call
from tests.client.fakeserver import Answer, FakeServer, problem, sequence


def test_usage_prints_a_table_and_notes_the_total(full: FakeServer) -> None:
    """A58: the total is not data."""
    result = call(full.url, "usage", "nlp", "--by", "user", "--from", "2030-01-01")
    assert result.stdout.splitlines()[1].split() == ["ada", "2", "1", "5"]
    assert result.stderr == "nlp, 2030-01-01 to 2030-01-31: 2 GPU-hours in 1 job, 5 EUR, and 1 refunded\n"
    assert full.requests[-1].query == {"by": "user", "limit": "1000", "from": "2030-01-01"}


def test_large_amounts_keep_their_digits(full: FakeServer) -> None:
    """Six of them are too few for a bill."""
    used = {**USED, "gpu_hours": 12345.6789, "gpu_seconds": 44444444.04, "cost": 1234567.89}
    full.on("GET", "/tenants/nlp/usage", Answer(200, {**USAGE, "items": [{**used, "key": "ada"}], "total": used}))
    result = call(full.url, "usage", "nlp", "-o", "csv")
    assert result.stdout.splitlines()[1].startswith("ada,,,12345.6789,1,1234567.89,44444444.04,")
    assert ": 12345.6789 GPU-hours in 1 job, 1234567.89 EUR" in result.stderr


def test_memory_of_a_large_tenant_has_no_exponent(full: FakeServer) -> None:
    in_use = {"gpus": 2, "gpu_memory_mb": 1310720}
    full.on("GET", "/tenants", Answer(200, {"items": [{**TENANT, "in_use": in_use}]}))
    assert " 1310720/" in call(full.url, "tenant", "list", "-o", "wide").stdout


def test_usage_defaults_to_the_only_tenant(full: FakeServer) -> None:
    full.on("GET", "/me", Answer(200, {"user": "ada", "tenants": [{"name": "nlp", "role": "member"}]}))
    assert call(full.url, "usage").exit_code == 0
    full.on("GET", "/me", Answer(200, {"user": "ada", "tenants": [{"name": "a"}, {"name": "b"}]}))
    several = call(full.url, "usage")
    assert several.exit_code == 2
    assert "your tenants: a, b" in several.stderr


def test_budget_edit_keeps_omitted_bounds_and_sends_the_version(full: FakeServer) -> None:
    result = call(full.url, "budget", "nlp", "--hard", "200")
    request = full.requests[-1]
    assert (request.method, request.json) == ("PUT", {"soft_gpu_hours": 80, "hard_gpu_hours": 200, "days": None})
    assert request.headers["if-match"] == '"4"'
    assert "soft 80 GPU-hours, hard 100 GPU-hours in the calendar month" in result.stdout
    call(full.url, "budget", "nlp", "--soft", "none", "--days", "7", "--dry-run")
    assert full.requests[-1].json == {"soft_gpu_hours": None, "hard_gpu_hours": 100, "days": 7}
    assert full.requests[-1].query == {"dry_run": "true"}


def test_audit_prints_old_and_new_values(full: FakeServer) -> None:
    created = {**ENTRY, "action": "token.create", "before": None, "after": {"name": "ci"}}
    full.on("GET", "/audit", Answer(200, {"items": [ENTRY, created]}))
    lines = call(full.url, "audit", "--actor", "ada", "--action", "quota", "-l", "7").stdout.splitlines()
    assert lines[1].endswith("max_gpus 4 → null")
    assert lines[2].endswith("made")
    assert full.requests[-1].query == {"actor": "ada", "action": "quota", "limit": "8"}


def test_service_token_belongs_to_its_tenant(full: FakeServer) -> None:
    result = call(full.url, "token", "create", "nightly", "--service", "nlp", "--role", "viewer", "--scope", "read")
    assert (result.exit_code, result.stdout) == (0, "u34cd.secret\n")
    expected = {"name": "nightly", "role": "viewer", "scopes": ["read"], "expires_in_days": 365}
    assert (full.requests[-1].path, full.requests[-1].json) == ("/api/v1/tenants/nlp/service-tokens", expected)
    assert "nightly@nlp" in call(full.url, "token", "list", "--service", "nlp", "-o", "wide").stdout


@pytest.mark.parametrize("is_async", [False, True])
def test_usage_joins_all_pages(server: FakeServer, is_async: bool) -> None:
    """The time of the first page applies to all pages."""
    first = {**USAGE, "next_cursor": "more"}
    last = {**USAGE, "items": [{**USED, "key": "grace"}]}
    server.on("GET", "/tenants/nlp/usage", sequence(Answer(200, first), Answer(200, last)))

    async def ask() -> Usage:
        async with AsyncClient(server.url) as c:
            return await c.usage("nlp", by="user", start=datetime(2030, 1, 1, tzinfo=UTC))

    values = (
        asyncio.run(ask())
        if is_async
        else Client(server.url).usage("nlp", by="user", start=datetime(2030, 1, 1, tzinfo=UTC))
    )
    assert [part.key for part in values.items] == ["ada", "grace"]
    assert (values.total.gpu_hours, values.next_cursor) == (2, None)
    assert server.requests[0].query["from"] == "2030-01-01T00:00:00+00:00"
    assert (server.requests[1].query["to"], server.requests[1].query["cursor"]) == ("2030-01-31T10:00:00+00:00", "more")


def test_results_of_both_clients_are_typed(full: FakeServer) -> None:
    async def ask() -> list[str]:
        async with AsyncClient(full.url) as c:
            [entry], [rate], budget = await c.audit(), await c.rates(), await c.budget("nlp")
            [program] = await c.service_tokens("nlp")
            return [entry.subject, rate.gpu_model, budget.state, program.user]

    with Client(full.url) as c:
        [entry], [rate], budget = c.audit(), c.rates(), c.budget("nlp")
        [program] = c.service_tokens("nlp")
        values = [entry.subject, rate.gpu_model, budget.state, program.user]
        assert values == asyncio.run(ask()) == ["quota nlp", "H100", "soft_exceeded", PROGRAM["user"]]
        assert c.create_service_token("nlp", "nightly").token == "u34cd.secret"
        full.on("GET", "/tenants/nlp/budget", problem(404, "not_found", "there is no tenant 'nlp'"))
        with pytest.raises(NotFound):
            c.budget("nlp")
