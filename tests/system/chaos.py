"""A storm: kills agents, launchers, web, workers and PostgreSQL at random, restarts PostgreSQL and raises exceptions in
agents while short jobs flow. Then counts jobs that were lost, run twice or stuck, processes left behind, errors of the
ledger, and answers of 5xx other than 503."""

import random
import signal
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg

from gpusched.agent.processes import signal_all
from gpusched.client.errors import GpuschedError
from tests.processes import processes_naming, read
from tests.system.stack import A100, Stack
from tests.waiting import until_random_moment, wait_for

AGENTS, NODES_EACH = 2, 2
# An agent stores its credential in its directory, so it needs a token only until it has joined.
_NONE = "none"
OPEN = ("pending", "scheduled", "running", "stopping")
RESTART, ONE = "restart of PostgreSQL", "one process below `up`"
# Single parts come more often than the whole control plane ("").
VICTIMS = (
    "agent",
    "agent",
    "launcher",
    "launcher",
    "daphne",
    "worker cycles",
    "worker housekeeping",
    "postgres",
    ONE,
    ONE,
    RESTART,
    RESTART,
    "",
)
READS = ("/api/v1/jobs?limit=1", "/api/v1/queue", "/api/v1/nodes", "/metrics", "/ready", "/login/")
# The end twice: the later time is after the first write, in which a busy disk may hold the process for a second.
SCRIPT = """
echo begin $GPUSCHED_JOB_ID.$GPUSCHED_ATTEMPT $(date +%s.%N) >> "$0"
sleep "$1"
for write in 1 2; do echo end $GPUSCHED_JOB_ID.$GPUSCHED_ATTEMPT $(date +%s.%N) >> "$0"; done
"""


@dataclass
class Outcome:
    """The outcome of a storm. The first eight must be 0. `bad_answers`: 5xx other than 503, and 503 without
    `Retry-After`. `clean_exits`: agents that ended with exit code 0."""

    lost: int
    not_completed: int
    run_twice: int
    orphans: int
    devices_held: int
    ledger_wrong: int
    bad_answers: int
    clean_exits: int
    jobs: int
    kills: int
    restarts_of_postgresql: int
    exceptions_in_agents: int
    agents_started_again: int
    answers_503: int
    reruns: str
    ledger_off_by_most_seconds: float
    seconds: float

    @property
    def failures(self) -> int:
        counts = (self.lost, self.not_completed, self.run_twice, self.orphans, self.devices_held, self.ledger_wrong)
        return sum(counts) + self.bad_answers + self.clean_exits


def storm(jobs: int, seconds: float, seed: int, faults_every: float) -> Outcome:
    """Submit evenly over the time and kill a part every few seconds; wait for all jobs, and count. Each agent raises an
    exception every `faults_every` seconds on average."""
    began = time.monotonic()
    with storm_stack(faults_every) as agents, tempfile.TemporaryDirectory(prefix="gpusched-chaos-") as name:
        stack, ran = agents.stack, Path(name) / "ran"
        flow = Flow(stack, ran, jobs, seconds, random.Random(seed))
        kills = _kill_until(agents, flow, random.Random(seed + 1))
        acknowledged = flow.finish()
        wait_for(lambda: is_over(stack), 180, "all jobs to end", pause=0.5)
        orphans = _orphans(stack)
        agents.close()
        return _outcome(agents, flow, acknowledged, ran, orphans, kills, time.monotonic() - began)


class Flow:
    """Submits jobs one after the other over a few connections, each until it is acknowledged."""

    def __init__(self, stack: Stack, ran: Path, jobs: int, seconds: float, rng: random.Random) -> None:
        self.stack, self.ran = stack, ran
        self.acknowledged: list[int] = []
        self._lengths = [round(rng.uniform(0.1, 1.0), 2) for _ in range(jobs)]
        self._pause = 4 * seconds / jobs
        self.statuses: Counter[int] = Counter()
        self.bad: list[str] = []
        self._has_ended = threading.Event()
        self.threads = [threading.Thread(target=self._work) for _ in range(4)]
        self._reader = threading.Thread(target=self._read)
        for thread in (*self.threads, self._reader):
            thread.start()

    def is_over(self) -> bool:
        return not any(thread.is_alive() for thread in self.threads)

    def end(self) -> list[int]:
        """Submit no more jobs than now, and finish."""
        self._lengths.clear()
        return self.finish()

    def finish(self) -> list[int]:
        for thread in self.threads:
            thread.join()
        self._has_ended.set()
        self._reader.join()
        return self.acknowledged

    def _work(self) -> None:
        headers = {"Authorization": f"Bearer {self.stack.token()}"}
        with httpx.Client(base_url=self.stack.url, headers=headers, timeout=10) as http:
            while True:
                try:
                    length = self._lengths.pop()
                except IndexError:
                    return
                due = time.monotonic() + self._pause
                self.acknowledged.append(self._submit(http, length))
                self._has_ended.wait(max(0.0, due - time.monotonic()))

    def _submit(self, http: httpx.Client, length: float) -> int:
        body = {"tenant": "default", "command": ["sh", "-c", SCRIPT, str(self.ran), str(length)], "gpu_count": 1}
        key = {"Idempotency-Key": uuid.uuid4().hex}
        while True:
            try:
                answer = self._noted(http.post("/api/v1/jobs", json=body, headers=key))
                if answer.status_code == 201:
                    return int(answer.json()["job_id"])
                if answer.status_code < 500:
                    raise RuntimeError(answer.text)
            except httpx.HTTPError:
                pass  # not acknowledged: the same key again
            self._has_ended.wait(0.1)

    def _read(self) -> None:
        headers = {"Authorization": f"Bearer {self.stack.token()}"}
        with httpx.Client(base_url=self.stack.url, headers=headers, timeout=10) as http:
            while not self._has_ended.wait(0.1):
                for path in READS:
                    with suppress(httpx.HTTPError):
                        self._noted(http.get(path))

    def _noted(self, answer: httpx.Response) -> httpx.Response:
        self.statuses[answer.status_code] += 1
        if answer.status_code >= 500 and not (answer.status_code == 503 and "Retry-After" in answer.headers):
            self.bad.append(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text[:300]}")
        return answer


