"""The Unix user of a tenant's jobs: set by an admin, sent to the node with each rank."""

import json

import pytest
from django.test import Client

from gpusched.protocol.agent_messages import Run
from tenants.models import Tenant
from tests.factories import make_member, make_node, make_tenant, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def patch(tenant: Tenant, token: str, unix_user: str) -> int:
    answer = Client().patch(
        f"/api/v1/tenants/{tenant.name}",
        json.dumps({"unix_user": unix_user}),
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    return answer.status_code


def test_admin_sets_the_unix_user_and_nodes_get_it() -> None:
    tenant, node = make_tenant(), make_node()
    user = make_member(tenant)
    assert patch(tenant, make_token(make_user(admin=True)), "alice") == 200
    submit(user, tenant)
    run_cycle()
    [order] = node.sync().assignments
    assert isinstance(order, Run) and order.spec.user == "alice"


def test_other_users_cannot_set_the_unix_user() -> None:
    tenant = make_tenant()
    assert patch(tenant, make_token(make_member(tenant)), "alice") == 403
    tenant.refresh_from_db()
    assert tenant.unix_user == ""


@pytest.mark.parametrize("name", ["-rf", "1000", "a b", "a:b", "a\nb", "a/../b", "x" * 65, "ädmin"])
def test_invalid_unix_user_is_rejected(name: str) -> None:
    assert patch(make_tenant(), make_token(make_user(admin=True)), name) == 400
