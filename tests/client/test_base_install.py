"""The installation for laptops and GPU nodes: it imports without Django, and the command starts quickly."""

import subprocess
import sys
import time

import pytest

from tests.client.commandline import ROOT

WITHOUT_SERVER = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("django", "rest_framework", "channels", "psycopg", "jobs", "nodes", "tenants"):
            raise ImportError(f"{name} is not part of the base install")

sys.meta_path.insert(0, Refuse())
"""


@pytest.mark.parametrize(
    "module",
    [
        "cli.main",
        "cli.app",
        "client",
        "client.sync.client",
        "client.aio.client",
        "agent",
        "agent.main",
        "serve",
        "embedded",
        "watch.runner",
        "watch.sources",
        "watch.judge",
        "watch.dry_run",
    ],
)
def test_client_imports_without_django(module: str) -> None:
    code = f"{WITHOUT_SERVER}\nimport importlib; importlib.import_module('gpusched.{module}')"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_version_is_quick() -> None:
    def seconds() -> float:
        started_at = time.monotonic()
        out = subprocess.run([sys.executable, "-m", "gpusched.cli.main", "version"], cwd=ROOT, capture_output=True)
        assert out.stdout.startswith(b"gpusched ")
        return time.monotonic() - started_at

    assert min(seconds() for _ in range(3)) < 0.3


def test_commands_import_the_http_client_only_when_needed() -> None:
    code = "import sys, gpusched.cli.app; assert not {'httpx', 'rich', 'yaml'} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
