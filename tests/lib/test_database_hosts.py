"""Several database hosts in one URL: the connection goes to the server that accepts writes, also after a failover."""

import shutil
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import psycopg
import pytest
from django.db import OperationalError
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.utils import ConnectionHandler, InternalError
from pytest_django import DjangoDbBlocker

from gpusched.agent.processes import descendants, signal_all
from gpusched.lib.db.connections import django_database
from gpusched.lib.db.embedded import FAST, Server
from gpusched.lib.db.hosts import Hosts
from gpusched.lib.db.locks import Lock
from gpusched.lib.db.outages import is_outage
from gpusched.lib.process import backups
from tests.system.standby import start_pair


@pytest.fixture
def pair(django_db_blocker: DjangoDbBlocker) -> Iterator[tuple[Server, Server]]:
    """A primary and a standby that follows it."""
    # In a folder that PostgreSQL's user can enter, no data is under /var/lib.
    folder = Path(tempfile.mkdtemp(prefix="gpusched-hosts-", dir="/tmp"))
    folder.chmod(0o755)
    primary = Server(folder / "primary", FAST)
    try:
        primary.start()
        primary.stop()
        standby = start_pair(primary, folder / "standby")
        try:
            with django_db_blocker.unblock():  # these are not the database of the tests
                yield primary, standby
        finally:
            standby.remove()
    finally:
        primary.remove()
        shutil.rmtree(folder)


def url_of(*servers: Server) -> str:
    hosts = ",".join(quote(str(server._sockets()), safe="/") for server in servers)
    return f"{servers[0].url().split('?')[0]}?host={hosts}"


def connect_to(*servers: Server) -> DatabaseWrapper:
    """Return Django's connection to the primary of these servers."""
    connection = ConnectionHandler({"default": django_database(url_of(*servers))})["default"]
    assert isinstance(connection, DatabaseWrapper)
    return connection


def write(connection: DatabaseWrapper) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS written (id int)")
        cursor.execute("INSERT INTO written VALUES (1)")


def write_until_refused(connection: DatabaseWrapper) -> None:
    for _ in range(1000):  # the server reads its settings between statements
        write(connection)


def test_connection_skips_a_standby_and_follows_a_promotion(pair: tuple[Server, Server]) -> None:
    primary, standby = pair
    connection = connect_to(standby, primary)
    try:
        write(connection)
        primary.stop()
        with pytest.raises(OperationalError):
            write(connection)
        connection.close_if_unusable_or_obsolete()
        with psycopg.connect(standby.url(), autocommit=True) as other:
            other.execute("SELECT pg_promote()")
        write(connection)
    finally:
        connection.close()


def test_connection_to_a_server_that_became_read_only_is_an_outage_and_is_replaced(pair: tuple[Server, Server]) -> None:
    """As after a switchover: the old primary still answers, and refuses writes."""
    primary, standby = pair
    connection = connect_to(primary, standby)
    try:
        write(connection)
        with psycopg.connect(primary.url(), autocommit=True) as other:
            other.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            other.execute("SELECT pg_reload_conf()")
        with psycopg.connect(standby.url(), autocommit=True) as other:
            other.execute("SELECT pg_promote()")
        with pytest.raises(InternalError) as refused:
            write_until_refused(connection)
        assert is_outage(refused.value)
        connection.close_if_unusable_or_obsolete()  # as at the start of a request
        write(connection)
        with connection.cursor() as cursor:
            cursor.execute("SELECT inet_server_port(), current_setting('data_directory')")
            assert cursor.fetchone()[1] == str(standby.data)
    finally:
        connection.close()


