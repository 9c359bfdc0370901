"""The running agent: one process, one launcher and one doorbell for all its nodes."""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from gpusched.agent import identity as identities
from gpusched.agent import threads
from gpusched.agent.host.machine import Machine
from gpusched.agent.identity import Identity, JoinError
from gpusched.agent.link import run_connection
from gpusched.agent.log_shipping import run_shipping
from gpusched.agent.node import Node
from gpusched.agent.ranks.launcher import Launcher
from gpusched.agent.supervision import Pulse, end_process, keep_running

logger = logging.getLogger(__name__)
# More than the ends of all jobs take at their short grace, less than `up` waits for its parts.
STOP_SECONDS = 7.0
JOIN_PAUSE_SECONDS = 1.0
MAX_AT_ONCE = 500


class AlreadyRunning(Exception):
    """Another agent works in this directory."""


@dataclass(frozen=True)
class Plan:
    """What one agent process is to be."""

    data_dir: Path
    machines: dict[str, Machine]  # by node name
    url: str = ""
    join_token: str = ""
    own_jobs: bool = False
    heartbeat_seconds: float | None = None
    log_max_mb: int = 1024


def run(plan: Plan) -> None:
    """Runs until SIGTERM or SIGINT. Raises AlreadyRunning or JoinError. Exits if a node can no longer report."""
    plan.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(plan.data_dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise AlreadyRunning(f"another agent runs in {plan.data_dir}") from error
    pool = threads.start()
    joined = list(pool.map(lambda name: _identity(plan, name), plan.machines))
    with asyncio.Runner() as runner:
        try:
            runner.run(_run(plan, joined, pool))
        except BaseException as error:  # noqa: BLE001 - the process ends by it; closing the loop could wait for ever
            end_process(error)


def directory_of(data_dir: Path, name: str) -> Path:
    return data_dir / "nodes" / name.replace("/", "_")


def _identity(plan: Plan, name: str) -> Identity:
    """The node's identity; joins first if it has none, waiting for a server that is not there yet."""
    directory = directory_of(plan.data_dir, name)
    known = identities.load(directory, name)
    is_moved = bool(plan.url) and known.url != plan.url.rstrip("/")
    said = ""
    while not known.credential or is_moved:
        if not plan.url or not plan.join_token:
            raise JoinError(f"node {name} has not joined a control plane; do: gpusched-agent join URL TOKEN")
        try:
            return identities.join(directory, known, plan.url, plan.join_token, plan.machines[name].facts())
        except JoinError as error:
            if not error.may_retry:
                raise
            if str(error) != said:
                logger.warning("%s; trying again", error)
                said = str(error)
            time.sleep(JOIN_PAUSE_SECONDS)
    return known


async def _run(plan: Plan, joined: Sequence[Identity], pool: ThreadPoolExecutor) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(pool)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    launcher = Launcher(plan.data_dir / "doorbell", plan.own_jobs)
    nodes = {}
    for identity in joined:
        directory = directory_of(plan.data_dir, identity.name)
        node = Node(directory, identity, plan.machines[identity.name], launcher, plan.join_token, plan.log_max_mb << 20)
        nodes[str(directory / "ranks")] = node
    bell = _open_doorbell(plan.data_dir / "doorbell")
    limits = httpx.Limits(max_connections=8, max_keepalive_connections=8)
    secure = any(identity.url.startswith("https:") for identity in joined)
    async with httpx.AsyncClient(timeout=10, limits=limits, verify=secure) as http:
        lost: asyncio.Future[None] = loop.create_future()
        parts = [keep_running(partial(_keep_hearing, bell, nodes), "the doorbell", "")]
        for node in nodes.values():
            parts += _parts(node, plan.heartbeat_seconds or node.identity.heartbeat_seconds, http, lost)
        tasks = [asyncio.create_task(part) for part in parts]
        logger.info("%d nodes talk to %s", len(nodes), joined[0].url if joined else "nobody")
        endless: list[asyncio.Future[Any]] = [lost, *tasks]
        stopped: asyncio.Future[Any] = asyncio.create_task(stop.wait())
        await asyncio.wait([stopped, *endless], return_when=asyncio.FIRST_COMPLETED)
        for future in endless:
            if future.done():
                future.result()  # raises: none of these ends well
        if plan.own_jobs:
            await asyncio.gather(*(node.stop_jobs(STOP_SECONDS) for node in nodes.values()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    launcher.close()
    bell.close()


def _parts(
    node: Node, heartbeat: float, http: httpx.AsyncClient, lost: "asyncio.Future[None]"
) -> list[Coroutine[Any, Any, None]]:
    """Return all that runs for one node. It is silent only without its conversation: the rest is merely restarted."""
    name = node.identity.name
    pulse = Pulse(name, lost)
    talk = partial(run_connection, node, heartbeat, http, pulse)
    rest: list[tuple[str, Callable[[], Awaitable[None]]]] = [
        ("looking at its ranks", node.keep_looking),
        ("hearing of its ranks", node.keep_answering_rings),
        ("removing old files", node.keep_tidy),
        ("reading its GPUs", partial(node.keep_reading, heartbeat)),
        ("asking what it is", node.keep_facts),
        ("shipping logs", partial(run_shipping, node, http)),
    ]
    return [
        keep_running(talk, "the conversation", name, pulse.failed),
        *(keep_running(part, label, name) for label, part in rest),
    ]


def _open_doorbell(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    # The kernel refuses paths of 108 bytes and more; a relative one always fits.
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        bell.bind(path.name)
    finally:
        os.chdir(here)
    return bell


async def _keep_hearing(bell: socket.socket, nodes: dict[str, Node]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        rung = [await loop.sock_recv(bell, 4096)]
        with contextlib.suppress(BlockingIOError):
            while len(rung) < MAX_AT_ONCE:
                rung.append(bell.recv(4096))
        keys: dict[str, set[str]] = {}
        for text in rung:
            ranks, _, key = _rung(text).rpartition("/")
            keys.setdefault(ranks, set()).add(key)
        for ranks, rung_keys in keys.items():
            if ranks in nodes:
                nodes[ranks].ring(rung_keys)


def _rung(text: bytes) -> str:
    """The directory that somebody rang for; empty if it was no supervisor: a job of the agent's user can ring, too."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return told if isinstance(told, str) else ""


def log_startup(sentence: str) -> None:
    sys.stderr.write(f"gpusched-agent: {sentence}\n")
