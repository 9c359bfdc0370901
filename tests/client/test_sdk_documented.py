"""docs/sdk.md: every example runs, and both clients have every method that it names (A54)."""

import asyncio
import json
import re
import textwrap
from typing import Any

import pytest

from gpusched.client import AsyncClient, Client, NotPermitted
from gpusched.client.calls import access, billing, cluster, notifications, people, records, serving
from gpusched.client.transport import polling
from gpusched.client.transport.call import Call, no_content
from tests.client.answers import HAPPENED
from tests.client.fakeserver import Answer, FakeServer, acted, job, problem, sequence
from tests.docs.reading import section, text_of

EXAMPLES = re.findall(r"```python\n(.*?)```", text_of("docs/sdk.md"), re.S)
# Examples that never end.
FOR_EVER = "for event in c.events(since=last_id)"


@pytest.fixture
def documented(full: FakeServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the examples take for granted."""
    monkeypatch.setenv("GPUSCHED_URL", full.url)
    monkeypatch.setenv("GPUSCHED_TOKEN", "u1.secret")
    monkeypatch.setattr(polling, "QUICK_SECONDS", 0.001)
    happening = {**HAPPENED, "id": 7, "job_id": 42, "tenant": "nlp", "name": "train"}
    page = Answer(200, {"items": [happening], "next_since": 7, "more": False})
    full.on("GET", "/events", sequence(page, problem(403, "not_permitted", "you left")))
    full.on("GET", "/jobs/42/elements", Answer(200, {"items": [{"index": 3, "state": "failed"}]}))
    full.on("POST", "/jobs/42/retry", acted("retry"))
    full.on("GET", "/jobs/42", Answer(200, job(state="completed", exit_code=0)))
    client = Client()
    return {"c": client, "job": client.get(42), "last_id": 0}


def run(code: str, names: dict[str, Any]) -> None:
    exec(code, names)  # noqa: S102 our own document


@pytest.mark.parametrize("code", EXAMPLES, ids=[str(number) for number in range(len(EXAMPLES))])
def test_every_example_runs(documented: dict[str, Any], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A54"""
    if "await" in code:
        run(f"async def example():\n{textwrap.indent(code, '    ')}", documented)
        asyncio.run(documented["example"]())
    elif FOR_EVER in code:
        with pytest.raises(NotPermitted):
            run(code, documented)
        assert capsys.readouterr().out == "7 42 submitted\n"
    else:
        run(code, documented)


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (access.revoke_token(1), "/tokens/{token_id}"),
        (access.revoke_service_token("t", 1), "/tenants/{name}/service-tokens/{token_id}"),
        (access.delete_secret("t", "n"), "/tenants/{name}/secrets/{secret}"),
        (billing.end_rate(1), "/rates/{rate_id}"),
        (people.remove_member("t", "u"), "/tenants/{name}/members/{username}"),
        (records.end_exemption(1), "/idle-exemptions/{exemption_id}"),
        (cluster.remove_node("n"), "/nodes/{name}"),
        (serving.remove_endpoint("e"), "/endpoints/{name}"),
        (serving.delete_bucket(1), "/buckets/{bucket_id}"),
        (notifications.delete_notification_route(1), "/notifications/routes/{route_id}"),
        (notifications.delete_webhook(1), "/webhooks/{webhook_id}"),
    ],
)
def test_deletion_expects_the_documented_answer(call: Call[Any], path: str) -> None:
    answers = json.loads(text_of("docs/openapi.json"))["paths"][f"/api/v1{path}"]["delete"]["responses"]
    assert (call.method, call.parse is no_content) == ("DELETE", "204" in answers)


def test_both_clients_have_every_documented_method() -> None:
    """A54"""
    sections = "".join(section("docs/sdk.md", f"## {name}") for name in ("Jobs", "Endpoints and tasks", "The rest"))
    prose = re.sub(r"```.*?```", "", sections, flags=re.S)
    names = {name for code in re.findall(r"`([^`]+)`", prose) for name in re.findall(r"\b([a-z_]+)\(", code)}
    assert len(names) > 60
    for name in names:
        assert hasattr(Client, name), name
        assert hasattr(AsyncClient, name), name


def test_every_method_is_documented() -> None:
    """A54"""
    text = text_of("docs/sdk.md")
    mine = {name for name in dir(Client) if not name.startswith("_") and callable(getattr(Client, name))}
    assert mine == {
        name for name in dir(AsyncClient) if not name.startswith("_") and callable(getattr(AsyncClient, name))
    }
    assert {name for name in mine if not re.search(rf"\b{name}\b", text)} == {"close", "send"}
