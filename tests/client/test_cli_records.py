"""Commands for the server's records, and suppressed notes."""

import pytest

from tests.client.answers import CYCLE, DELIVERY, ELEMENT, ENTRY, INCIDENT, NODE, QUEUED
from tests.client.commandline import call
from tests.client.fakeserver import Answer, FakeServer, Request, job, problem

ME = {"user": "ada", "scopes": ["read"], "tenants": [{"name": "nlp", "role": "owner"}]}


def test_lists_print_records_and_request_only_the_limit(full: FakeServer) -> None:
    output = call(full.url, "incidents", "--open", "--limit", "5").stdout
    assert "dirty" in output and "pid 17" in output
    assert full.requests[-1].query == {"limit": "6", "open": "true"}, "one more tells whether there are more"
    assert "event" in call(full.url, "cycles").stdout


CUT = {
    "ps": ("/jobs", job()),
    "history": ("/jobs", job(state="completed")),
    "queue": ("/queue", QUEUED),
    "elements 42": ("/jobs/42/elements", ELEMENT),
    "audit": ("/audit", ENTRY),
    "incidents": ("/incidents", INCIDENT),
    "notify deliveries": ("/notifications/deliveries", DELIVERY),
    "cycles": ("/scheduling/cycles", CYCLE),
}


@pytest.mark.parametrize("command", CUT)
def test_cut_list_prints_a_note(full: FakeServer, command: str) -> None:
    """A58: on stderr, and not where all were shown."""
    path, item = CUT[command]

    def three(request: Request) -> Answer:
        return Answer(200, {"items": [item] * min(3, int(request.query["limit"])), "next_cursor": None})

    full.on("GET", path, three)
    for limit, note in (("2", "there are more than 2; see --limit\n"), ("3", "")):
        result = call(full.url, *command.split(), "--limit", limit, "-o", "jsonl")
        assert (len(result.stdout.splitlines()), result.stderr) == (int(limit), note)


def test_exemption_needs_either_a_job_or_a_tenant(full: FakeServer) -> None:
    added = call(full.url, "exempt", "add", "--job", "42", "--note", "by night")
    assert (added.exit_code, added.stdout) == (0, "5\n")
    assert full.requests[-1].json == {"tenant": None, "job_id": 42, "note": "by night"}
    for wrong in ([], ["--job", "42", "--tenant", "nlp"]):
        assert call(full.url, "exempt", "add", *wrong).exit_code == 2
    assert call(full.url, "exempt", "end", "5", "6").exit_code == 3, "the first ended, of the second there is none"


def test_whoami_names_scopes_and_roles(full: FakeServer) -> None:
    full.on("GET", "/me", Answer(200, ME))
    assert call(full.url, "whoami").stdout == "ada; scopes: read\nowner of tenant nlp\n"


@pytest.mark.parametrize(("off", "is_told"), [(None, False), (0.4, False), (-31.2, True)])
def test_node_show_notes_clock_skew(full: FakeServer, off: float | None, is_told: bool) -> None:
    full.on("GET", "/nodes/n1", Answer(200, {**NODE, "clock_off_seconds": off}))
    assert ("its clock is off by -31 s" in call(full.url, "node", "show", "n1").stderr) is is_told


def test_quiet_suppresses_notes_but_not_failures(full: FakeServer) -> None:
    """A58: the data are the same."""
    loud, quiet = call(full.url, "cancel", "42"), call(full.url, "--quiet", "cancel", "42")
    assert loud.stderr and not quiet.stderr
    assert (loud.exit_code, loud.stdout) == (quiet.exit_code, quiet.stdout)
    full.on("POST", "/jobs/42/cancel", problem(403, "forbidden", "not yours", "ask"))
    failed = call(full.url, "--quiet", "cancel", "42")
    assert (failed.exit_code, failed.stderr) == (4, "error: not yours\nnext:  ask\n")
    assert call(full.url, "hold", "42").stderr, "one that is quiet does not hush the next"


def test_node_show_notes_problems_of_the_machine(full: FakeServer) -> None:
    hint = {"check": "driver", "level": "fail", "says": "versions differ", "next_step": "reboot"}
    full.on("GET", "/nodes/n1", Answer(200, {**NODE, "hints": [hint]}))
    assert "fail driver: versions differ; reboot\n" in call(full.url, "node", "show", "n1").stderr
