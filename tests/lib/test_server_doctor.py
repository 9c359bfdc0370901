"""The checks of `gpusched-server doctor`: each one notices its fault, and is silent without it."""

import json
import re
import socket
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import InMemoryStorage
from django.core.management import call_command
from django.db import OperationalError, ProgrammingError, connection

from gpusched.env import Env
from gpusched.lib.db.sql import execute, query
from gpusched.management import server_doctor as doctor
from gpusched.protocol.findings import Finding
from nodes.models import Node
from tenants.models import ApiToken
from tests.factories import make_node, make_token, make_user
from tests.races.elsewhere import Elsewhere, wait_until_blocked

EVERY = "0.0.0.0"  # noqa: S104
NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
PROXIED = Env(trusted_proxies="127.0.0.1", behind_tls=True)
HEALTHY = {
    "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "max_connections": "100",
    "idle_session_timeout": "0", "idle_in_transaction_session_timeout": "0", "statement_timeout": "0",
    "lock_timeout": "0", "server_version_num": "160009",
}  # fmt: skip


RELEASED = threading.Event()


class HangingStorage(InMemoryStorage):
    def save(self, *args: Any, **options: Any) -> str:
        RELEASED.wait(60)
        return super().save(*args, **options)


def levels(findings: Any) -> dict[str, str]:
    return {finding.check: finding.level for finding in findings}


@pytest.mark.parametrize(
    ("env", "addresses", "level"),
    [
        (Env(), ["127.0.0.1", "::1"], "ok"),
        (Env(), [EVERY], "fail"),
        (Env(), ["127.0.0.1", "10.0.0.7"], "fail"),
        (Env(http_host=EVERY), [], "fail"),
        (PROXIED, [EVERY], "warn"),
        (PROXIED, ["127.0.0.1"], "ok"),
    ],
)
def test_port_without_tls_is_noticed(env: Env, addresses: list[str], level: str) -> None:
    assert levels(doctor.check_tls(env, addresses)) == {"tls": level}


def test_listening_addresses_are_those_of_the_kernel() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as local,
        socket.create_server(("::", 0), family=socket.AF_INET6) as any_,
    ):
        assert doctor.listening(local.getsockname()[1]) == ["127.0.0.1"]
        assert doctor.listening(any_.getsockname()[1]) == ["::"]


@pytest.mark.parametrize(("free", "level"), [(30, "ok"), (9, "warn"), (1, "fail")])
def test_scarce_disk_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, level: str) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: (100 << 30, 0, free << 30))
    [finding] = doctor.check_disk(tmp_path)
    assert (finding.level, bool(finding.next_step)) == (level, level != "ok")
    assert f"{free}.0 GiB" in finding.says


@pytest.mark.django_db
def test_missing_directory_of_files_is_noticed(tmp_path: Path) -> None:
    """Such as one whose network share is not mounted."""
    findings = doctor.examine(Env(files_dir=str(tmp_path / "no such share")), tmp_path, NOW)
    assert [finding.level for finding in findings if finding.check == "disk"][-1] == "fail"


@pytest.mark.parametrize(
    ("backend", "level", "says"),
    [
        ("django.core.files.storage.InMemoryStorage", "ok", "stores, reads and deletes"),
        ("tests.jobs.test_storage_outage.FailingStorage", "fail", "cannot store, read and delete: Away"),
        ("tests.lib.test_server_doctor.HangingStorage", "fail", "has not answered in 0.2 s"),
        ("no.such.Storage", "fail", "Could not find backend 'no.such.Storage'"),
    ],
)
def test_storage_that_does_not_work_is_noticed(
    settings: Any, monkeypatch: pytest.MonkeyPatch, backend: str, level: str, says: str
) -> None:
    RELEASED.clear()
    monkeypatch.setattr(doctor, "STORAGE_SECONDS", 0.2 if "Hanging" in backend else 20.0)
    settings.STORAGES = {**settings.STORAGES, "logs": {"BACKEND": backend}}
    [found] = doctor.check_storage("its class")
    assert found.level == level and says in found.says, found.says
    RELEASED.set()


