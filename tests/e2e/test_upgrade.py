"""Upgrade from the previous release while jobs flow (A83): one part after the other, each beside parts of the other version."""

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
import pytest

from gpusched.client import Client, Job
from tests.e2e.test_migrations import says
from tests.system.chaos import JOBS, TIMES, Flow, is_over, moments, wrongly_charged
from tests.system.rolling import NoHistoryError, Rolling, previous_release, wait_or_kill
from tests.system.stack import A100, ROOT
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(400)]
TIMEOUT_SECONDS = 60.0
AGENTS = ("first", "second")
SUBMITS_PER_SECOND = 12
# What people do with a client: it prints the code with which a job of it ended.
ROUND = """
from gpusched.client import Client
client = Client()
job = client.submit(["sh", "-c", "echo from the job; exit 5"], gpus=1)
ended = client.wait(job.id, timeout=60)
assert "from the job" in client.logs(job.id).text
assert job.id in {one.id for one in client.list(limit=10_000)}
sleeping = client.submit(["sleep", "60"], gpus=1)
client.cancel(sleeping.id)
assert client.status().online_nodes >= 3
print(ended.exit_code)
"""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("previous")
    place.chmod(0o755)
    try:
        return previous_release(place)
    except NoHistoryError as error:
        pytest.skip(f"needs the history, which a shallow clone or an archive of the source lacks: {error}")


@pytest.fixture
def stack(old: Path) -> Iterator[Rolling]:
    with Rolling(old, heartbeat_seconds=0.5) as running:
        running.run_part("web", old, key="second web")
        for name in AGENTS:
            start_agent(running, name, old)
        client = running.client()
        wait_for(lambda: client.status().online_nodes == 2 * len(AGENTS), TIMEOUT_SECONDS, "the nodes")
        yield running


def start_agent(stack: Rolling, name: str, root: Path) -> None:
    """Start an agent whose jobs outlive it, as on a real node."""
    stack.agent("--pretend", f"2:{A100}:81920:8:128:1048576", name=name, own_jobs=False, root=root)


def replace_agent(stack: Rolling, name: str, root: Path) -> None:
    """An agent of the previous release may lose its cancellation, and then does not end on SIGTERM."""
    agent = stack.agents.pop(0)
    agent.send_signal(signal.SIGTERM)
    if root == ROOT:
        wait_or_kill(agent)
    else:
        agent.wait(TIMEOUT_SECONDS)
    start_agent(stack, name, root)


