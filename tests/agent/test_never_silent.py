"""Whatever a part of the agent raises, its node reports again within 5 s, or the process exits non-zero with the
reason, and no job of it runs twice (A41). Each await and thread call of the package raises, once and always."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpusched.agent import processes, supervision, threads
from gpusched.protocol.streams import WINDOW_BYTES
from tests.agent.conftest import DEFAULTS, ROOT
from tests.agent.injection import Case, as_line, machine
from tests.agent.socket_control import SocketControl
from tests.waiting import wait_for

pytestmark = pytest.mark.long

SECONDS = 5.0
AT_ONCE = 6
PARTS = 3
DEVICE = machine().readings(set[str])[0].uuid
# A program that echoes, for streams.
ECHO = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection = listener.accept()[0]
    while data := connection.recv(100):
        connection.sendall(data)
"""
RAN = 'echo ran >> "$0"; echo printed; exit 3'


class Agents:
    """The process that forks agents with probes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GPUSCHED_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.agent.injection"], cwd=ROOT, env={**inherited, **DEFAULTS},
            stdin=subprocess.PIPE, text=True,
        )  # fmt: skip

    def fork(self, case: Case) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(as_line(case))
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


class Stage:
    """An agent, its control plane, and a job that records each of its runs."""

    def __init__(
        self, agents: Agents, folder: Path, control: SocketControl, sites: tuple[str, ...], **options: str
    ) -> None:
        self.agents, self.folder, self.control = agents, folder, control
        self.scenario, self.always = options["scenario"], options.get("times") == "always"
        control.has_numbers = self.scenario != "two heads"
        urls = control.url if control.has_numbers else f"{control.url},http://127.0.0.1:1"
        self.case = Case(
            str(folder), urls, sites, options.get("error", "RuntimeError"), self.always, self.scenario == "stop"
        )
        folder.mkdir(parents=True)
        self.key = ""

    def start(self) -> None:
        for name in ("pid", "exit"):
            (self.folder / name).unlink(missing_ok=True)
        self.agents.fork(self.case)

    def arm(self) -> None:
        (self.folder / "armed").touch()

    def disarm(self) -> None:
        (self.folder / "armed").unlink(missing_ok=True)

    def order_jobs(self) -> None:
        """Order a job that fails with its GPU, and one with a limit and a signal that is stopped later. The server misses
        the end of a job of which the agent knows nothing."""
        self.control.missing = ["9.1.0"]
        self.key = self.control.run("sh", "-c", RAN, str(self.folder / "ran"), device_uuids=[DEVICE])
        lasting = self.control.run("sh", "-c", 'trap "" USR1; exec sleep 60', job=2)
        self.control.limit(lasting, 1, 1000)
        self.control.signal(lasting, 1, "USR1")

    def reports(self) -> int:
        return len(self.control.syncs)

    def exit_code(self) -> int | None:
        return int((self.folder / "exit").read_text()) if (self.folder / "exit").exists() else None

    def fired(self) -> list[str]:
        path = self.folder / "fired"
        return path.read_text().splitlines() if path.exists() else []

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace") if (self.folder / "log").exists() else ""

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.exit_code() is None and (self.folder / "pid").exists():
            os.kill(int((self.folder / "pid").read_text()), number)

    def wait(self, is_met: Callable[[], object], seconds: float, event: str) -> None:
        try:
            wait_for(is_met, seconds, event, pause=0.02)
        except TimeoutError as error:
            raise AssertionError(f"{self.case}: {error}\n{self.log()[-6000:]}") from None

    def play(self) -> None:
        """Run the scenario after the agent's first report: jobs, and the failures that name the scenario."""
        self.control.refusals = 2 * (self.scenario in ("refused", "refused by http"))
        self.control.is_refusing_logs = self.scenario == "logs refused"
        self.control.is_dropping_logs = self.scenario == "logs dropped"
        self.order_jobs()
        if self.scenario in ("rotated", "rotated by http"):
            self.control.ask_for_credential()
        if self.scenario == "stop":
            self.wait(lambda: "2.1.0" in self.control.started or self.fired(), 30, "the start")
            self.kill(signal.SIGTERM)
        if self.scenario == "streams":
            with socket.create_server(("127.0.0.1", 0)) as probe:
                port = probe.getsockname()[1]
            key = self.control.run(sys.executable, "-S", "-c", ECHO, str(port), job=3)
            self.wait(lambda: self.echoes(key, port) or self.fired(), 30, "a stream")

    def echoes(self, key: str, port: int) -> bool:
        """Try a stream; it may be refused, or hang where an error is injected."""
        if key not in self.control.started:
            return False
        self.control.open_stream(key, socket="absent")
        stream = self.control.open_stream(key, port=port)
        end = stream.endpoint

        def is_decided() -> bool:
            with stream.lock:
                if end.room == WINDOW_BYTES:
                    end.write(b"hello")
            return bool(end.available or end.over or self.fired())

        with suppress(TimeoutError):
            wait_for(is_decided, 2)
        del self.control.streams[end.stream_id]
        return bool(end.available)

    def finish(self) -> None:
        """Without injected errors the job ends, having run once, and so does the agent. A job that was stopped with its
        agent may have ended before its first instruction."""
        self.control.is_refusing_logs = self.control.is_dropping_logs = False
        self.wait(lambda: self.key in self.control.ended, 30, "the end of the job")
        ran = self.folder / "ran"
        runs = ran.read_text() if ran.exists() else ""
        was_stopped = any(end.reason == "agent_stopped" for end in self.control.ended[self.key])
        assert runs == "ran\n" or (was_stopped and not runs), (
            f"{self.case}: ran {runs!r}: {self.control.ended[self.key]}\n{self.log()[-6000:]}"
        )
        others = ["2.1.0", *(["3.1.0"] if "3.1.0" in self.control.orders else [])]
        for key in others:
            self.control.stop(key, grace_seconds=0)
        self.wait(lambda: all(key in self.control.ended for key in others), 30, "the end of the other jobs")


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    running = Agents(tmp_path_factory.mktemp("agents"))
    yield running
    running.close()


