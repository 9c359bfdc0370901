"""Weights have bounds: sums of them divide what all tenants share."""

import json

import pytest
from django.db import IntegrityError
from django.test import Client

from gpusched.lib.db.sql import execute
from scheduling.status import cluster
from tenants.models import MAX_WEIGHT, Tenant
from tests.factories import make_tenant, make_token, make_user, run_cycle

pytestmark = pytest.mark.django_db(transaction=True)


def patch(tenant: Tenant, weight: float) -> "tuple[int, dict[str, object]]":
    answer = Client().patch(
        f"/api/v1/tenants/{tenant.name}",
        json.dumps({"weight": weight}),
        content_type="application/json",
        headers={"Authorization": f"Bearer {make_token(make_user(admin=True))}"},
    )
    return answer.status_code, answer.json()


@pytest.mark.parametrize("weight", [1e308, MAX_WEIGHT * 1.001, 0.0009, 0, -1])
def test_weight_out_of_bounds_is_rejected_by_name(weight: float) -> None:
    tenant = make_tenant()
    status, errors = patch(tenant, weight)
    assert (status, errors["errors"][0]["field"]) == (400, "weight")  # type: ignore[index]
    tenant.refresh_from_db()
    assert tenant.weight == 1.0


def test_largest_weights_still_divide_the_cluster() -> None:
    for tenant in (make_tenant(), make_tenant()):
        assert patch(tenant, MAX_WEIGHT)[0] == 200
    run_cycle()
    assert {share["weight"] for share in cluster.shares()} == {MAX_WEIGHT}
    with pytest.raises(IntegrityError):
        execute("UPDATE tenants_tenant SET weight = 1e308")
