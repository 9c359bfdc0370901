"""Migrations while the system works (A57): what waits for a table lets others go on, and no request fails."""

import json
import subprocess
import sys
import threading
from functools import partial
from typing import IO
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from tests.system.stack import ROOT, Stack
from tests.waiting import wait_for

pytestmark = pytest.mark.e2e
# Applies one migration after the other, and says which rewrite a table that was there, or build an index of one.
_STEPS = """
import json
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

def look():
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname, relfilenode FROM pg_class WHERE relkind = 'r'")
        tables = dict(cursor.fetchall())
        cursor.execute("SELECT i.indexrelid::regclass::text, t.relname FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid")
        return tables, dict(cursor.fetchall())

executor = MigrationExecutor(connection)
executor.recorder.ensure_schema()
state = executor._create_project_state(with_applied_migrations=True)
found, offline = {}, {}
for migration, _ in executor.migration_plan(executor.loader.graph.leaf_nodes()):
    (tables, indexes), name = look(), f"{migration.app_label}.{migration.name}"
    state = executor.apply_migration(state, migration)
    if migration.app_label not in ("jobs", "nodes", "tenants", "scheduling", "lib"):
        continue
    now, built = look()
    rewritten = {name for name in tables.keys() & now.keys() if tables[name] != now[name]}
    indexed = {built[one] for one in built.keys() - indexes.keys() if built[one] in tables} if migration.atomic else set()
    if rewritten or indexed:
        found[name] = sorted(rewritten | indexed)
    if why := getattr(migration, "offline", ""):
        offline[name] = why
print("FOUND " + json.dumps([found, offline]))
"""


class Submits:
    """Four threads that submit until they are told to stop."""

    def __init__(self, up: Stack) -> None:
        self.statuses: list[int] = []
        self._up, self._is_over = up, threading.Event()
        self._threads = [threading.Thread(target=self._go_on, daemon=True) for _ in range(4)]

    def __enter__(self) -> "Submits":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)

    def _go_on(self) -> None:
        headers = {"Authorization": f"Bearer {self._up.token()}"}
        with httpx.Client(base_url=self._up.url, headers=headers, timeout=120) as http:
            while not self._is_over.is_set():
                answer = http.post("/api/v1/jobs", json={"tenant": "default", "command": ["true"], "gpu_count": 0})
                self.statuses.append(answer.status_code)

    def more(self, number: int) -> None:
        until = len(self.statuses) + number
        wait_for(lambda: len(self.statuses) >= until, 120, f"{number} more submits")


def says(output: IO[str], words: str) -> bool:
    return words in output.readline()


def migrate(up: Stack, target: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "manage.py", "migrate", "extra", target], cwd=ROOT, stderr=subprocess.PIPE, text=True,
        env={**up.environment(), "DJANGO_SETTINGS_MODULE": "tests.e2e.extra.settings"}, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def test_submits_succeed_while_a_migration_waits_for_their_tables(up: Stack) -> None:
    """Somebody reads for as long as it takes: the migration asks for the lock again and again, and whoever comes after it
    is served in between. The plans of before that it makes void are made anew. Forward, and back."""
    with Submits(up) as submits, psycopg.connect(up.database_url()) as reader:
        submits.more(10)
        for target in ("0001", "zero"):
            reader.execute("SELECT count(*) FROM jobs_job")
            running = migrate(up, target)
            assert running.stderr is not None
            wait_for(partial(says, running.stderr, "trying again"), 120, "it to try again")
            submits.more(20)
            assert running.poll() is None
            reader.commit()
            assert running.wait(120) == 0, running.stderr.read()
            submits.more(20)
    assert set(submits.statuses) == {201}
    assert up.client().status().pending_jobs is not None


def test_migration_that_rewrites_or_indexes_a_table_is_marked_offline(up: Stack) -> None:
    """By the files of the tables before and after: a table that is rewritten, or of which an index is built, is locked as
    long as that takes. Such a migration has the attribute `offline`, with what is long about it."""
    url = up.database_url()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE steps")
    environment = {**up.environment(), "GPUSCHED_DATABASE_URL": urlsplit(url)._replace(path="/steps").geturl()}
    done = subprocess.run([sys.executable, "manage.py", "shell", "--no-imports", "-c", _STEPS], cwd=ROOT, env=environment,
                          capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found, offline = json.loads(line.removeprefix("FOUND "))
    assert set(found) == set(offline), found