def test_kernel_without_ipv6_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no table of such sockets."""
    monkeypatch.setattr(doctor, "Path", lambda name: Path(name.replace("tcp6", "no_such_table")))
    with socket.create_server(("127.0.0.1", 0)) as local:
        assert doctor.listening(local.getsockname()[1]) == ["127.0.0.1"]


def test_head_that_cannot_be_asked_is_noticed() -> None:
    urls = ("http://10.0.0.5:8000", "http://10.0.0.6:8000")
    assert [finding.level for finding in doctor.check_heads(urls, [])] == ["ok"]
    assert [finding.level for finding in doctor.check_heads(urls, [f"{urls[0]}: it has another secret key"])] == [
        "warn"
    ]
    assert list(doctor.check_heads((), [])) == []


@pytest.mark.parametrize(("days", "level"), [(1, "ok"), (3, "warn"), (15, "fail"), (-365, "warn")])
def test_old_backup_is_noticed(days: int, level: str) -> None:
    last = (NOW - timedelta(days=days), Path("x.tar"))
    assert levels(doctor.check_backup(last, NOW)) == {"backup": level}
    assert levels(doctor.check_backup(None, NOW)) == {"backup": "warn"}


@pytest.mark.parametrize(("seconds", "level"), [(0.1, "ok"), (-5, "warn"), (90, "fail")])
def test_clock_that_differs_is_noticed(seconds: float, level: str) -> None:
    findings = doctor.check_clocks(seconds, {"n1": 0.2, "n2": None})
    assert levels(findings) == {"clock": level, "node_clocks": "ok"}
    [_, nodes] = doctor.check_clocks(0, {"n1": 0.2, "n2": seconds})
    assert (nodes.level, "n2" in nodes.says) == (level, level != "ok")


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("fsync", "off", "fail"), ("full_page_writes", "off", "fail"), ("synchronous_commit", "off", "fail"),
        ("max_connections", "30", "fail"), ("idle_session_timeout", "60000", "warn"),
        ("idle_in_transaction_session_timeout", "5000", "warn"), ("statement_timeout", "200", "warn"),
        ("lock_timeout", "200", "warn"),
    ],
)  # fmt: skip
def test_setting_of_the_database_is_noticed(name: str, value: str, level: str) -> None:
    assert set(levels(doctor.check_database(HEALTHY, Env())).values()) == {"ok"}
    found = levels(doctor.check_database({**HEALTHY, name: value}, Env()))
    assert {check for check, value in found.items() if value != "ok"} == {name} and found[name] == level


@pytest.mark.django_db
def test_old_and_unused_tokens_are_noticed() -> None:
    """Valid ones only: a revoked or expired token can do nothing."""
    user = make_user("ada")
    for name, created, used, more in (
        ("new", 10, None, {}), ("used", 200, 1, {}), ("unused", 100, None, {}), ("old", 400, 1, {}),
        ("revoked", 400, None, {"revoked_at": NOW}), ("expired", 400, None, {"expires_at": NOW - timedelta(days=1)}),
    ):  # fmt: skip
        make_token(user)
        token = ApiToken.objects.latest("pk")
        used_at = None if used is None else NOW - timedelta(days=used)
        ApiToken.objects.filter(pk=token.pk).update(
            name=name, created_at=NOW - timedelta(days=created), last_used_at=used_at, **more
        )
    tokens = doctor._tokens(NOW)
    assert [token.split("(")[1] for token in tokens] == ["old)", "unused)"]
    assert levels(doctor.check_tokens(tokens)) == {"tokens": "warn"}
    assert levels(doctor.check_tokens([])) == {"tokens": "ok"}


@pytest.mark.django_db
def test_old_credentials_of_agents_are_noticed() -> None:
    for name, joined, issued, asked in (
        ("new", 10, None, None), ("replaced", 400, 30, None), ("old", 400, None, None), ("older", 900, 401, None),
        ("slow", 30, None, 2), ("asked", 30, None, 0),
    ):  # fmt: skip
        agent = make_node(name=name, gpus=1)
        days_ago = [None if days is None else NOW - timedelta(days=days) for days in (joined, issued, asked)]
        fields = dict(zip(("joined_at", "credential_at", "rotation_asked_at"), days_ago, strict=True))
        Node.objects.filter(pk=agent.id).update(**fields)
    removed = make_node(name="removed", gpus=1)
    Node.objects.filter(pk=removed.id).update(credential_at=NOW - timedelta(days=900), removed_at=NOW)
    old, waiting = doctor._agents(NOW)
    assert (old, waiting) == (["older", "old"], ["slow"])
    assert [finding.level for finding in doctor.check_agents(old, waiting)] == ["warn", "warn"]
    assert levels(doctor.check_agents([], [])) == {"agents": "ok"}


@pytest.mark.django_db
def test_doctor_reports_each_check_and_fails_if_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    """The tests' own database has fsync off."""
    with pytest.raises(SystemExit) as end:
        call_command("doctor", "--json")
    assert end.value.code == 1
    found = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert {"tls", "backup", "tokens", "agents", "clock", "node_clocks", "max_connections"} <= set(found)
    assert found["fsync"]["level"] == "fail" and "ALTER SYSTEM" in found["fsync"]["next_step"]