def use(stack: Rolling, root: Path) -> None:
    """Use the client of the version at `root`."""
    variables = {"GPUSCHED_URL": stack.url, "GPUSCHED_TOKEN": stack.token(), "GPUSCHED_TENANT": "default"}
    done = subprocess.run([sys.executable, "-c", ROUND], cwd=root, env={**stack.environment(), **variables},
                          capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "5\n"


def kill_and_repeat_migrations(stack: Rolling) -> None:
    """Kill the migration in the middle: another session holds a table that it waits for. Its second run completes it."""
    with psycopg.connect(stack.database_url()) as holder:
        holder.execute("LOCK TABLE serving_endpoint IN ACCESS SHARE MODE")
        running = subprocess.Popen([sys.executable, "manage.py", "migrate"], cwd=ROOT, env=stack.environment(),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
        assert running.stderr is not None
        wait_for(partial(says, running.stderr, "trying again"), TIMEOUT_SECONDS, "it to wait for the table")
        running.kill()
        running.wait()
    stack.manage(ROOT, "migrate")


class Flowing:
    """Wait for progress of the flow, and of the jobs in it."""

    def __init__(self, flow: Flow, client: Client) -> None:
        self._flow, self._client = flow, client

    def more(self) -> None:
        """Wait until jobs that are submitted from now on complete."""
        last = max(self._flow.acknowledged)
        wait_for(lambda: self._completed_since(last) >= 5, TIMEOUT_SECONDS, "later jobs to complete", pause=0.2)

    def _completed_since(self, last: int) -> int:
        return sum(job.id > last for job in self._client.list(state=("completed",), limit=20))


class Steady:
    """Submits jobs in a thread by a client that knows both web servers. The first refusal ends it, and fails the test."""

    def __init__(self, stack: Rolling) -> None:
        self.jobs: list[int] = []
        self._client = Client(stack.urls, stack.token(), tenant="default")
        self._has_ended = threading.Event()
        self._refusals: list[Exception] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._has_ended.set()
        self._thread.join()
        assert self._refusals == []

    def _run(self) -> None:
        try:
            while not self._has_ended.wait(0.3):
                self.jobs.append(self._client.submit(["true"], gpus=1).id)
        except Exception as refusal:  # noqa: BLE001
            self._refusals.append(refusal)

    def more(self) -> None:
        """Wait until several more jobs are acknowledged."""
        enough = len(self.jobs) + 5
        wait_for(lambda: self._refusals or len(self.jobs) >= enough, TIMEOUT_SECONDS, "more jobs of the client")

    def assert_completed(self) -> None:
        assert {self._client.wait(job, timeout=TIMEOUT_SECONDS).attempt for job in self.jobs} == {1}


def started(client: Client, job: Job) -> bool:
    return client.get(job.id).state == "running"


def test_upgrade_and_rollback_under_load_lose_and_repeat_no_job(stack: Rolling, old: Path) -> None:
    """A83, A57. The documented order: migrations, web server, workers, agents; then back. What runs from before until
    after keeps running, and its exit code is known."""
    client, ran = stack.client(), stack.directory / "ran"
    until = f"echo $GPUSCHED_JOB_ID.$GPUSCHED_ATTEMPT >> {ran}.long; while [ -e {ran}.long ] && [ ! -e {ran}.go ]; do sleep 0.2; done; exit 7"
    command = ["sh", "-c", until]
    long = [client.submit(command, gpus=1), client.submit(command, gpus=2, gang_scheduling=True, ranks=2)]
    for job in long:
        wait_for(partial(started, client, job), TIMEOUT_SECONDS, "the long jobs to run")
    flow = Flow(stack, ran, jobs=10_000, seconds=10_000 / SUBMITS_PER_SECOND, rng=random.Random(1))
    try:
        _upgrade(stack, old, flow)
        _roll_back(stack, old, flow)
    finally:
        acknowledged = flow.end()
    Path(f"{ran}.go").touch()
    wait_for(partial(is_over, stack), TIMEOUT_SECONDS, "all jobs to end", pause=0.2)
    ends = [client.get(job.id) for job in long]
    assert [(job.exit_code, job.attempt) for job in ends] == [(7, 1)] * 2
    begun = Counter(Path(f"{ran}.long").read_text().split())
    assert begun == {f"{long[0].id}.1": 1, f"{long[1].id}.1": 2}
    assert flow.bad == []
    _assert_nothing_lost_or_repeated(stack, acknowledged, ran)


def _upgrade(stack: Rolling, old: Path, flow: Flow) -> None:
    flowing = Flowing(flow, stack.client())
    wait_for(lambda: len(flow.acknowledged) > 5, TIMEOUT_SECONDS, "the flow to begin")
    use(stack, ROOT)  # a newer client
    kill_and_repeat_migrations(stack)
    flowing.more()  # old parts on the new tables
    replace_web_servers(stack, old)
    flowing.more()  # old workers and agents with the new web servers
    stack.run_part("cycles", ROOT, key="second worker")
    flowing.more()  # both workers want to lead
    stack.stop_part("cycles")
    stack.replace("housekeeping", ROOT)
    flowing.more()  # old agents with the new server
    for name in AGENTS:
        replace_agent(stack, name, ROOT)
        flowing.more()
    use(stack, old)


def replace_web_servers(stack: Rolling, old: Path) -> None:
    """Replace one web server after the other. Their clients are refused nothing, also while the versions differ."""
    with Steady(stack) as steady:
        steady.more()
        stack.replace("web", ROOT)
        steady.more()
        use(stack, old)  # an older client
        stack.replace("web", ROOT, key="second web")
        steady.more()
    steady.assert_completed()


def _roll_back(stack: Rolling, old: Path, flow: Flow) -> None:
    """Agents first: a server takes what agents of its own or an older version say. The tables stay as they are."""
    flowing = Flowing(flow, stack.client())
    for name in AGENTS:
        replace_agent(stack, name, old)
    stack.stop_part("second worker")
    stack.run_part("cycles", old)
    stack.manage(old, "bootstrap")  # as `up` does
    stack.replace("web", old)
    flowing.more()


def _assert_nothing_lost_or_repeated(stack: Rolling, acknowledged: list[int], ran: Path) -> None:
    lines = [line.split() for line in ran.read_text().splitlines()]
    times, begun = moments(lines), Counter(attempt for mark, attempt, _ in lines if mark == "begin")
    with psycopg.connect(stack.database_url()) as database:
        states: dict[int, str] = dict(database.execute(JOBS, [acknowledged]).fetchall())
        charged = database.execute(TIMES).fetchall()
        held = database.execute("SELECT count(*) FROM nodes_allocation").fetchone()
    assert states == dict.fromkeys(acknowledged, "completed")
    assert set(begun.values()) == {1}
    assert {int(attempt.split(".")[0]) for attempt in begun} == set(acknowledged)
    walls: Counter[tuple[int, int]] = Counter()
    for job, number, wall, _ in charged:  # each rank has a row
        walls[job, number] += wall
    assert {(job, number): ledger for job, number, _, ledger in charged} == pytest.approx(walls, abs=0.001)
    assert wrongly_charged(charged, times) == {}
    assert held == (0,)
