"""Texts of tenants that PostgreSQL cannot keep are refused by name (A55)."""

import pytest

from gpusched.lib.api.problems import Problem
from tenants.tenancy import tenants
from tests.factories import make_tenant

pytestmark = pytest.mark.django_db


def test_nul_character_is_rejected_by_the_name_of_its_field():
    with pytest.raises(Problem) as refused:
        tenants.change_tenant(make_tenant("nlp"), {"display_name": "a\x00b"}, actor="test")
    assert (refused.value.status, refused.value.errors[0].field) == (400, "display_name")
