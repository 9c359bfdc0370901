"""Build the wheel: besides the package `gpusched`, put the server's apps, templates and built page below
gpusched/_server (gpusched/installation.py says why). Everything else is in pyproject.toml."""

import shutil
from pathlib import Path
from warnings import warn

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
TARGET = "gpusched/_server"
APPS = ("tenants", "jobs", "nodes", "scheduling", "serving", "notifications", "frontend")
OTHERS = ("templates", "manage.py", "deploy/demo", "deploy/gpusched-agent.service")
PAGE = "frontend/static/live/live.js"
# Of the page's source, which its build replaces.
IGNORED = ("__pycache__", "node_modules", "src", "tests", "package*.json", "tsconfig.json", "vite.config.ts", ".*")


class BuildWithServer(build_py):
    """Copy the server's folders after the package. An editable install uses them where they are."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        if not (ROOT / PAGE).exists():
            # Agent, command line and SDK do not need it: a node installs them from a fresh checkout, without Node.
            warn(f"{PAGE} is missing: the server will not start (build the page by `make setup`)", stacklevel=1)
        server = Path(self.build_lib) / TARGET
        shutil.rmtree(server, ignore_errors=True)  # of an earlier build
        for name in APPS:
            ignored = IGNORED if name == "frontend" else IGNORED[:1]
            shutil.copytree(ROOT / name, server / name, ignore=shutil.ignore_patterns(*ignored))
        for name in OTHERS:
            source, target = ROOT / name, server / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)


setup(cmdclass={"build_py": BuildWithServer})