class Agents:
    """The agents of a stack, whose jobs outlive them. One that ends is restarted, as systemd does."""

    def __init__(self, stack: Stack, faults_every: float) -> None:
        self.stack = stack
        self.started_again = self.clean_exits = 0
        self._faults_every, self._token = faults_every, _NONE
        self._lock = threading.Lock()
        self._has_ended = threading.Event()
        self._keeper = threading.Thread(target=self._restart_ended)

    def start(self) -> None:
        self._token = self.stack.client().join_token().token
        for number in range(AGENTS):
            self._start(number)
        online = AGENTS * NODES_EACH
        self._keeper.start()
        wait_for(lambda: self.stack.client().status().online_nodes >= online, 120, f"{online} nodes online")
        self._token = _NONE

    @property
    def faults(self) -> Path:
        return self.stack.directory / "faults"

    def kill(self, number: int, seconds: float) -> None:
        """Kill an agent, and restart it after `seconds`."""
        with self._lock:
            agent = self.stack.agents[number]
            agent.kill()
            agent.wait()
            self._has_ended.wait(seconds)
            self._replace(number)

    def close(self) -> None:
        self._has_ended.set()
        if self._keeper.is_alive():
            self._keeper.join()

    def _restart_ended(self) -> None:
        while not self._has_ended.wait(0.5):
            with self._lock:
                for number in range(AGENTS):
                    code = self.stack.agents[number].poll()
                    if code is not None:
                        self.started_again += 1
                        self.clean_exits += code == 0
                        self._replace(number)

    def _replace(self, number: int) -> None:
        self._start(number)
        self.stack.agents[number] = self.stack.agents.pop()

    def _start(self, number: int) -> None:
        fleet = f"{NODES_EACH}:{A100}:81920:8:128:1048576"
        variables = {"FAULTS_EVERY_SECONDS": str(self._faults_every), "FAULTS_FILE": str(self.faults)}
        self.stack.agent(
            "--pretend", fleet, name=f"storm{number}", token=self._token, own_jobs=False,
            module="tests.system.faulty_agent", variables=variables,
        )  # fmt: skip


@contextmanager
def storm_stack(faults_every: float) -> Iterator[Agents]:
    with Stack() as stack:
        agents = Agents(stack, faults_every)
        try:
            agents.start()
            yield agents
        finally:
            agents.close()
            for agent in stack.agents:
                agent.kill()
            signal_all(processes_of_jobs(stack), signal.SIGKILL)


def _kill_until(agents: Agents, flow: Flow, rng: random.Random) -> Counter[str]:
    """Kill victims until the flow ends; return how often each was killed."""
    kills: Counter[str] = Counter()
    while not flow.is_over():
        until_random_moment(rng, 1.0, 4.0)
        victim = rng.choice(VICTIMS)
        kill_part(agents, victim, rng)
        kills[victim] += 1
    return kills


def kill_part(agents: Agents, victim: str, rng: random.Random) -> None:
    number, stack = rng.randrange(AGENTS), agents.stack
    if victim == "agent":
        agents.kill(number, rng.uniform(0.0, 2.0))
    elif victim == RESTART:
        stack.restart_database()
    elif victim == "launcher":
        signal_all(_launchers(stack.agents[number].pid), signal.SIGKILL)
    elif victim == ONE:
        signal_all(rng.sample(stack.pids("")[1:], 1), signal.SIGKILL)
    elif victim:
        stack.kill(victim)
    else:
        stack.kill("")
        assert stack.up is not None
        stack.up.wait()
        stack.start()


