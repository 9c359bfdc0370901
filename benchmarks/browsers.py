"""500 browsers on the live feed while 200 nodes report twice a second: the latency of each change, and the cost.

A third watches the overview and the nodes, a third the queue, a third one job; all have the notices. Readings come as
the agents send them; about twice a second a node's note and a job's name change, and each carries the time just before
its commit, so a browser that reads it knows its age.

Rounds without and with browsers alternate, since a machine's speed changes within minutes. The worker's cycles, one a
second here, are compared over all rounds together."""

import asyncio
import json
import multiprocessing
import random
import statistics
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import psycopg
from msgspec.structs import replace
from websockets.asyncio.client import connect

from benchmarks.agents import _decode, cpu_seconds
from benchmarks.onlookers import Received, onlooking
from benchmarks.report import arguments, percentile, publish
from gpusched.agent.host.machine import PretendMachine
from gpusched.protocol.agent_messages import Reading
from tests.system.joining import SPEC, join
from tests.system.stack import ROOT, Stack

CHANGES_PER_SECOND, READS_PER_SECOND = 2, 2
PEOPLE, WAITING_JOBS = 50, 300


@dataclass(frozen=True)
class Measured:
    """Cores used by the web process and the database, and the duration of each cycle."""

    web_cores: float
    database_cores: float
    cycles_ms: list[float]

    @classmethod
    def of(cls, rounds: list["Measured"]) -> Self:
        """Return the mean of rounds of equal length."""
        return cls(
            statistics.mean(part.web_cores for part in rounds),
            statistics.mean(part.database_cores for part in rounds),
            [ms for part in rounds for ms in part.cycles_ms],
        )


# Sessions as a login makes them: 500 logins would take minutes of hashing.
_PEOPLE = """
import json, sys
from importlib import import_module
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from tenants.models import Membership, Tenant
store = import_module(settings.SESSION_ENGINE).SessionStore
default, keys = Tenant.objects.get(name="default"), []
teams = [Tenant.objects.create(name=f"team{n}") for n in range(4)]
for n in range(int(sys.argv[1])):
    user = User.objects.create(username=f"person{n}", is_superuser=n % 5 == 0)
    Membership.objects.create(user=user, tenant=default)
    Membership.objects.create(user=user, tenant=teams[n % 4])
    session = store()
    session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    session.create()
    keys.append(session.session_key)
print(json.dumps({"cookie": settings.SESSION_COOKIE_NAME, "keys": keys}))
"""


def main() -> None:
    options = arguments(__doc__ or "", browsers=500, nodes=200, seconds=20, rounds=6, webs=1)
    with Stack(web_processes=options.webs) as stack:
        client = stack.client()
        tomorrow = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86400))
        jobs = [client.submit(["true"], gpus=1, not_before=tomorrow).id for _ in range(WAITING_JOBS)]
        people = json.loads(django(stack, _PEOPLE, str(PEOPLE)).splitlines()[-1])
        token = client.join_token().token
        credentials = {name: join(stack.url, token, name) for name in map("node{:03d}".format, range(options.nodes))}
        stop = threading.Event()
        agents = multiprocessing.get_context("spawn").Process(target=report, args=(stack.url, credentials))
        agents.start()
        writer = threading.Thread(target=change, args=(stack.database_url(), jobs[0], stop))
        writer.start()
        try:
            time.sleep(5)
            without, during, received = list[Measured](), list[Measured](), list[Received]()
            for _ in range(options.rounds):
                without.append(measure(stack, options.seconds))
                with onlooking(stack.url, people, jobs[0], options.browsers, options.seconds) as results:
                    during.append(measure(stack, options.seconds))
                    received += results()
                time.sleep(5)
        finally:
            stop.set()
            writer.join()
            agents.terminate()
            agents.join()
    publish_figures(options, Measured.of(without), Measured.of(during), received)


def publish_figures(options: Any, without: Measured, during: Measured, received: list[Received]) -> None:
    ages = {kind: [age for part in received for age in part.ages[kind]] for kind in ("nodes", "queue", "job")}
    every = [age for of_kind in ages.values() for age in of_kind]
    connected, failed = (sum(getattr(part, name) for part in received) for name in ("connected", "failed"))
    # Each process reports once per round.
    seconds = options.seconds * options.rounds
    frames = sum(part.frames for part in received)
    publish(
        {
            "browsers": connected // options.rounds,
            "nodes": options.nodes,
            "told_p50_ms": percentile(every, 50) * 1000,
            "told_p99_ms": percentile(every, 99) * 1000,
            **{f"told_{kind}_p99_ms": percentile(of_kind, 99) * 1000 for kind, of_kind in ages.items()},
            "web_cores_without": without.web_cores,
            "web_cores": during.web_cores,
            "web_cores_of_browsers": during.web_cores - without.web_cores,
            "database_cores_of_browsers": during.database_cores - without.database_cores,
            "cycles": len(during.cycles_ms),
            "cycle_p50_ms_without": statistics.median(without.cycles_ms),
            "cycle_p50_ms": statistics.median(during.cycles_ms),
            "cycle_mean_ms_without": statistics.mean(without.cycles_ms),
            "cycle_mean_ms": statistics.mean(during.cycles_ms),
            "cycle_p90_ms_without": percentile(without.cycles_ms, 90),
            "cycle_p90_ms": percentile(during.cycles_ms, 90),
            "kib_per_browser_and_second": sum(part.bytes for part in received) / 1024 / connected / options.seconds,
            "messages_per_second": frames / seconds,
            "us_of_web_per_message": 1e6 * (during.web_cores - without.web_cores) * seconds / frames,
            "cores_of_the_browsers_themselves": sum(part.cores for part in received) / options.rounds,
        },
        options.json,
        options.browsers * options.rounds - connected + failed,
    )


