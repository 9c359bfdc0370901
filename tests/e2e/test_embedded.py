"""An embedded control plane (`gpusched.local`) leaves no process, port or file behind, however its parent ends."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.processes import processes_naming
from tests.system.stack import ROOT
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(300)]
# A job runs that has left a process of its own session behind.
BUSY = """
import os, signal, sys, time
import gpusched
with gpusched.local(gpus="1:A100:40960:8") as client:
    print(client.config.url, flush=True)
    assert client.status().total_gpus == 8
    job = client.submit(["sh", "-c", "setsid sleep {seconds} & sleep {seconds}"], gpus=1)
    while client.get(job.id).state != "running":
        time.sleep(0.05)
    print("running", flush=True)
    sys.stdin.readline()
    {ending}
"""


@dataclass
class Place:
    """A home, temporary directory and cache of one user, and a number of seconds that only its jobs sleep for."""

    directory: Path
    as_user: list[str]
    seconds: str

    def parent(self, source: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.as_user, sys.executable, "-c", source.replace("{seconds}", self.seconds)], cwd=ROOT, env=self.environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("GPUSCHED_", "DATABASE_URL", "DJANGO_"))}
        home, temporary = str(self.directory / "home"), str(self.directory / "tmp")
        return {**outside, "HOME": home, "XDG_CACHE_HOME": home, "TMPDIR": temporary, "PYTHONPATH": str(ROOT)}

    def processes(self) -> list[int]:
        """Return all processes of the control plane: each works in this place or is one of its jobs."""
        return processes_naming(str(self.directory).encode(), self.seconds.encode())

    def files(self) -> list[str]:
        return os.listdir(self.directory / "tmp")


def shared_memory(pids: list[int], earlier: Collection[str]) -> set[str]:
    """Return the shared memory of these processes that has a name: segments of POSIX, and of System V by id. `earlier`:
    ids of segments of System V from before the processes, whose creators may have had the same pids."""
    names = {
        line.split()[-1]
        for pid in pids
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if "/dev/shm/" in line and not line.endswith(" (deleted)")
    }
    return names | {f"sysv {row[1]}" for row in system_v_segments() if int(row[4]) in pids and row[1] not in earlier}


def system_v_segments() -> list[list[str]]:
    return [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]


@contextmanager
def new_place(as_user: list[str]) -> Iterator[Place]:
    directory = Path(tempfile.mkdtemp(prefix="gpusched-test-embedded-"))
    directory.chmod(0o755)
    for name in ("home", "tmp"):
        (directory / name).mkdir(mode=0o755)
    yield Place(directory, as_user, f"98765{uuid.uuid4().int % 1000:03}")
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A place of this user. The first start prepares the data in it, and the later ones copy them."""
    with new_place([]) as made:
        yield made


@pytest.fixture(scope="module")
def ordinary_place() -> Iterator[Place]:
    """A place of a user who is an ordinary one to itself, and may use an interpreter in root's home."""
    unshared = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if subprocess.run([*unshared, "true"]).returncode:
        pytest.skip("this machine allows no user namespaces, which the test needs for an ordinary user")
    with new_place(unshared) as made:
        yield made


@pytest.fixture
def unprepared_place() -> Iterator[Place]:
    with new_place([]) as made:
        yield made


def assert_nothing_is_left(place: Place, url: str | None = None, memory: Collection[str] = ()) -> None:
    wait_for(lambda: not place.processes(), 60, "all processes to end")
    assert place.files() == []
    assert not [name for name in memory if Path(name).exists()]
    assert not {f"sysv {row[1]}" for row in system_v_segments()} & set(memory)
    if url:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", urlsplit(url).port or 0)) != 0