@contextmanager
def staged(agents: Agents, name: str, sites: tuple[str, ...], **options: str) -> Iterator[Stage]:
    """A stage of which nothing is left."""
    with SocketControl() as control:
        control.has_socket = "http" not in options["scenario"]
        stage = Stage(agents, agents.folder / name, control, sites, **options)
        try:
            yield stage
        finally:
            stage.wait((stage.folder / "pid").exists, 20, "the agent")
            stage.kill()
            stage.wait(lambda: stage.exit_code() is not None, 20, "the agent's end")
            for spec in stage.folder.glob("agent/nodes/*/ranks/*/spec.json"):
                scope = json.loads(spec.read_text())["environment"]["GPUSCHED_SCOPE"]
                processes.signal_all(processes.strays(scope), signal.SIGKILL)
            shutil.rmtree(stage.folder, ignore_errors=True)


SCENARIOS = (
    "socket",
    "http",
    "refused",
    "refused by http",
    "logs refused",
    "logs dropped",
    "stop",
    "failing",
    "streams",
    "rotated",
    "rotated by http",
    "two heads",  # the first writes no message, and the other is away
)
# In this scenario a part fails once, so that the sites of restarting it are passed.
FAILING = "node.Node.keep_polling#1"


def survey(agents: Agents, scenario: str) -> tuple[set[str], set[str], set[str]]:
    """Sites of the package; of those, the ones passed at the start, and the ones passed after that."""
    sites = (FAILING,) if scenario == "failing" else ()
    with staged(agents, f"survey-{scenario}", sites, scenario=scenario) as stage:
        stage.start()
        stage.wait(lambda: stage.reports() > 2, 30, "reports")
        stage.arm()
        stage.play()
        if scenario == "stop":
            stage.wait(lambda: stage.exit_code() is not None, 30, "the agent's end")
            assert stage.exit_code() == 0, stage.log()
        else:
            stage.wait(lambda: stage.key in stage.control.ended, 30, "the end of the job")
            reports_before = stage.reports()
            stage.wait(lambda: stage.reports() > reports_before + 20, 30, "more reports")
            stage.finish()
            reports_before = stage.reports()
            stage.wait(lambda: stage.reports() > reports_before + 10, 30, "more reports")
        hits = (stage.folder / "hit").read_text().splitlines()
        every = set(json.loads((stage.folder / "sites.json").read_text()))
    late = {hit.removeprefix("! ") for hit in hits if hit.startswith("! ")}
    return every, {hit for hit in hits if not hit.startswith("! ")} - late, late


