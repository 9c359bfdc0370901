"""Callers of the OpenAI API that lose the right to an endpoint while their requests wait or are answered."""

import asyncio

import pytest
from django.http import HttpResponse

from gpusched.lib.db.sql import execute
from gpusched.lib.web.deferred import DeferredResponse
from serving.models import InferenceRequest
from serving.openai import upkeep
from serving.web import openai
from tests.factories import make_user
from tests.serving.test_openai_api import ask, create, lease, tenant, token  # noqa: F401 fixtures

pytestmark = pytest.mark.django_db
CHANGES = {
    "revoked token": "UPDATE tenants_apitoken SET revoked_at = now()",
    "disabled user": "UPDATE auth_user SET is_active = false",
    "left tenant": "DELETE FROM tenants_membership",
    "lowered role": "UPDATE tenants_membership SET role = 'viewer'",
    "users of the endpoint": """UPDATE serving_endpoint SET allowed_users = '{}', owner_id = u.id
                                  FROM auth_user u WHERE u.username = 'eve'""",
}


@pytest.fixture
def sent(monkeypatch):
    """Collect what reaches the proxy."""
    forwarded = []

    async def forward(request):
        forwarded.append(request)
        return HttpResponse()

    monkeypatch.setattr(openai.proxy, "forward", forward)
    return forwarded


def keep_up(token, lease, sent):  # noqa: F811
    """Send a request; return a function that runs the upkeep and returns the request's state and error code."""
    create(token)
    make_user("eve")
    answer = ask(token)
    assert isinstance(answer, DeferredResponse)
    asyncio.run(answer.resolve())
    [request] = sent

    def run():
        upkeep.keep_up(lease, [], [request.request_id], {request.request_id: request.credential}, [], [])
        row = InferenceRequest.objects.get()
        return row.state, row.error_code

    return run


@pytest.mark.parametrize("state", ["queued", "running"])
@pytest.mark.parametrize("change", CHANGES)
def test_request_ends_with_the_right_of_its_caller(token, lease, sent, change, state):  # noqa: F811
    """A69: also a response that streams, which the web process ends as for a cancelled task."""
    run = keep_up(token, lease, sent)
    InferenceRequest.objects.update(state=state)
    assert run() == (state, "")
    execute(CHANGES[change])
    assert run() == ("cancelled", "not_permitted")
