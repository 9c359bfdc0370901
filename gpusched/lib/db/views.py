"""Published views: the tables of an app as other apps read them, defined in `<app>/sql_views.py`.

PostgreSQL inlines a plain view into the statement that reads it, so that no plan changes."""

from collections.abc import Mapping
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec

from django.apps import apps
from django.db import models, transaction

from gpusched.lib.db.sql import execute, rows

# Readers hold some views while they wait for others. PostgreSQL breaks the circle after a second (deadlock_timeout)
# and could end the reader, so this side gives up earlier.
_DROP_SECONDS = 0.5


def published(
    model: type[models.Model], *, without: tuple[str, ...] = (), also: Mapping[str, str] | None = None
) -> str:
    """Return a view of all columns of a model except `without`, and `also` ({name: SQL}; the table's alias is t)."""
    names = [field.column for field in model._meta.concrete_fields if field.column is not None]
    fields = [f't."{name}"' for name in names if name not in without]
    extra = [f"{sql} AS {name}" for name, sql in (also or {}).items()]
    return f"SELECT {', '.join(fields + extra)} FROM {model._meta.db_table} t"


def install_views() -> None:
    """Create the views of all apps if one differs from the database. Views of an app may read those of lower apps, so
    all are recreated in the order of the layers. Raise OperationalError if readers hold them for too long."""
    if are_current():
        return
    views = _views()
    digest = _digest(views)
    with transaction.atomic():
        # One statement, so that the limit is one for all views.
        execute("SELECT set_config('statement_timeout', %s, true)", [f"{_DROP_SECONDS * 1000:.0f}ms"])
        execute(f"DROP VIEW IF EXISTS {', '.join(reversed(views))}")
        execute("SET LOCAL statement_timeout = 0")
        for name, sql in views.items():
            execute(f"CREATE VIEW {name} AS {sql}")
            execute(f"COMMENT ON VIEW {name} IS '{digest}'")


def are_current() -> bool:
    """Return whether the database has these views. It has not if a migration was killed before it created them."""
    views = _views()
    found = rows("SELECT 1 FROM pg_class WHERE relname = ANY(%s) AND relkind = 'v' AND obj_description(oid) = %s"
                 " HAVING count(*) = %s", [list(views), _digest(views), len(views)])  # fmt: skip
    return bool(found)


def _digest(views: Mapping[str, str]) -> str:
    return sha256(repr(views).encode()).hexdigest()


def _views() -> dict[str, str]:
    """Return the views by name, lower layers first, in the order of INSTALLED_APPS."""
    modules = [f"{app.name}.sql_views" for app in apps.get_app_configs()]
    return {name: sql for module in modules if find_spec(module) for name, sql in import_module(module).VIEWS.items()}
