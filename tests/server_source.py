"""The server's own modules, for tests that read its code."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
APPS = ("gpusched", "tenants", "jobs", "nodes", "scheduling", "serving", "notifications", "frontend")


def server_files() -> Iterator[str]:
    """Yield the paths of all modules except migrations, relative to ROOT."""
    for app in APPS:
        for path in sorted((ROOT / app).rglob("*.py")):
            if not {"migrations", "node_modules"} & set(path.parts):
                yield str(path.relative_to(ROOT))
