"""A table belongs to one app: its name stands in SQL of that app alone. Others read published views
(`sql_views.py`)."""

import ast
import os
import re
from collections.abc import Iterator

import pytest
from django.apps import apps
from django.conf import settings
from django.utils.module_loading import import_string

from gpusched.lib.db.sql import execute, query
from gpusched.lib.db.views import install_views
from tests.server_source import APPS, ROOT, server_files

# Django's tables, by the app that uses them in SQL.
OWNERS = {"auth": "tenants", "sessions": "tenants", "django_q": "scheduling", "lib": "gpusched"}


def _owners() -> dict[str, str]:
    models = apps.get_models(include_auto_created=True)
    return {m._meta.db_table: OWNERS.get(m._meta.app_label, m._meta.app_label) for m in models}


def _strings(source: str) -> Iterator[str]:
    """Yield all string constants except docstrings."""
    tree = ast.parse(source)
    nodes = [node for node in ast.walk(tree) if hasattr(node, "body") and isinstance(node.body, list)]
    docs = {id(node.body[0].value) for node in nodes if node.body and isinstance(node.body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def _foreign(app: str, source: str) -> set[str]:
    owners = _owners()
    names = re.compile(r"(?<![\w.])(" + "|".join(sorted(owners, key=len, reverse=True)) + r")\b")
    return {name for text in _strings(source) for name in names.findall(text) if owners[name] != app}


def test_no_sql_names_a_table_of_another_app():
    foreign = {
        file: names for file in server_files() if (names := _foreign(file.split(os.sep)[0], (ROOT / file).read_text()))
    }
    assert foreign == {}


@pytest.mark.parametrize("text", ["SELECT 1 FROM jobs_job", "UPDATE jobs_job SET state = 'held'", "JOIN auth_user u"])
def test_foreign_table_is_detected(text):
    assert _foreign("nodes", f'"""Docs may name jobs_job."""\nSQL = f"""{text} {{x}}"""') != set()
    assert _foreign("nodes", 'SQL = "SELECT 1 FROM jobs_all JOIN nodes_node"') == set()


@pytest.mark.django_db
def test_no_sql_reads_a_view_of_a_higher_app():
    """Calls to higher apps go through HOOKS."""
    views = {row["v"] for row in query("SELECT viewname AS v FROM pg_views WHERE schemaname = current_schema()")}
    assert len(views) > 20
    upward = [
        (file, view)
        for file in server_files()
        for text in _strings((ROOT / file).read_text())
        for view in views & set(re.findall(r"\w+", text))
        if APPS.index(view.split("_")[0].replace("lib", "gpusched")) > APPS.index(file.split(os.sep)[0])
    ]
    assert upward == []


@pytest.mark.parametrize("name", settings.HOOKS)
def test_hook_names_a_function_or_sql(name):
    target = import_string(settings.HOOKS[name])
    assert callable(target) or "SELECT" in target


@pytest.mark.django_db
def test_views_are_recreated_when_their_text_changes(monkeypatch):
    from jobs import sql_views

    monkeypatch.setitem(sql_views.VIEWS, "jobs_attempts", "SELECT id FROM jobs_attempt")
    install_views()
    assert query("SELECT count(*) AS n FROM information_schema.columns WHERE table_name = 'jobs_attempts'") == [
        {"n": 1}
    ]
    monkeypatch.undo()
    install_views()
    execute("SELECT job_id FROM jobs_attempts")
    [previous] = query("SELECT oid FROM pg_class WHERE relname = 'jobs_attempts'")
    install_views()
    assert query("SELECT oid FROM pg_class WHERE relname = 'jobs_attempts'") == [previous]


@pytest.mark.django_db
def test_views_show_no_secret():
    columns = query("SELECT table_name AS t, column_name AS c FROM information_schema.columns c"
                    " JOIN pg_views v ON v.viewname = c.table_name WHERE v.schemaname = current_schema()")  # fmt: skip
    names = {row["c"] for row in columns}
    assert names & {"password", "node_key", "credential_hash", "credential_prefix", "secret_hash"} == set()
