"""Shared by all tests: a real PostgreSQL, and a data directory of their own."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

# Before Django reads its settings: tests never touch the data of a running gpusched.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["GPUSCHED_DATA_DIR"] = tempfile.mkdtemp(prefix="gpusched-test-data-")
    os.environ["STACK_TEMPLATE"] = os.environ["GPUSCHED_DATA_DIR"] + "-template"  # tests/system/prepared.py
    os.environ["GPUSCHED_AGENT_ALLOW_ROOT"] = "true"  # for tests in a container, where there is no other user
    for name in ("URL", "TOKEN", "TOKEN_FILE", "TENANT", "CONFIG"):
        os.environ.pop(f"GPUSCHED_{name}", None)
    os.environ.pop("DATABASE_URL", None)
    # Else every process that a test starts would compile all modules anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest

from gpusched.lib import cache

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from pytest_django import DjangoDbBlocker

    from gpusched.lib.db.embedded import Server
    from tenants.models import Tenant

_server: "Server | None" = None


def pytest_configure(config: pytest.Config) -> None:
    global _server
    if _is_without_database(config.args):
        return
    from django.conf import settings

    from tests import database

    # Each process has a database of its own, so its jobs have the ids of other processes' jobs, too: their logs would
    # share files.
    settings.DATA_DIR = Path(os.environ["GPUSCHED_DATA_DIR"], os.environ.get("PYTEST_XDIST_WORKER", "one"))
    settings.DATA_DIR.mkdir(exist_ok=True)
    # The real hasher takes a third of a second on purpose.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    # Else each test's client would read and stat all static files first: a tenth of a second of processor time.
    settings.WHITENOISE_AUTOREFRESH = True
    database.empty_tables_fast()
    if not hasattr(config, "workerinput"):
        _server = database.start()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest files first, so that the processes of pytest end at about the same time."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where every tool could be had (deploy/test.sh), a test that was skipped for want of one is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("TESTS_HAVE_TOOLS") or hasattr(session.config, "workerinput") or reporter is None:
        return
    lacking = {
        str(report.longrepr[2]) for report in reporter.stats.get("skipped", ()) if isinstance(report.longrepr, tuple)
    }
    lacking = {reason for reason in lacking if "is not installed" in reason}
    if lacking:
        reporter.write_line(f"\ntests were skipped: {', '.join(sorted(lacking))}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    if _server is not None:
        from tests import database

        database.stop(_server)
    if not hasattr(config, "workerinput"):
        _remove_data()


def _remove_data() -> None:
    template = Path(os.environ["STACK_TEMPLATE"])
    if template.exists():
        from tests.system import prepared

        prepared.remove(template)
    shutil.rmtree(os.environ["GPUSCHED_DATA_DIR"], ignore_errors=True)


@pytest.fixture(autouse=True)
def _empty_caches() -> None:
    """No test sees what another one cached."""
    cache.clear_all()


# The factories import models, which tests without the database do without.
@pytest.fixture
def tenant() -> "Tenant":
    from tests.factories import make_tenant

    return make_tenant("nlp")


@pytest.fixture
def user(tenant: "Tenant") -> "User":
    from tests.factories import make_member

    return make_member(tenant)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None) -> ExitStack:
    """The next fixture closes what this one enters, after pytest-django's has created the database between them."""
    from tests import database

    migrating = ExitStack()
    migrating.enter_context(database.migrated_once(Path(os.environ["GPUSCHED_DATA_DIR"])))
    return migrating


@pytest.fixture(scope="session")
def django_db_keepdb() -> bool:
    """The server of a run is removed with its databases. To drop one waits five seconds for connections of threads."""
    return "MIGRATED_DATABASE" in os.environ


@pytest.fixture(scope="session")
def django_db_setup(django_db_modify_db_settings: ExitStack, django_db_setup: None) -> Iterator[None]:
    """The notifier's connection would keep the database of the tests from being dropped."""
    from gpusched.lib.bus.notifier import notifier

    django_db_modify_db_settings.close()
    yield
    notifier.stop()


@pytest.fixture(scope="module")
def rows_of_module(django_db_setup: None, django_db_blocker: "DjangoDbBlocker") -> Iterator[None]:
    """Fixtures of a module's scope that use this one create rows once. Each of its tests starts with these."""
    from django.db import transaction

    with django_db_blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)


def _is_without_database(chosen: list[str]) -> bool:
    """Of GPU nodes alone, which have neither Django nor PostgreSQL."""
    places = [Path(one.partition("::")[0]).resolve() for one in chosen]
    gpu = Path(__file__).parent / "gpu"
    return bool(places) and all(place == gpu or gpu in place.parents for place in places)