def test_backup_and_restore_find_the_server_that_accepts_writes(pair: tuple[Server, Server], tmp_path: Path) -> None:
    """The first host of the address may be a standby, since a failover: a restore could not write there, and did not
    notice that gpusched runs with the other one."""
    primary, standby = pair
    url = url_of(standby, primary)
    with psycopg.connect(primary.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE person (id int PRIMARY KEY)")
        file = backups.back_up(tmp_path, url, "key", tmp_path, datetime(2026, 1, 1, tzinfo=UTC))
        connection.execute("INSERT INTO person VALUES (1)")
        connection.execute("SELECT pg_advisory_lock(%s)", [Lock.LEADER])
        with pytest.raises(backups.BackupError, match="gpusched is running: a worker"):
            backups.restore(file, tmp_path, url, lambda url: "SELECT 0")
        connection.execute("SELECT pg_advisory_unlock(%s)", [Lock.LEADER])
        assert backups.restore(file, tmp_path, url, lambda url: "SELECT 0") == 0
        assert connection.execute("SELECT id FROM person").fetchall() == []


def test_next_connection_begins_with_the_host_of_the_latest_one(pair: tuple[Server, Server]) -> None:
    """Else a host that is lost without a word would cost each connection its connect timeout."""
    primary, standby = pair
    connection = connect_to(standby, primary)
    try:
        write(connection)
        assert connection.get_connection_params()["host"] == f"{primary._sockets()},{standby._sockets()}"
    finally:
        connection.close()


def test_statement_on_a_stopped_primary_ends_when_a_standby_is_promoted(pair: tuple[Server, Server]) -> None:
    """The kernel of a host whose PostgreSQL is stopped still acknowledges: no timeout of TCP ends the statement."""
    primary, standby = pair
    connection = connect_to(primary, standby)
    connection.inc_thread_sharing()
    write(connection)
    postmaster = int((primary.data / "postmaster.pid").read_text().split()[0])
    stopped = [postmaster, *descendants(postmaster)]
    signal_all(stopped, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(write, connection)
            with pytest.raises(TimeoutError):
                waiting.result(4)
            with psycopg.connect(standby.url(), autocommit=True) as other:
                other.execute("SELECT pg_promote()")
            with pytest.raises(OperationalError) as dropped:
                waiting.result(15)
        assert is_outage(dropped.value)
        connection.close_if_unusable_or_obsolete()
        write(connection)
    finally:
        connection.close()
        signal_all(stopped, signal.SIGCONT)


def test_slow_statement_survives_the_search_for_another_primary(pair: tuple[Server, Server]) -> None:
    primary, standby = pair
    connection = connect_to(standby, primary)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(4), 1")
            assert cursor.fetchone()[1] == 1
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("host", "port", "ordered"),
    [
        ("a,b,c", "", ("c,a,b", "5432,5432,5432")),
        ("a,b,c", "1", ("a,b,c", "1,1,1")),
        ("a,c,c", "1,2,5432", ("c,a,c", "5432,1,2")),
        ("c", "", ("c", "")),
    ],
)
def test_order_keeps_each_port_with_its_host(host: str, port: str, ordered: tuple[str, str]) -> None:
    hosts = Hosts()
    connection = cast(psycopg.Connection[Any], SimpleNamespace(info=SimpleNamespace(host="c", port=5432)))
    hosts.note(connection, {"host": "c"})
    parameters = hosts.ordered({"host": host, "port": port})
    assert (parameters["host"], parameters["port"]) == ordered


def test_host_that_failed_comes_last_until_it_accepts_a_connection() -> None:
    hosts = Hosts()
    connection = cast(psycopg.Connection[Any], SimpleNamespace(info=SimpleNamespace(host="a", port=5432)))
    hosts.note(connection, {"host": "a"})
    hosts.note_failure()
    assert hosts.ordered({"host": "a,b,c"})["host"] == "b,c,a"
    hosts.note_failure()
    assert hosts.ordered({"host": "a,b,c"})["host"] == "b,c,a"
    hosts.note(connection, {"host": "a"})
    assert hosts.ordered({"host": "a,b,c"})["host"] == "a,b,c"


def test_url_with_several_hosts_asks_for_the_primary() -> None:
    entry = django_database("postgresql://gpusched:p%40ss@h1:5432,h2:5433/db?sslmode=verify-full&sslrootcert=/ca.pem")
    assert (entry["HOST"], entry["PORT"], entry["NAME"], entry["PASSWORD"]) == ("h1,h2", "5432,5433", "db", "p@ss")
    assert entry["OPTIONS"]["target_session_attrs"] == "read-write"
    assert entry["OPTIONS"]["sslrootcert"] == "/ca.pem"
    own = django_database("postgresql://h1,h2/db?target_session_attrs=any")
    assert own["OPTIONS"]["target_session_attrs"] == "any"
    assert "target_session_attrs" not in django_database("postgresql://h1/db")["OPTIONS"]


@pytest.mark.parametrize(
    "url", ["mysql://h/db", "postgresql://u:secret@[::1/db", "postgresql://u:secret@h/d?nothing=1"]
)
def test_invalid_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="DATABASE_URL") as refused:
        django_database(url)
    assert "secret" not in str(refused.value)