def plan(agents: Agents) -> tuple[list[tuple[str, str, bool]], set[str]]:
    """(site, scenario, whether it is passed at the start alone) of each site, and the sites that nothing passes."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        surveys = dict(zip(SCENARIOS, pool.map(lambda name: survey(agents, name), SCENARIOS), strict=True))
    every, sites_found = set[str](), dict[str, tuple[str, str, bool]]()
    for scenario, (sites, early, late) in surveys.items():
        every |= {site for site in sites if "doctor._asked_driver" not in site}  # of a command beside the agent
        for is_early, passed in ((False, late), (True, early)):
            for site in passed & sites:
                sites_found.setdefault(site, (site, scenario, is_early))
    return sorted(sites_found.values()), every - set(sites_found)


def inject(agents: Agents, site: str, scenario: str, is_early: bool, error: str, times: str) -> None:
    name = f"{site.replace('#', '-')}-{scenario}-{error}-{times}"
    sites = (FAILING, site) if scenario == "failing" else (site,)
    with staged(agents, name, sites, scenario=scenario, error=error, times=times) as stage:
        if is_early:
            stage.arm()
        stage.start()
        if not is_early:
            stage.wait(lambda: stage.reports() > 2 or stage.exit_code() is not None, 30, "reports")
            stage.arm()
        stage.play()
        stage.wait(lambda: site in stage.fired(), 30, "the injection")
        reports = stage.reports()
        # The first may have been on its way; an error that comes always must not let through one alone.
        enough = reports + (4 if times == "always" else 2)
        is_heard = lambda: stage.reports() >= enough or stage.exit_code() is not None  # noqa: E731
        stage.wait(is_heard, SECONDS, "a report or an exit")
        code = stage.exit_code()
        if scenario == "stop":
            stage.wait(lambda: stage.exit_code() is not None, SECONDS, "the end of an agent that was stopped")
        elif code is not None:
            assert code != 0, f"{stage.case} exits with 0\n{stage.log()[-6000:]}"
        if code:
            assert f"injected at {site}" in stage.log(), f"{stage.case} exits without the reason"
        stage.disarm()
        if stage.exit_code() is not None:
            reports = stage.reports()
            stage.start()
            stage.wait(lambda: stage.reports() > reports, 30, "a report of the next agent")
        stage.finish()


def failure(agents: Agents, case: tuple[str, str, bool, str, str]) -> BaseException | None:
    try:
        inject(agents, *case)
    except (AssertionError, OSError) as error:
        return error
    return None


@pytest.fixture(scope="module")
def sites(agents: Agents) -> list[tuple[str, str, bool]]:
    passed, unreached = plan(agents)
    assert not unreached, "no scenario of this test passes these; add one that does"
    return passed


# In parts, so that none takes minutes.
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("times", ["once", "always"])
@pytest.mark.timeout(400)
def test_node_reports_again_or_agent_exits_with_the_reason_whatever_raises(
    agents: Agents, sites: list[tuple[str, str, bool]], times: str, part: int
) -> None:
    """A41. Of errors that come once, every other one is an unrequested cancellation.

    Six agents at once on a busy machine may need longer than 5 s, so a case that fails is repeated alone.
    """
    cases = [
        (*site, "CancelledError" if times == "once" and number % 2 else "RuntimeError", times)
        for number, site in enumerate(sites)
    ][part::PARTS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = [pool.submit(inject, agents, *case) for case in cases]
    failures = [(case, outcome.exception()) for case, outcome in zip(cases, outcomes, strict=True)]
    late = [(case, failure(agents, case)) for case, error in failures if error is not None]
    broken = [f"{case}: {error!r}" for case, error in late if error is not None]
    assert not broken, f"{len(broken)} of {len(cases)}:\n" + "\n".join(broken)


def test_agent_exits_when_its_own_part_raises_what_a_broken_network_raises(agents: Agents) -> None:
    """A41. Without room for one more file a message raises an OSError: no reason to try the server for ever."""
    inject(agents, "link._send#1", "socket", False, "OSError", "always")


def test_agent_needs_no_thread_that_was_not_started_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A41. A job can use up the processes of the machine: then no thread can be started any more."""
    pool = threads.start(3)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def work() -> list[str]:
        asyncio.get_running_loop().set_default_executor(pool)
        lane, together = threads.Lane(), threading.Barrier(3)
        return await asyncio.gather(
            *(asyncio.to_thread(lambda: (together.wait(5), "beside")[1]) for _ in range(2)),
            lane.run(lambda: (together.wait(5), "first")[1]),
            lane.run(lambda: "second"),
        )

    monkeypatch.setattr(threading.Thread, "start", refuse)
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(work()) == ["beside", "beside", "first", "second"]
    loop.close()


def test_start_fails_at_once_when_threads_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A41."""
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def refuse(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        threads.start(4)
    assert len(started) == 2


def test_lane_waits_for_an_abandoned_piece() -> None:
    """A conversation that breaks while its orders are obeyed must not let the next one obey beside it."""
    order: list[str] = []
    entered, go = threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        go.wait(5)
        order.append("slow")

    async def work() -> None:
        lane = threads.Lane()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lane.run(slow), 0.1)
        following = asyncio.create_task(lane.run(lambda: order.append("next")))
        await asyncio.to_thread(entered.wait, 5)
        go.set()
        await following

    asyncio.run(work())
    assert order == ["slow", "next"]


def test_report_deadlines_leave_five_seconds() -> None:
    """A41. The test above runs them faster. A conversation that fails always is given up in time, and one that failed
    once begins again in time, also if closing its socket takes the second that it may."""
    assert supervision.REPORT_SECONDS + 0.5 <= SECONDS
    assert supervision.MAX_PAUSE_SECONDS + 1.0 + 0.5 <= supervision.REPORT_SECONDS
