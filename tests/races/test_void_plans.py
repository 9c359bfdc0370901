"""Prepared statements whose plan a migration has invalidated (A57)."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from django.db import connection, transaction

from gpusched.lib.db.sql import execute, prepared, retry_atomic
from gpusched.lib.db.views import install_views
from tests.factories import make_member, make_tenant, submit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def table():
    execute("CREATE TABLE void_plans (one integer)")
    execute("INSERT INTO void_plans VALUES (1)")
    yield
    execute("DROP TABLE void_plans")


def change():
    """Alter the table on another connection, like a migration."""
    with ThreadPoolExecutor(1) as other:
        other.submit(_alter).result()


def _alter():
    execute("ALTER TABLE void_plans ADD COLUMN two integer DEFAULT 2")
    connection.close()


def test_statement_is_planned_again_on_another_connection():
    for _ in range(2):
        assert prepared("SELECT * FROM void_plans") == [{"one": 1}]
    change()
    for _ in range(2):
        assert prepared("SELECT * FROM void_plans") == [{"one": 1, "two": 2}]


def test_transaction_is_retried_with_a_new_plan():
    assert prepared("SELECT * FROM void_plans") == [{"one": 1}]
    change()
    times = []

    def work():
        times.append(1)
        execute("INSERT INTO void_plans VALUES (2)")
        return len(prepared("SELECT * FROM void_plans"))

    assert retry_atomic(work) == 2, "the rollback undid the first try"
    assert len(times) == 2


def test_transaction_that_is_not_repeated_uses_no_void_plan():
    assert prepared("SELECT * FROM void_plans") == [{"one": 1}]
    change()
    with transaction.atomic():
        execute("INSERT INTO void_plans VALUES (2)")
        assert len(prepared("SELECT * FROM void_plans")) == 2
    assert len(prepared("SELECT * FROM void_plans")) == 2


def test_repeated_work_within_another_transaction_uses_no_void_plan():
    assert prepared("SELECT * FROM void_plans") == [{"one": 1}]
    change()
    with transaction.atomic():
        assert retry_atomic(lambda: prepared("SELECT * FROM void_plans")) == [{"one": 1, "two": 2}]


def test_work_within_a_repeated_transaction_is_repeated_with_it():
    assert prepared("SELECT * FROM void_plans") == [{"one": 1}]
    change()
    assert retry_atomic(lambda: retry_atomic(lambda: prepared("SELECT * FROM void_plans"))) == [{"one": 1, "two": 2}]


def test_submit_near_a_limit_is_accepted_after_a_migration_of_its_tables(settings):
    """A57."""
    settings.ENV = replace(settings.ENV, max_queued_jobs_per_user=5)
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    submit(user, tenant)
    ThreadPoolExecutor(1).submit(_widen, "bigint").result()
    try:
        submit(user, tenant)
    finally:
        ThreadPoolExecutor(1).submit(_widen, "integer").result()


def _widen(kind):
    with transaction.atomic():
        execute("DROP VIEW tenants_quotas")
        execute(f"ALTER TABLE tenants_quota ALTER COLUMN max_queued_jobs TYPE {kind}")
        install_views()
    connection.close()
