"""What all tests share: a real PostgreSQL, and a data directory of their own."""

import os
import tempfile
from pathlib import Path

# Before Django reads its settings: tests never touch the data of a running gpusched.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["GPUSCHED_DATA_DIR"] = tempfile.mkdtemp(prefix="gpusched-test-data-")
    os.environ["GPUSCHED_AGENT_ALLOW_ROOT"] = "true"  # for tests in a container, where there is nobody else
    for name in ("DATABASE_URL", "GPUSCHED_URL", "GPUSCHED_TOKEN", "GPUSCHED_TOKEN_FILE", "GPUSCHED_TENANT"):
        os.environ.pop(name, None)

import pytest
from django.conf import settings

from gpusched.lib.postgres import Server
from tests import database

_server: Server | None = None


def pytest_configure(config: pytest.Config) -> None:
    global _server
    settings.DATA_DIR = Path(os.environ["GPUSCHED_DATA_DIR"])
    # The real hasher takes a third of a second on purpose.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    if not hasattr(config, "workerinput"):
        _server = database.start()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _server is not None:
        database.stop(_server)
