"""`gpusched logout`."""

from typing import Any

import pytest

from gpusched.client.config import path, read_file, write_file
from tests.client.answers import TOKEN
from tests.client.commandline import Result, call
from tests.client.fakeserver import Answer, FakeServer, problem

MINE = {**TOKEN, "id": 7, "prefix": "u12ab", "name": "gpusched login on laptop", "made_by": None, "revoked_at": None}
OTHER = {**MINE, "id": 9, "prefix": "u34cd", "name": "ci"}


def log_out(server: FakeServer, *tokens: dict[str, Any]) -> tuple[Result, dict[str, str], list[str]]:
    """Return the result, what remains in the config file, and the paths of the revoked tokens."""
    server.on("GET", "/tokens", Answer(200, {"items": list(tokens)}))
    write_file(path(), {"url": server.url, "token": "u12ab.secret", "tenant": "nlp"})
    result = call("", "logout")
    revoked = [request.path for request in server.requests if request.method == "DELETE"]
    return result, read_file(path()), revoked


def test_token_of_a_login_is_revoked_and_forgotten(full: FakeServer) -> None:
    result, rest, revoked = log_out(full, OTHER, MINE)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no longer valid" in result.stderr and "u12ab.secret" not in result.stderr
    assert rest == {"url": full.url, "tenant": "nlp"}
    assert [request.rpartition("/")[2] for request in revoked] == ["7"]
    assert full.requests[0].headers["authorization"] == "Bearer u12ab.secret"


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([{**MINE, "name": "nightly"}], "`gpusched login` did not create it"),
        ([], "`gpusched login` did not create it"),
        ([MINE, {**OTHER, "made_by": 7}], "tokens were created with it (9): `gpusched token revoke 7`"),
    ],
)
def test_token_that_others_may_use_stays_valid(full: FakeServer, tokens: list[dict[str, Any]], reason: str) -> None:
    result, rest, revoked = log_out(full, *tokens)
    assert (result.exit_code, "token" in rest, revoked) == (0, False, [])
    assert f"it stays valid, because {reason}" in result.stderr


def test_revoked_descendant_does_not_keep_the_token_valid(full: FakeServer) -> None:
    _, _, revoked = log_out(full, MINE, {**OTHER, "made_by": 7, "revoked_at": "2030-01-01T00:00:00Z"})
    assert len(revoked) == 1


def test_invalid_token_is_forgotten(full: FakeServer) -> None:
    full.default = problem(401, "not_authenticated", "the token has expired", "log in again")
    full.routes.clear()
    write_file(path(), {"url": full.url, "token": "u12ab.secret"})
    result = call("", "logout")
    assert (result.exit_code, read_file(path())) == (0, {"url": full.url})


def test_failed_revocation_keeps_the_token(full: FakeServer) -> None:
    full.on("DELETE", "/tokens/7", problem(500, "internal", "the server failed", "tell an admin"))
    result, rest, _ = log_out(full, MINE)
    assert (result.exit_code, rest["token"]) == (1, "u12ab.secret")


def test_logout_without_a_token_changes_nothing(full: FakeServer) -> None:
    result = call(full.url, "logout")
    assert (result.exit_code, full.requests, path().exists()) == (0, [], False)
    assert "no token is stored" in result.stderr
