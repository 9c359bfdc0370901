"""The two commands of the README in a checkout that only its owner can enter, as in a home of Debian."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gpusched.client import Client
from gpusched.lib.db.embedded import Server
from tests.system.stack import ROOT, free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.long]
ORDINARY = "nobody"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


@dataclass
class Home:
    """A 0700 folder with a checkout in it, and the user who owns both."""

    path: Path
    user: str

    @property
    def checkout(self) -> Path:
        return self.path / "gpusched"

    def start(self, *command: str, log: Path, **settings: str) -> subprocess.Popen[bytes]:
        # Nothing of these tests' own environment: it names folders that a nested pytest would delete.
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.path), "USER": self.user, **settings}
        entry = pwd.getpwnam(self.user)
        with log.open("wb") as output:
            return subprocess.Popen(
                command, cwd=self.checkout, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, user=entry.pw_uid, group=entry.pw_gid, extra_groups=[],
            )  # fmt: skip

    def databases(self) -> list[Path]:
        return [path.parent for path in self.path.rglob("postgres/location")]


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """In the home of an ordinary user; tests/lib/test_postgres.py has the private folder of root."""
    user = pwd.getpwuid(os.geteuid()).pw_name if os.geteuid() else ORDINARY
    top = Path(tempfile.mkdtemp(prefix="gpusched-home-"))
    top.chmod(0o755)  # only the home itself hides the checkout
    home = Home(top / user, user)
    home.path.mkdir(mode=0o700)
    copy_checkout(home.checkout)
    if user == ORDINARY:
        use_public_python(home.checkout / ".venv")
    for directory, _, files in os.walk(home.path):
        if Path(directory).is_relative_to(home.checkout / ".venv" / "lib"):
            continue  # hard links, whose owner would change for everyone
        shutil.chown(directory, user)
        for file in files:
            path = Path(directory) / file
            if path.stat().st_nlink == 1 and not path.is_symlink():
                shutil.chown(path, user)
    yield home
    for place in home.databases():
        Server(place).remove()
    shutil.rmtree(top, ignore_errors=True)


def copy_checkout(checkout: Path) -> None:
    """Copy the committed and new files, the libraries and the built page: set-up finds nothing left to install."""
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    ).stdout  # fmt: skip
    for name in filter(None, files.decode().split("\0")):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name)
    shutil.copytree(
        ROOT / "frontend" / "static" / "live", checkout / "frontend" / "static" / "live", dirs_exist_ok=True
    )
    (checkout / "frontend" / "node_modules").mkdir(exist_ok=True)
    linked = subprocess.run(["cp", "-al", str(ROOT / ".venv"), str(checkout / ".venv")], capture_output=True)
    if linked.returncode:  # another file system
        shutil.rmtree(checkout / ".venv", ignore_errors=True)
        subprocess.run(["cp", "-a", str(ROOT / ".venv"), str(checkout / ".venv")], check=True)


def use_public_python(venv: Path) -> None:
    """Let the virtual environment run by the system's Python: another user cannot enter root's home, where ours may be."""
    python = shutil.which(PYTHON, path="/usr/local/bin:/usr/bin:/bin")
    if python is None:
        pytest.skip(f"there is no {PYTHON} that every user can run")
    for name in ("python", "python3", PYTHON):
        (venv / "bin" / name).unlink(missing_ok=True)
        (venv / "bin" / name).symlink_to(python)
    configuration = venv / "pyvenv.cfg"
    configuration.unlink()
    configuration.write_text(f"home = {Path(python).parent}\ninclude-system-site-packages = false\n")


def test_demo_completes_a_job(home: Home) -> None:
    """A01: `make demo`, in the data directory that GPUSCHED_DATA_DIR names."""
    port, log, data = free_port(), home.path.parent / "demo.log", home.path / "chosen data"
    demo = home.start("make", "demo", log=log, GPUSCHED_HTTP_PORT=str(port), GPUSCHED_DATA_DIR=str(data))
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: demo.poll() is not None or is_ready(url), 240, "the demo to be ready", pause=0.2)
        assert demo.poll() is None, log.read_text(errors="replace")
        client = Client(url, (data / "tokens" / "admin").read_text().strip())
        wait_for(lambda: client.list(state="completed"), 120, "a job to complete", pause=0.5)
        assert not (home.checkout / ".gpusched-demo").exists()
    finally:
        if demo.poll() is None:
            os.kill(demo.pid, signal.SIGINT)
            os.killpg(demo.pid, signal.SIGINT)
            demo.wait(60)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def test_suite_starts_its_own_database(home: Home) -> None:
    log = home.path.parent / "test.log"
    tests = home.start(".venv/bin/python", "-m", "pytest", "-q", "tests/tenants/test_weights.py", log=log)
    assert tests.wait(300) == 0, log.read_text(errors="replace")
    assert " passed" in log.read_text()