def django(stack: Stack, script: str, *arguments: str) -> str:
    start = "import django; django.setup()\n"
    environment = {**stack.environment(), "DJANGO_SETTINGS_MODULE": "gpusched.settings"}
    result = subprocess.run(
        [sys.executable, "-c", start + script, *arguments], cwd=ROOT, env=environment, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    return result.stdout


def change(url: str, job_id: int, stop: threading.Event) -> None:
    """Change rows twice a second, with the notification after the commit, as services do. At random distances: cycles
    come once a second, and with equal distances either all or none of them would coincide with a change."""
    with psycopg.connect(url) as connection:
        [(node_id,)] = connection.execute("SELECT min(id) FROM nodes_node").fetchall()
        while not stop.wait(random.uniform(0.5, 1.5) / CHANGES_PER_SECOND):
            rows = (
                ("UPDATE nodes_node SET intent_note = %s WHERE id = %s", "nodes", node_id),
                ("UPDATE jobs_job SET name = %s WHERE id = %s", "jobs", job_id),
            )
            for sql, topic, row in rows:
                connection.execute(sql, [f"mark-{time.time():.4f}-", row])
                connection.commit()
                connection.execute("SELECT pg_notify('gpusched_events', %s)", [json.dumps({topic: [row]})])
                connection.commit()


def measure(stack: Stack, seconds: float) -> Measured:
    parts = {"daphne": stack.pids("daphne"), "postgres": stack.pids("postgres")}
    cpu_before = {part: _seconds(pids) for part, pids in parts.items()}
    began, cycles = time.monotonic(), dict[Any, float]()
    with psycopg.connect(stack.database_url(), autocommit=True) as connection:
        while time.monotonic() < began + seconds:
            [(at, ms)] = connection.execute("SELECT at, ms FROM scheduling_beat").fetchall()
            cycles[at] = ms
            time.sleep(0.05)
    took = time.monotonic() - began
    cores = {}
    for part, pids in parts.items():
        after = _seconds(pids)
        cores[part] = sum(after[pid] - cpu_before[part][pid] for pid in after if pid in cpu_before[part]) / took
    return Measured(cores["daphne"], cores["postgres"], list(cycles.values()))


def _seconds(pids: list[int]) -> dict[int, float]:
    """Return the processor time of living processes: those of PostgreSQL come and go."""
    by_pid = {}
    for pid in pids:
        with suppress(FileNotFoundError):
            by_pid[pid] = cpu_seconds([pid])
    return by_pid


def report(url: str, credentials: dict[str, str]) -> None:
    """Run the agents, in a process of their own, until it is terminated."""
    import msgspec

    from gpusched.protocol.agent_messages import Sync

    async def node(number: int, name: str, credential: str) -> None:
        machine = PretendMachine(name, SPEC)
        facts, seq = machine.facts(), 0
        address = url.replace("http", "ws", 1) + "/ws/agent/"
        headers = {"Authorization": f"Bearer {credential}"}
        async with connect(address, additional_headers=headers, compression=None) as socket:
            await asyncio.sleep(number / len(credentials) / READS_PER_SECOND)
            while True:
                seq += 1
                now = time.monotonic()
                sync = Sync(
                    seq=seq, at="2026-01-01T00:00:00Z", boot_id=facts.boot_id, readings=varied(machine, seq),
                    facts=facts if seq == 1 else None,
                )  # fmt: skip
                await socket.send(msgspec.json.encode(sync), text=True)
                while _decode(await socket.recv()).seq != seq:
                    pass
                await asyncio.sleep(max(0.0, now + 1 / READS_PER_SECOND - time.monotonic()))

    async def nodes() -> None:
        await asyncio.gather(*(node(number, *pair) for number, pair in enumerate(credentials.items())))

    asyncio.run(nodes())


def varied(machine: PretendMachine, seq: int) -> list[Reading]:
    """Return readings of a busy fleet: every value changes."""
    return [
        replace(
            reading,
            utilisation_percent=(seq * 7 + at * 13) % 101,
            memory_used_mb=20_000 + (seq * 997 + at * 101) % 40_000,
            temperature_celsius=50 + (seq + at) % 20,
            power_watts=200.0 + (seq * 31 + at * 17) % 200,
        )
        for at, reading in enumerate(machine.readings(set))
    ]


if __name__ == "__main__":
    main()
