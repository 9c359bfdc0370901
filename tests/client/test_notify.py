"""`gpusched notify`: addresses never come from arguments, a secret goes to stdout alone, and a failed test fails."""

from tests.client.answers import DELIVERY
from tests.client.commandline import call
from tests.client.fakeserver import Answer, FakeServer


def test_address_comes_from_stdin(full: FakeServer) -> None:
    result = call(full.url, "notify", "add", "mail", "--kind", "job_failed", "-k", "budget", "--quiet-hours", "22:00-07:00",
                  "--digest", "60", "-t", "nlp", stdin="ntfys://ntfy.example.com/topic\n")  # fmt: skip
    assert (result.exit_code, "try it: gpusched notify test 4" in result.stdout) == (0, True)
    sent = full.requests[-1].json
    assert sent["target"] == "ntfys://ntfy.example.com/topic"
    assert (sent["kinds"], sent["tenant"], sent["digest_minutes"]) == (["job_failed", "budget"], "nlp", 60)
    assert (sent["quiet_from"], sent["quiet_until"]) == ("22:00", "07:00")


def test_secret_of_a_webhook_is_all_that_is_on_stdout(full: FakeServer) -> None:
    result = call(full.url, "notify", "webhook", "ci", "-k", "job_failed", stdin="https://ci.example.com/x")
    assert (result.exit_code, result.stdout) == (0, "whsec_x\n")
    assert "shown this once" in result.stderr


def test_list_has_routes_and_webhooks(full: FakeServer) -> None:
    lines = call(full.url, "notify", "list").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["4", "mail"], ["5", "ci"]]


def test_failed_test_message_exits_with_1_and_tells_why(full: FakeServer) -> None:
    full.on("POST", "/notifications/routes/4/test", Answer(200, {**DELIVERY, "state": "pending"}))
    full.on(
        "GET", "/notifications/deliveries/8", Answer(200, {**DELIVERY, "state": "pending", "error": "no connection"})
    )
    result = call(full.url, "notify", "test", "4")
    assert result.exit_code == 1
    assert "was not sent: no connection" in result.stdout
