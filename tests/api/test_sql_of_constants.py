"""No value that anybody sent becomes part of a statement: what is put into the text of SQL is constants of the code.

In the place of bandit's B608, which cannot tell the two apart."""

import ast
import re
from collections.abc import Iterator

from tests.server_source import ROOT, server_files

_SQL = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|WHERE|JOIN|LOCK TABLE|RETURNING|ORDER BY)\b")
_CONSTANT = re.compile(r"(\w+\.)?_?[A-Z][A-Z_0-9]*|[A-Z]\w+\.[A-Z_]+")
# What is put there and is no name of a constant: by file and expression, with why it is none of a caller's words.
LOOKED_AT = {
    ("gpusched/lib/db/views.py", "model._meta.db_table"): "Django's name of a table",
    ("tenants/billing/rates.py", "hook('gpu_models')"): "a constant of nodes",
    ("tenants/billing/usage_report.py", "hook('gpu_models')"): "a constant of nodes",
    ("frontend/pages/notices/rows.py", "NoticesSeen._meta.db_table"): "Django's name of a table",
    ("frontend/pages/queue/rows.py", "order"): "constants",
    ("frontend/pages/queue/rows.py", "condition"): "of parts that are constants; values are parameters",
    ("gpusched/lib/bus/notifier.py", "sql"): "a call per message, its words parameters",
    ("jobs/listing/job_list.py", "condition"): "of parts that are constants; values are parameters",
    ("jobs/listing/job_list.py", "is_found"): "as `condition`",
    ("jobs/lifecycle/dependencies.py", "lock"): "one of two constants",
    ("jobs/lifecycle/restored_ids.py", "last"): "a number from the database, as an int",
    ("jobs/actions/array_actions.py", "in_states"): "constants",
    ("jobs/submit/job_row.py", "names"): "names of columns",
    ("serving/requests/submit.py", "_INSERT.format(only_if=_IF_UNLIMITED)"): "constants",
    ("tenants/auth/identity.py", "_JOB_BUCKETS.format(is_admin='u.is_superuser', user='u.id')"): "constants",
    ("tenants/auth/identity.py", "_DEFAULT_MINUTES.format(is_admin='u.is_superuser', user='u.id')"): "constants",
    ("tenants/auth/identity.py", "_JOB_BUCKETS.format(is_admin='%(is_admin)s', user='%(user)s')"): "constants",
    ("tenants/auth/identity.py", "_DEFAULT_MINUTES.format(is_admin='%(is_admin)s', user='%(user)s')"): "constants",
    ("jobs/submit/job_row.py", "rows"): "of the same",
    ("jobs/listing/representation.py", "tail"): "constants of its callers",
    ("jobs/listing/representation.py", "condition"): "as in jobs/listing/job_list.py, its caller",
    ("jobs/retention.py", "table"): "names of tables",
    ("jobs/retention.py", "sql"): "one of two constants",
    ("jobs/retention.py", "skip"): "constants of its callers",
    ("gpusched/management/server_doctor.py", "row['pid']"): "for a person to run; a number from the database",
    **{
        ("jobs/events/record.py", name): "built when modules load, of constants"
        for name in ("columns", "values", "source")
    },
    **{
        ("jobs/lifecycle/states.py", name): "built when modules load, of constants"
        for name in ("state", "changes", "joined", "condition", "returning")
    },
    ("nodes/telemetry/samples.py", "', '.join(names)"): "names of columns",
    ("nodes/telemetry/samples.py", "_BY[by]"): "a constant by a word that is known, or a KeyError",
    ("nodes/telemetry/samples.py", "at"): "constants",
    ("nodes/telemetry/samples.py", "cell"): "words of an enumeration",
    ("nodes/telemetry/samples.py", "table"): "constants",
    ("nodes/retention.py", "table"): "names of tables",
    ("scheduling/cycle/recorded_cycles.py", "sql"): "one of two constants",
    ("scheduling/status/cluster.py", "condition"): "of parts that are constants; values are parameters",
    ("nodes/ranks/recovery.py", "_SINCE.format(since='a.scheduled_at')"): "constants",
    ("nodes/ranks/recovery.py", "_SINCE.format(since='j.reason_since')"): "constants",
    ("scheduling/worker/tasks.py", "table"): "names of tables",
    ("gpusched/lib/db/views.py", "', '.join(fields + extra)"): "names of columns, and constants of sql_views.py",
    ("tenants/people/users.py", "_single_sign_on()"): "one of two constants",
    (
        "tenants/billing/usage_report.py",
        "', '.join((f'coalesce(sum({name}), 0) AS {name}' for name in _SUMS))",
    ): "constants",
    ("tenants/billing/usage_report.py", "', '.join((f'p.{name}' for name in _SUMS))"): "constants",
}


def test_only_constants_are_put_into_statements():
    """A55: a new one is to be a constant in capitals, or stand in LOOKED_AT with its reason."""
    result = {(file, text) for file in server_files() for text in _put_into_sql(file)}
    assert result == LOOKED_AT.keys()


def test_no_statement_is_built_by_percent_or_format():
    for file in server_files():
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
                assert not (isinstance(node.left.value, str) and _SQL.search(node.left.value)), f"{file}:{node.lineno}"


def _put_into_sql(file: str) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
            for part in node.values if _SQL.search(text) else ():
                if isinstance(part, ast.FormattedValue) and not _CONSTANT.fullmatch(message := ast.unparse(part.value)):
                    yield message
