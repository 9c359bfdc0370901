"""Only `move_sql` builds statements that set a job's state, and only `insert_sql` those that insert events."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.server_source import ROOT, server_files

MOVE, INSERT = ("jobs/lifecycle/states.py", "move_sql"), ("jobs/events/record.py", "insert_sql")
# A job begins in the state that its INSERT names.
NEW_JOBS = {("jobs/submit/job_row.py", "_new_jobs_sql"), ("jobs/arrays/materialize.py", "")}

_STATEMENT = re.compile(r"(?=\b(?:UPDATE|INSERT\s+INTO)\s)", re.IGNORECASE)
_UPDATE_JOB = re.compile(r'UPDATE\s+(?:ONLY\s+)?(?:public\.)?"?jobs_job\b', re.IGNORECASE)
# An assignment to the column, alone or in a list `(state, …) =`; or to a column that only the running program knows.
_SET_STATE = re.compile(r'(?:\bSET|,)\s*(?:"?state"?\s*=|\([^)=]*\bstate\b[^)=]*\)\s*=|\{\})', re.IGNORECASE)
_INSERT_JOB = re.compile(r'INSERT\s+INTO\s+(?:public\.)?"?jobs_job\b', re.IGNORECASE)
_INSERT_EVENT = re.compile(r'INSERT\s+INTO\s+(?:public\.)?"?jobs_jobevent\b', re.IGNORECASE)


@pytest.fixture(scope="module", autouse=True)
def _nodes_of_this_module() -> Iterator[None]:
    """To parse all code takes seconds, and what is parsed a lot of memory."""
    yield
    _nodes.cache_clear()


def moves(sql: str) -> bool:
    """Return whether SQL sets a job's state."""
    return any(_UPDATE_JOB.match(part) and _SET_STATE.search(part) for part in _STATEMENT.split(sql))


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE jobs_job SET state = 'failed' WHERE id = %s",
        "WITH moved AS (update jobs_job j\n SET reason = '', state='failed' WHERE id = %s) SELECT 1",
        'UPDATE ONLY "jobs_job" AS x SET (reason, state) = (%s, %s)',
        "UPDATE jobs_job SET {} WHERE id = %s",
    ],
)
def test_update_is_a_move_when_it_sets_the_state(sql):
    assert moves(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE jobs_job SET reason = '' WHERE state = 'running'",
        "UPDATE jobs_job j SET evidence = CASE WHEN j.state = 'held' THEN j.evidence END",
        "WITH a AS (UPDATE jobs_job SET reason = '') UPDATE nodes_node SET state = 'up'",
        "UPDATE jobs_jobsecrets SET state = ''",
    ],
)
def test_update_is_no_move_when_it_only_reads_the_state(sql):
    assert not moves(sql)


def test_move_sql_alone_sets_the_state_of_jobs():
    assert {(file, name) for file, name, sql in _statements() if moves(sql)} == {MOVE}


def test_insert_sql_alone_inserts_events():
    assert {(file, name) for file, name, sql in _statements() if _INSERT_EVENT.search(sql)} == {INSERT}


def test_submit_and_materialize_alone_insert_jobs():
    assert {(file, name) for file, name, sql in _statements() if _INSERT_JOB.search(sql)} == NEW_JOBS


def test_statements_are_built_when_their_modules_load():
    """No caller's value can become part of them: a function calls neither of the two."""
    for file, name, node in _nodes():
        if name and isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            assert called not in (MOVE[1], INSERT[1]), f"{file}:{node.lineno}"


def test_no_module_writes_events_or_states_by_the_models():
    for file, _, node in _nodes():
        publishes_views = file == "jobs/sql_views.py"
        if isinstance(node, ast.ImportFrom) and node.module == "jobs.models" and not publishes_views:
            assert "JobEvent" not in {name.name for name in node.names}, f"{file}:{node.lineno}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and file.startswith("jobs/"):
            sets_state = node.func.attr == "update" and any(keyword.arg == "state" for keyword in node.keywords)
            assert not sets_state, f"{file}:{node.lineno}"


@cache
def _statements() -> list[tuple[str, str, str]]:
    """Return the file, the function ("" outside) and the text of each statement; `{}` stands for what it formats."""
    strings = (found for found in _nodes() if isinstance(found[2], ast.JoinedStr | ast.Constant | ast.BinOp))
    texts = ((file, name, _text(node)) for file, name, node in strings)
    return [(file, name, text) for file, name, text in texts if _STATEMENT.search(text)]


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "{}"


@cache
def _nodes() -> list[tuple[str, str, ast.AST]]:
    """Return every node of the server's code with its file and function; of strings only the outermost."""
    trees = ((file, ast.parse((ROOT / file).read_text())) for file in server_files())
    return [(file, name, node) for file, tree in trees for name, node in _walk(tree, "")]


def _walk(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    yield name, node
    if isinstance(node, ast.JoinedStr):
        return
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    inside = (name or getattr(node, "name", "lambda")) if is_function else name
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, inside)
