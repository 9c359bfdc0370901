"""The present use of tenants, read for many of them at once."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gpusched.lib.db.sql import execute, query
from tenants.api.tenants import represent_tenants
from tenants.models import Tenant
from tests.factories import make_member, make_node, make_tenant, run_cycle, submit

pytestmark = pytest.mark.django_db


def blocks_read() -> int:
    """The blocks of tables and indexes that PostgreSQL reads to represent all tenants."""
    with CaptureQueriesContext(connection) as sent:
        represent_tenants(None)
    [statement] = [row["sql"] for row in sent.captured_queries if "pending_jobs" in row["sql"]]
    [row] = query(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}")
    plan: dict[str, Any] = row["QUERY PLAN"][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_use_of_all_tenants_is_read_once_not_for_each():
    tenant, other = make_tenant("busy"), make_tenant("other")
    user, lin = make_member(tenant), make_member(other)
    for number in range(6):
        make_node(gpus=8, name=f"n{number}")
    for _ in range(40):
        submit(user, tenant)
    submit(lin, other, gpu_count=8, cpu_cores=2.5)
    run_cycle()
    submit(lin, other, gpu_count=8)
    execute("ANALYZE")
    of_two = blocks_read()
    Tenant.objects.bulk_create(Tenant(name=f"idle-{number}") for number in range(200))
    execute("ANALYZE")
    assert blocks_read() < 2 * of_two
    found = {
        row["name"]: (row["in_use"]["gpus"], row["in_use"]["jobs"], row["pending_jobs"])
        for row in represent_tenants(None)
    }
    assert (found["busy"], found["other"]) == ((40, 40, 0), (8, 1, 1))
    assert set(found.values()) == {(40, 40, 0), (8, 1, 1), (0, 0, 0)}
