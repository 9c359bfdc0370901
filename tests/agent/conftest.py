"""Real agent processes in their own directories; tests leave nothing of them behind."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.agent import processes
from gpusched.agent.rank_files import rank_dir
from gpusched.agent.ranks.journal import Journal
from gpusched.agent.supervisor import supervisor
from gpusched.protocol.agent_messages import RankSpec
from tests.agent.control import Control, eventually

ROOT = Path(__file__).resolve().parents[2]
A100 = "NVIDIA A100|81920|4|0|31|55000|0|ok|"  # a line of the fake driver
DEFAULTS = {"GPUSCHED_JOIN_TOKEN": "j1.token", "GPUSCHED_AGENT_ALLOW_ROOT": "true"}


def _as_in_the_background() -> None:
    """Ignore the signals that nohup or the `&` of a script ignores; the agent's jobs must not ignore them."""
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


class Agent:
    """The agent of one node as a process that can be killed and started again."""

    def __init__(self, directory: Path, control: Control) -> None:
        self.directory, self.control = directory, control
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def ranks(self) -> Path:
        return self.directory / "nodes" / "node-a" / "ranks"

    def start(
        self, *arguments: str, environment: dict[str, str] | None = None, stderr: int | None = None
    ) -> subprocess.Popen[bytes]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("GPUSCHED_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpusched.agent.main", "run", "--data-dir", str(self.directory), "--url",
             self.control.url, "--name", "node-a", "--heartbeat-seconds", "0.1", *arguments],
            cwd=ROOT, env={**inherited, **DEFAULTS, **(environment or {})}, stdin=subprocess.DEVNULL,
            stderr=stderr, preexec_fn=_as_in_the_background,
        )  # fmt: skip
        return self.process

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(20)

    def scopes(self) -> list[str]:
        """Marks of all ranks that this agent has on disk, whether they run or not."""
        pids = []
        for spec in self.ranks.glob("*/spec.json"):
            with contextlib.suppress(FileNotFoundError):  # forgotten by now
                pids.append(spec.read_text().split('"GPUSCHED_SCOPE": "')[1].split('"')[0])
        return pids


def supervised(place: Path, spec: RankSpec) -> Path:
    """Run a rank by a supervisor of its own, in a process with what the test has patched; return its directory once it
    has ended."""
    directory = Journal(place / "node", rank_dir.boot_id()).prepare("1.1.0", spec, "node")
    if (pid := os.fork()) == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.SIGNALS)
        supervisor.run(str(directory), f"{place}/doorbell", None)
        os._exit(0)
    os.waitpid(pid, 0)
    return directory


@pytest.fixture
def control() -> Iterator[Control]:
    with Control() as running:
        yield running


@pytest.fixture
def agent(tmp_path: Path, control: Control) -> Iterator[Agent]:
    agent = Agent(tmp_path / "agent", control)
    yield agent
    scopes = agent.scopes()
    if agent.process is not None and agent.process.poll() is None:
        agent.kill()
    for scope in scopes:
        processes.signal_all(processes.strays(scope), signal.SIGKILL)
    eventually(lambda: not supervisors(agent.directory), 10, "the supervisors to end")


def supervisors(directory: Path) -> list[int]:
    """Processes that hold the lock of a rank below a directory."""
    return [pid for rank in directory.glob("nodes/*/ranks/*") if (pid := rank_dir.holder(rank)) is not None]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a fake driver library, compiled here."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    directory = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).parent / "fake_nvml.c"
    target = directory / "libnvidia-ml.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1", "-o", target, source],
        check=True,
    )
    return directory


@pytest.fixture
def environment(library: Path, tmp_path: Path) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(tmp_path / "devices")}


def set_devices(environment: dict[str, str], *devices: str) -> None:
    path = Path(environment["FAKE_NVML"])
    new_file = path.with_suffix(".new")
    new_file.write_text("".join(f"{device}\n" for device in devices))
    new_file.rename(path)