ENDINGS = {
    "block_ends": ("pass", 0),
    "exception": ("raise RuntimeError('in the block')", 1),
    "os_exit": ("os._exit(3)", 3),
    "sigkill": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    # As a notebook server restarts a kernel.
    "kernel_restart": ("os.killpg(0, signal.SIGKILL)", -signal.SIGKILL),
    # The forked process holds all files of its parent, so no pipe shows that the parent has ended.
    "sigkill_beside_a_fork": (
        "pid = os.fork()\n    if not pid:\n        os.execlp('env', 'env', '-i', 'sleep', '20')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)",
        -signal.SIGKILL,
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_embedded_control_plane_leaves_nothing_behind(place: Place, ending: str) -> None:
    """A77."""
    assert_leaves_nothing_behind(place, ending)


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as an ordinary user: the test above is the same")
@pytest.mark.parametrize("ending", ["exception", "sigkill"])
def test_embedded_control_plane_of_an_ordinary_user_leaves_nothing_behind(ordinary_place: Place, ending: str) -> None:
    """A77."""
    assert_leaves_nothing_behind(ordinary_place, ending)


def assert_leaves_nothing_behind(place: Place, ending: str) -> None:
    code, status = ENDINGS[ending]
    earlier = {row[1] for row in system_v_segments()}
    parent = place.parent(BUSY.replace("{ending}", code))
    assert parent.stdout is not None
    url = parent.stdout.readline().strip()
    assert url.startswith("http://127.0.0.1:")
    assert parent.stdout.readline() == "running\n"
    memory = shared_memory(place.processes(), earlier)
    assert place.files() and any("PostgreSQL" in name for name in memory)
    parent.communicate("end\n", 60)
    assert parent.returncode == status
    assert_nothing_is_left(place, url, memory)


@pytest.mark.parametrize("milliseconds", [150, 1500])
def test_embedded_control_plane_leaves_nothing_behind_when_the_parent_dies_in_the_start(
    unprepared_place: Place, milliseconds: int
) -> None:
    """A77."""
    source = f"""
import os, signal, threading
import gpusched
threading.Timer({milliseconds / 1000}, os.kill, (os.getpid(), signal.SIGKILL)).start()
with gpusched.local(gpus="1:A100:40960:8"):
    signal.pause()
"""
    parent = unprepared_place.parent(source)
    assert parent.wait(60) == -signal.SIGKILL
    assert_nothing_is_left(unprepared_place)


def test_embedded_control_plane_removes_the_files_of_a_killed_supervisor(place: Place) -> None:
    """A77: if the supervisor itself is killed, its parts end at once, and the next start removes its files."""
    parent = place.parent(BUSY.replace("{ending}", "signal.pause()"))
    assert parent.stdout is not None
    assert parent.stdout.readline() and parent.stdout.readline() == "running\n"
    [supervisor] = [
        pid for pid in place.processes() if b"embedded_machine" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(supervisor, signal.SIGKILL)
    parent.kill()
    parent.wait(30)
    parent.stdout.close()
    wait_for(lambda: not place.processes(), 60, "all processes to end")
    assert place.files()
    following = place.parent(BUSY.replace("{ending}", "pass"))
    following.communicate("end\n", 60)
    assert following.returncode == 0
    assert_nothing_is_left(place)


def test_embedded_control_plane_outlives_the_exit_of_a_fork(place: Place) -> None:
    """A process that the block forked leaves the block, too, but does not stop its parent's control plane."""
    source = """
import os
import gpusched
with gpusched.local(gpus=["1:A100:40960:8", "2:H100:81920:4"], settings={"min_runtime_seconds": 7}) as client:
    pid = os.fork()
    if pid:
        assert os.waitpid(pid, 0)[1] == 0
        assert client.status().total_gpus == 16
        assert client.policy().min_runtime_seconds == 7
if not pid:
    os._exit(0)
"""
    parent = place.parent(source)
    assert parent.wait(60) == 0
    assert_nothing_is_left(place)


def test_embedded_control_plane_refuses_a_malformed_fleet() -> None:
    import gpusched
    from gpusched.client import GpuschedError

    with pytest.raises(GpuschedError, match="NODES:MODEL:GPU_MEMORY_MB:GPUS"):
        gpusched.local(gpus="A100")
    with pytest.raises(GpuschedError, match="at least 1"), gpusched.local(gpus="0:A100:40960:8"):
        pass
    with (
        pytest.raises(GpuschedError, match="GPUSCHED_TICK_SECONDS"),
        gpusched.local("1:A100:40960:8", settings={"tick_seconds": "soon"}),
    ):
        pass