@pytest.mark.django_db(transaction=True)
def test_transaction_that_keeps_others_waiting_or_is_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a SELECT … FOR UPDATE in a forgotten psql: the cycles wait for it, and no log tells why."""
    lock = partial(query, "SELECT 1 FROM auth_user WHERE id = %s FOR UPDATE", [make_user("locked").pk])

    def found() -> Finding:
        rows = query(doctor._OPEN_TRANSACTIONS, [doctor.BLOCKED_SECONDS, doctor.OPEN_SECONDS])
        [finding] = doctor.check_transactions(rows)
        return finding

    assert found().level == "ok"
    holder = Elsewhere(lock)
    assert holder.is_done.wait(20)
    assert found().level == "ok", "it is short"
    monkeypatch.setattr(doctor, "OPEN_SECONDS", 0.0)
    assert found().level == "warn" and "has had one open" in found().says
    waiting = Elsewhere(lock)
    wait_until_blocked(waiting)
    monkeypatch.setattr(doctor, "BLOCKED_SECONDS", 0.0)
    finding = found()
    assert finding.level == "fail" and "has kept 1 other waiting" in finding.says
    query(finding.next_step.partition("end it: ")[2])
    waiting.commit()
    with pytest.raises(OperationalError):
        holder.commit()
    assert found().level == "ok"


@pytest.mark.django_db(transaction=True)
def test_locked_table_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command waited for it without a word."""
    monkeypatch.setattr(doctor, "LOCK_SECONDS", 0.2)
    holder = Elsewhere(lambda: execute("LOCK TABLE nodes_node IN ACCESS EXCLUSIVE MODE"))
    assert holder.is_done.wait(20)
    found = doctor.examine(Env(), tmp_path, NOW)
    holder.commit()
    assert (found[-1].check, found[-1].level) == ("database", "fail") and "tables are locked" in found[-1].says
    assert "node_clocks" in levels(doctor.examine(Env(), tmp_path, NOW))


def test_doctor_without_database_reports_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(connection, "cursor", refuse)
    for url, words in (("postgresql://db/x", "connection refused"), ("", f"no server has used .* {tmp_path}")):
        monkeypatch.setattr(doctor, "database_url", partial(str, url))
        [found] = [one for one in doctor.examine(Env(), tmp_path, NOW) if one.check == "database"]
        assert found.level == "fail" and re.search(words, found.says)


def test_tables_of_another_version_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As after an upgrade of the programs alone, or with a database that is still empty."""

    def refuse(*_: object) -> None:
        raise ProgrammingError("column tenants_apitoken.used_at does not exist\nLINE 1: …")

    monkeypatch.setattr(connection, "cursor", refuse)
    [found] = [one for one in doctor.examine(Env(), tmp_path, NOW) if one.check == "database"]
    assert found.level == "fail" and found.says.endswith("used_at does not exist") and "migrate" in found.next_step


def test_pool_without_a_free_connection_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It was reported as a database that does not run. PgBouncer's default is less than this server needs."""

    def refuse() -> None:
        raise OperationalError("query_wait_timeout")

    monkeypatch.setattr(connection, "cursor", refuse)
    monkeypatch.setattr(doctor, "database_url", lambda: "postgresql://db/x")
    [found] = [one for one in doctor.examine(Env(), tmp_path, NOW) if one.check == "database"]
    assert found.level == "fail" and "PgBouncer" in found.says and "default_pool_size to 36" in found.next_step


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"at": "2026-01-01T00:00:00", "file": "x"}'])
def test_damaged_record_of_a_backup_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "last_backup.json").write_text(text)
    [found] = doctor.check_last_backup(tmp_path, NOW)
    assert found.level == "warn" and f"in {tmp_path} is damaged" in found.says


def test_record_that_another_user_wrote_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Root's record of a backup, and the doctor as the user of the units: it ended with a traceback."""
    record = tmp_path / "last_backup.json"

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(record))

    monkeypatch.setattr(doctor, "last_backup", refuse)
    [found] = doctor.check_last_backup(tmp_path, NOW)
    assert found.level == "warn" and str(record) in found.says and "chown" in found.next_step
