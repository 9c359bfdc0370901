"""The wheel, installed into an empty environment: the server starts without a checkout, Node or make."""

import json
import os
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.release import build, source_problems, wheel_problems
from tests.system.installed import install
from tests.system.stack import Stack
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


class Installed(Stack):
    """The server as a user starts it who has only a wheel: `gpusched-server up` in a directory of their own."""

    def __init__(self, programs: Path, home: Path) -> None:
        super().__init__()
        self.programs, self.home = programs, home

    def __enter__(self) -> "Installed":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def environment(self) -> dict[str, str]:
        """Return an environment without this checkout, and without tools that only a developer has."""
        return {
            "HOME": str(self.home), "LANG": "C.UTF-8", "PATH": f"{self.programs}:/usr/bin:/bin",
            "GPUSCHED_DATA_DIR": str(self.data_dir), "GPUSCHED_HTTP_PORT": str(self.port),
            **({"GPUSCHED_AGENT_ALLOW_ROOT": "true"} if os.geteuid() == 0 else {}),
        }  # fmt: skip

    def start(self) -> None:
        with (self.directory / "up.log").open("ab") as log:
            self.up = subprocess.Popen(
                [str(self.programs / "gpusched-server"), "up"], cwd=self.home, env=self.environment(),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        wait_for(self.is_ready, 240, "the installed server to be ready", pause=0.2)

    def command(self, *words: str) -> str:
        token = {"GPUSCHED_URL": self.url, "GPUSCHED_TOKEN_FILE": str(self.data_dir / "tokens" / "admin")}
        done = subprocess.run(
            [str(self.programs / words[0]), *words[1:]], cwd=self.home, env={**self.environment(), **token},
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def server(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    place = tmp_path_factory.mktemp("server")
    (place / "home").mkdir()
    with Installed(install(wheel, place / "venv", "server"), place / "home") as running:
        yield running


def test_wheel_is_complete_and_adds_one_top_level_name(wheel: Path, tmp_path: Path) -> None:
    """Other distributions may have modules named `jobs` or `nodes`. The checks of `make release` notice each fault."""
    assert [*wheel_problems(wheel), *source_problems()] == []
    broken = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(broken, "w") as target:
        for name in source.namelist():
            if not name.endswith(("templates/base.html", "uplot.txt")):
                data = source.read(name)
                target.writestr(name, data.replace(b"Version: 0", b"Version: none") if "METADATA" in name else data)
        target.writestr("jobs/__init__.py", "")
    problems = "\n".join(wheel_problems(broken))
    for words in ("'none.1.0' is invalid", "names jobs", "missing: gpusched/_server/templates", "licence: uplot.txt"):
        assert words in problems


def test_base_install_runs_command_line_agent_and_sdk(wheel: Path, tmp_path: Path) -> None:
    """`pip install gpusched`, without the server's libraries."""
    programs = install(wheel, tmp_path)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path)}

    def run(*words: str, code: int = 0) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert run(str(programs / "gpusched"), "version").startswith("gpusched ")
    assert run(str(programs / "gpusched-agent"), "version").startswith("gpusched-agent ")
    run(str(programs / "python"), "-c", "import gpusched.client, gpusched.serve")
    assert "TRACE" in run(str(programs / "gpusched"), "simulate", "--help").upper()
    run(str(programs / "python"), "-c", "import jobs", code=1)
    assert "gpusched[server]" in run(str(programs / "gpusched-server"), "up", code=1)


def test_installed_server_runs_a_job(server: Installed) -> None:
    """A01 for a wheel: one command, an empty home, and no checkout. Every part starts, the parts' own children, too."""
    assert server.command("gpusched", "run", "--gpus", "0", "--", "echo", "from the job") == "from the job\n"
    dry_run = server.command("gpusched", "submit", "--dry-run", "--gpus", "0", "-o", "json", "--", "true")
    assert json.loads(dry_run)["starts_now"]
    checkout = str(Path(__file__).parents[2])
    for pid in server.pids(""):
        paths = Path(f"/proc/{pid}/environ").read_bytes() + os.readlink(f"/proc/{pid}/cwd").encode()
        assert checkout.encode() not in paths, Path(f"/proc/{pid}/cmdline").read_bytes()
    page = server.command("python", "-c", f"import urllib.request as r; print(r.urlopen('{server.url}/login/').read())")
    assert "/static/live/live.js" in page
    script = f"import urllib.request as r; print(len(r.urlopen('{server.url}/static/live/live.js').read()))"
    assert int(server.command("python", "-c", script)) > 10_000
    assert server.up is not None
    server.up.send_signal(signal.SIGINT)
    assert server.up.wait(60) == 0
