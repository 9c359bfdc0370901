"""New views while requests read the old ones (A57)."""

import threading

import psycopg
import pytest
from django.db import OperationalError, connection

from gpusched.lib.db import views
from gpusched.lib.db.sql import execute, query
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)
_WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"


@pytest.fixture
def names():
    """The names of all views, those of the lowest app first; the next `install_views` finds that they differ."""
    found = [row["relname"] for row in query("SELECT relname FROM pg_class WHERE relkind = 'v' AND"
                                             " obj_description(oid) IS NOT NULL ORDER BY oid")]  # fmt: skip
    execute(f"COMMENT ON VIEW {found[0]} IS 'older'")
    yield found
    views.install_views()


def reader():
    return psycopg.connect(**connection.get_connection_params())


def install(outcome):
    try:
        views.install_views()
    except OperationalError as error:
        outcome.append(error)
    finally:
        connection.close()


def test_reader_that_waits_for_new_views_is_never_the_victim_of_a_deadlock(names):
    """It holds a view and waits for one that is dropped already. As it waited first, PostgreSQL would end it, not the
    migration."""
    outcome: list[OperationalError] = []
    with reader() as requester, reader() as other:
        other.execute(f"LOCK TABLE {names[1]} IN ACCESS SHARE MODE")
        requester.execute(f"LOCK TABLE {names[0]} IN ACCESS SHARE MODE")
        installing = threading.Thread(target=install, args=[outcome])
        installing.start()
        wait_for(lambda: query(_WAITING, ["DROP VIEW%"]), 10, "the migration to wait for a view")
        requesting = threading.Thread(target=requester.execute, args=[f"SELECT count(*) FROM {names[-1]}"])
        requesting.start()
        wait_for(lambda: query(_WAITING, ["SELECT count%"]) or not requesting.is_alive(), 10, "the request to wait")
        other.commit()
        installing.join(10)
        requesting.join(10)
        assert requester.execute("SELECT 2").fetchone() == (2,), "its transaction was not ended"
    assert len(outcome) == 1, "the migration gave up, and its command tries again"


def test_views_that_a_killed_migration_left_out_are_noticed(names):
    assert not views.are_current()
    views.install_views()
    assert views.are_current()
