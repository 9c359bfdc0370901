"""Sends requests that the OpenAPI document allows or forbids to a running server as each role (schemathesis).

No answer may be a 5xx, have an undocumented status or content type, or violate its schema."""

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

from tests.system.stack import ROOT, Stack

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
class FuzzResult:
    """The results of the requests so far."""

    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def fail(self, operation: str, problem: str, detail: str) -> None:
        self.failures.setdefault((operation, problem), detail)


@dataclass
class Target:
    """A server with a user of each role. `resource_ids`: path parameter → existing values."""

    stack: Stack
    tokens: dict[str, str]
    resource_ids: dict[str, list[Any]]


def prepare(stack: Stack) -> Target:
    stack.fleet(2)
    return Target(stack, {"anonymous": "", **people(stack)}, resource_ids(stack))


def fuzz(
    target: Target, each: int, roles: Sequence[str] = ROLES, seed: int = 0, only: str = "", part: slice = slice(None)
) -> FuzzResult:
    """Send about `each` requests for each operation and role. The same seed sends the same requests. `part`: of the
    operations."""
    stack, tokens = target.stack, target.tokens
    document = httpx.get(f"{stack.url}/api/v1/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    # An invalid operation has no ok(): the run fails.
    operations: list[Operation] = [entry.ok() for entry in schema.get_all_operations()]  # type: ignore[union-attr]
    total = FuzzResult()
    for number, role in enumerate(roles):
        with requests.Session() as session:
            for operation in operations[part]:
                if only in f"{operation.method.upper()} {operation.path}":
                    sender = _Sender(stack.url, session, role, tokens[role], target.resource_ids, total)
                    _try(operation, sender, each, seed + number)
    return total


def people(stack: Stack) -> dict[str, str]:
    """Create a user of each role; return a token of each."""
    result = subprocess.run(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", _PEOPLE], cwd=ROOT, env=stack.environment(),
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    [line] = [line for line in result.stdout.splitlines() if line.startswith("TOKENS ")]
    tokens: dict[str, str] = json.loads(line.removeprefix("TOKENS "))
    return tokens


def resource_ids(stack: Stack) -> dict[str, list[Any]]:
    """Return the existing resources by the path parameter that names them."""
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
    resource_ids: dict[str, list[Any]]
    result: FuzzResult

    def send(self, operation: Operation, case: Any) -> None:
        self._use_existing_resources(case)
        self.result.requests += 1
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        name = f"{operation.method.upper()} {operation.path}"
        try:
            response = case.call(base_url=self.url, session=self.session, headers=headers, timeout=30)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            self.result.requests -= 1  # no HTTP client can send it
            return
        self.result.statuses[response.status_code] += 1
        try:
            case.validate_response(response, checks=CHECKS)
        except FailureGroup as group:
            for failure in group.exceptions:
                detail = f"as {self.role}: {case.as_curl_command()[:600]}\n{response.status_code} {response.text[:600]}"
                kind = type(failure).__name__
                problem = f"{kind} {response.status_code if kind != 'JsonSchemaError' else str(failure)[:200]}"
                self.result.fail(name, problem, detail)

    def _use_existing_resources(self, case: Any) -> None:
        parameters = case.path_parameters
        if isinstance(parameters, dict) and self.result.requests % 2:
            for name in set(parameters) & set(self.resource_ids):
                existing = self.resource_ids[name]
                parameters[name] = existing[self.result.requests // 2 % len(existing)]


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
            continue  # no invalid request exists


def _modes(operation: Operation, each: int) -> Iterator[tuple[GenerationMode, int]]:
    has_input = operation.body or operation.query or operation.path_parameters
    if not has_input:
        yield GenerationMode.POSITIVE, 1
        return
    yield GenerationMode.POSITIVE, max(1, each // 2)
    yield GenerationMode.NEGATIVE, max(1, each - each // 2)
