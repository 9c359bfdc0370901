"""Sends what the OpenAPI document allows, and what it forbids, to a running server as each role (schemathesis).

Nothing may answer with 5xx, with a status or a content type that is not documented, or against its schema."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import APIOperation, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from benchmarks.report import arguments, publish
from benchmarks.stack import ROOT, Stack

CHECKS: list[Any] = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip
Operation = APIOperation[Any, Any, Any, Any]
ROLES = ("anonymous", "stranger", "viewer", "member", "owner", "admin")
_PEOPLE = """
import json
from django.contrib.auth.models import User
from tenants.auth.tokens import create_token
from tenants.models import Tenant
from tenants.tenancy import tenants as services
tokens = {}
tenant = Tenant.objects.get(name="default")
other = services.create_tenant({"name": "other"}, actor="fuzz")
for role in ("stranger", "viewer", "member", "owner", "admin"):
    make = User.objects.create_superuser if role == "admin" else User.objects.create_user
    user = make("fuzz-" + role, password="correct horse battery")
    if role != "admin":
        services.set_member(other if role == "stranger" else tenant, user, "member" if role == "stranger" else role)
    scopes = ["read", "write", "admin"] if role == "admin" else ["read", "write"]
    tokens[role] = create_token(user.pk, "fuzz", scopes)[1]
print("TOKENS " + json.dumps(tokens))
"""


@dataclass
class Found:
    """What came of the requests so far."""

    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def fail(self, operation: str, what: str, detail: str) -> None:
        self.failures.setdefault((operation, what), detail)


@dataclass
class Target:
    """A server with somebody of each role. `known`: path parameter → what is there."""

    stack: Stack
    tokens: dict[str, str]
    known: dict[str, list[Any]]


def prepare(stack: Stack) -> Target:
    stack.fleet(2)
    return Target(stack, {"anonymous": "", **people(stack)}, things(stack))


def fuzz(target: Target, each: int, roles: Sequence[str] = ROLES, seed: int = 0, only: str = "") -> Found:
    """`each`: about so many requests for each operation and role. The same seed sends the same."""
    stack, tokens = target.stack, target.tokens
    document = httpx.get(f"{stack.url}/api/v1/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    # What is no valid operation has no ok(): the run fails.
    operations: list[Operation] = [result.ok() for result in schema.get_all_operations()]  # type: ignore[union-attr]
    found = Found()
    for number, role in enumerate(roles):
        with requests.Session() as session:
            for operation in operations:
                if only in f"{operation.method.upper()} {operation.path}":
                    sender = _Sender(stack.url, session, role, tokens[role], target.known, found)
                    _try(operation, sender, each, seed + number)
    return found


def people(stack: Stack) -> dict[str, str]:
    """A user of each role, and a token of each."""
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", _PEOPLE], cwd=ROOT, env=stack.environment(),
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    [line] = [line for line in done.stdout.splitlines() if line.startswith("TOKENS ")]
    tokens: dict[str, str] = json.loads(line.removeprefix("TOKENS "))
    return tokens


def things(stack: Stack) -> dict[str, list[Any]]:
    """What is there, by the path parameter that names it."""
    client = stack.client()
    jobs = [client.submit(["sleep", "300"], gpus=gpus, name=f"fuzz {gpus}").id for gpus in (0, 1, 8)]
    status = httpx.get(f"{stack.url}/api/v1/gpus", headers={"Authorization": f"Bearer {stack.token()}"}).json()
    devices = status["items"]
    return {
        "job_id": jobs, "name": ["default", "other", devices[0]["node"]], "device_id": [d["id"] for d in devices[:2]],
        "rate_id": [1, 2], "token_id": [10**6], "exemption_id": [1],
    }  # fmt: skip


@dataclass
class _Sender:
    url: str
    session: requests.Session
    role: str
    token: str
    known: dict[str, list[Any]]
    found: Found

    def send(self, operation: Operation, case: Any) -> None:
        self._point_at_what_exists(case)
        self.found.requests += 1
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        name = f"{operation.method.upper()} {operation.path}"
        try:
            response = case.call(base_url=self.url, session=self.session, headers=headers, timeout=30)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            self.found.requests -= 1  # no HTTP client can send it
            return
        self.found.statuses[response.status_code] += 1
        try:
            case.validate_response(response, checks=CHECKS)
        except FailureGroup as group:
            for failure in group.exceptions:
                detail = f"as {self.role}: {case.as_curl_command()[:600]}\n{response.status_code} {response.text[:600]}"
                kind = type(failure).__name__
                what = f"{kind} {response.status_code if kind != 'JsonSchemaError' else str(failure)[:200]}"
                self.found.fail(name, what, detail)

    def _point_at_what_exists(self, case: Any) -> None:
        given = case.path_parameters
        if isinstance(given, dict) and self.found.requests % 2:
            for name in set(given) & set(self.known):
                there = self.known[name]
                given[name] = there[self.found.requests // 2 % len(there)]


def _try(operation: Operation, sender: _Sender, each: int, seed: int) -> None:
    for mode, share in _modes(operation, each):
        cases = hypothesis.settings(
            max_examples=share, deadline=None, database=None, phases=[Phase.generate], derandomize=False,
            suppress_health_check=list(HealthCheck),
        )(hypothesis.seed(seed)(hypothesis.given(case=operation.as_strategy(generation_mode=mode))(
            lambda case: sender.send(operation, case)
        )))  # fmt: skip
        try:
            cases()
        except hypothesis.errors.Unsatisfiable:
            continue  # there is nothing to get wrong


def _modes(operation: Operation, each: int) -> Iterator[tuple[GenerationMode, int]]:
    has_input = operation.body or operation.query or operation.path_parameters
    if not has_input:
        yield GenerationMode.POSITIVE, 1
        return
    yield GenerationMode.POSITIVE, max(1, each // 2)
    yield GenerationMode.NEGATIVE, max(1, each - each // 2)


def main() -> None:
    given = arguments(__doc__ or "", requests=10_000, seed=0)
    found, seed = Found(), given.seed
    with Stack(rate_limit_per_minute=0) as stack:
        target = prepare(stack)
        while found.requests < given.requests:
            more = fuzz(target, each=30, seed=seed)
            found.requests += more.requests
            found.statuses += more.statuses
            found.failures = {**more.failures, **found.failures}
            seed += len(ROLES)
    for (operation, what), detail in sorted(found.failures.items()):
        print(f"\n{operation}: {what}\n{detail}")
    figures: dict[str, float | int | str] = {"requests": found.requests, "seed": given.seed}
    figures |= {f"answers {status}": count for status, count in sorted(found.statuses.items())}
    publish(figures, given.json, failures=len(found.failures))


if __name__ == "__main__":
    main()