def _launchers(agent: int) -> list[int]:
    """Return the launchers of an agent, which fork its supervisors: only their parent distinguishes them from those."""
    threads = Path(f"/proc/{agent}/task").glob("*/children")
    children = [int(pid) for thread in threads for pid in read(str(thread)).split()]
    return [pid for pid in children if b"launcher_process.main" in read(f"/proc/{pid}/cmdline")]


def is_over(stack: Stack) -> bool:
    try:
        return not stack.client().list(state=OPEN, limit=1)
    except GpuschedError:
        return False


def _orphans(stack: Stack) -> int:
    """Return how many processes of jobs still exist a while after all jobs have ended."""
    with suppress(TimeoutError):
        wait_for(lambda: not processes_of_jobs(stack), 10, "the processes of jobs to end", pause=0.2)
    return len(processes_of_jobs(stack))


def processes_of_jobs(stack: Stack) -> list[int]:
    """Return the processes of jobs and their supervisors, by their working directory."""
    mark = str(stack.directory / "storm").encode()
    excluded = {agent.pid for agent in stack.agents}
    excluded |= {pid for agent in stack.agents for pid in _launchers(agent.pid)}
    return [pid for pid in processes_naming(mark) if pid not in excluded]


JOBS = "SELECT id, state FROM jobs_job WHERE id = ANY(%s)"
_RERUNS = "SELECT reason, count(*) FROM jobs_attempt WHERE reason <> 'completed' GROUP BY 1 ORDER BY 1"
TIMES = """
    SELECT s.job_id, s.number, extract(epoch FROM s.ended_at - s.started_at)::float8,
           (SELECT sum(u.gpus * extract(epoch FROM u.ended_at - u.started_at))::float8 FROM tenants_usageentry u
             WHERE u.job_id = s.job_id AND u.attempt = s.number)
      FROM nodes_assignment s WHERE s.started_at IS NOT NULL
"""


def _outcome(
    agents: Agents, flow: Flow, acknowledged: list[int], ran: Path, orphans: int, kills: Counter[str], seconds: float
) -> Outcome:
    stack = agents.stack
    lines = [line.split() for line in ran.read_text().splitlines()]
    begun = Counter(attempt for mark, attempt, _ in lines if mark == "begin")
    times = moments(lines)
    ended = Counter(attempt.split(".")[0] for attempt, marks in times.items() if "end" in marks)
    with psycopg.connect(stack.database_url()) as database:
        states: dict[int, str] = dict(database.execute(JOBS, [acknowledged]).fetchall())
        held: Any = database.execute("SELECT count(*) FROM nodes_allocation").fetchone()
        charged = database.execute(TIMES).fetchall()
        reruns = database.execute(_RERUNS).fetchall()
    errors = [abs((ledger or 0.0) - wall) for _, _, wall, ledger in charged]
    return Outcome(
        lost=len(set(acknowledged) - states.keys()),
        not_completed=sum(state != "completed" for state in states.values()),
        run_twice=sum(count > 1 for count in begun.values()) + sum(count > 1 for count in ended.values()),
        orphans=orphans,
        devices_held=held[0],
        ledger_wrong=sum(error > 0.001 for error in errors) + len(wrongly_charged(charged, times)),
        jobs=len(set(acknowledged)),
        bad_answers=len(flow.bad),
        clean_exits=agents.clean_exits,
        kills=kills.total() - kills[RESTART],
        restarts_of_postgresql=kills[RESTART],
        exceptions_in_agents=read(str(agents.faults)).count(b"\n"),
        agents_started_again=agents.started_again,
        answers_503=flow.statuses[503],
        reruns=", ".join(f"{reason} {times}" for reason, times in reruns),
        ledger_off_by_most_seconds=max(errors, default=0.0),
        seconds=seconds,
    )


def moments(lines: list[list[str]]) -> dict[str, dict[str, float]]:
    """Return for each attempt the times of its first and its last line, by the job's own clock."""
    times: dict[str, dict[str, float]] = {}
    for mark, attempt, at in lines:
        times.setdefault(attempt, {})[mark] = float(at)
    return times


def wrongly_charged(charged: list[Any], times: dict[str, dict[str, float]]) -> dict[str, tuple[float, float]]:
    """Return the charge and the time between its lines of each attempt whose charge is less, or over a second more."""
    ledgers = {f"{job}.{number}": ledger or 0.0 for job, number, _, ledger in charged}
    spans = {attempt: marks["end"] - marks["begin"] for attempt, marks in times.items() if "end" in marks}
    charges = {attempt: (ledgers.get(attempt, 0.0), span) for attempt, span in spans.items()}
    return {attempt: (charge, span) for attempt, (charge, span) in charges.items() if not 0 <= charge - span <= 1.0}
