"""Run the agent: one process, one launcher and one notification socket for all its nodes."""

import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from gpusched import tls
from gpusched.agent import identity as identities
from gpusched.agent import threads
from gpusched.agent.host.machine import Machine
from gpusched.agent.http_client import HttpClient
from gpusched.agent.identity import Identity, JoinError
from gpusched.agent.link import run_connection
from gpusched.agent.log_shipping import run_shipping
from gpusched.agent.node import Node
from gpusched.agent.ranks.launcher import Launcher
from gpusched.agent.supervision import Pulse, cancel_all, end_process, end_stuck, keep_running
from gpusched.protocol.addresses import has_tls, split

logger = logging.getLogger(__name__)
# Longer than all jobs take to end at their short grace, shorter than `up` waits for its parts.
STOP_SECONDS = 7.0
# Until the process ends although its threads still work: the next agent must report before the node counts as lost.
THREADS_SECONDS = 2.0
JOIN_PAUSE_SECONDS = 1.0
MAX_AT_ONCE = 500


class AlreadyRunning(Exception):
    """Another agent works in this directory."""


@dataclass(frozen=True)
class Plan:
    """The settings of one agent process."""

    data_dir: Path
    machines: dict[str, Machine]  # by node name
    url: str = ""
    join_token: str = ""
    own_jobs: bool = False
    heartbeat_seconds: float | None = None
    log_max_mb: int = 1024
    ca_file: str = ""
    certificate_file: str = ""


def run(plan: Plan) -> None:
    """Run until SIGTERM or SIGINT. Raises AlreadyRunning or JoinError. Exits if a node can no longer report."""
    with usable(plan.data_dir):
        plan.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(plan.data_dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise AlreadyRunning(f"another agent runs in {plan.data_dir}") from error
    pool = threads.start()
    with usable(plan.data_dir):
        joined = list(pool.map(lambda name: _identity(plan, name), plan.machines))
    first = max(joined, key=lambda identity: has_tls(identity.url))  # the one with certificates, if any
    http = HttpClient(first.url, first.ca_file, first.certificate_file)
    with asyncio.Runner() as runner:
        try:
            runner.run(_run(plan, joined, pool, http))
        except BaseException as error:  # noqa: BLE001 - it ends the process; closing the loop could block for ever
            end_process(error)
        if not threads.have_ended(pool, THREADS_SECONDS):
            end_stuck()


@contextlib.contextmanager
def usable(data_dir: Path) -> Iterator[None]:
    """Raise JoinError, with a sentence, for a directory or file of the agent that it cannot read or write."""
    try:
        yield
    except OSError as error:
        step = "check its owner and the free space, or name another --data-dir"
        if error.errno in (errno.EROFS, errno.EIO):  # the node and its jobs are in this directory
            step = "look for the error of its disk in the kernel's log, and reboot the node"
        raise JoinError(f"{error.filename or data_dir} cannot be used ({error.strerror}); {step}") from error


def directory_of(data_dir: Path, name: str) -> Path:
    return data_dir / "nodes" / name.replace("/", "_")


def _identity(plan: Plan, name: str) -> Identity:
    """Return the node's identity. Without one, join first, and wait for a server that is not up yet."""
    directory = directory_of(plan.data_dir, name)
    current = identities.with_tls(identities.load(directory, name), plan.ca_file, plan.certificate_file)
    try:
        tls.verify(plan.url or current.url, current.ca_file, current.certificate_file)
    except tls.TlsFileError as error:
        raise JoinError(str(error)) from error
    urls = identities.addresses_in(plan.url) if plan.url else ()
    if urls and urls != split(current.url) and set(urls) & set(split(current.url)):
        # Another list of addresses of the same control plane.
        current = replace(current, url=",".join(urls))
        identities.save(directory, current)
    is_moved = bool(urls) and split(current.url) != urls
    logged = ""
    while not current.credential or is_moved:
        if not plan.url or not plan.join_token:
            raise JoinError(f"node {name} has not joined a control plane; run: gpusched-agent join URL TOKEN")
        try:
            return identities.join(directory, current, plan.url, plan.join_token, plan.machines[name].facts())
        except JoinError as error:
            if not error.may_retry:
                raise
            if str(error) != logged:
                logger.warning("%s; trying again", error)
                logged = str(error)
            time.sleep(JOIN_PAUSE_SECONDS)
    return current


async def _run(plan: Plan, joined: Sequence[Identity], pool: ThreadPoolExecutor, http: HttpClient) -> None:
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
    notifications = _open_socket(plan.data_dir / "doorbell")
    async with http:
        lost: asyncio.Future[None] = loop.create_future()
        parts = [keep_running(partial(_keep_listening, notifications, nodes), "the notification socket", "")]
        for node in nodes.values():
            parts += _parts(node, plan.heartbeat_seconds or node.identity.heartbeat_seconds, http, lost)
        tasks = [asyncio.create_task(part) for part in parts]
        logger.info("%d nodes connect to %s", len(nodes), joined[0].url if joined else "no server")
        endless: list[asyncio.Future[Any]] = [lost, *tasks]
        stopped: asyncio.Future[Any] = asyncio.create_task(stop.wait())
        await asyncio.wait([stopped, *endless], return_when=asyncio.FIRST_COMPLETED)
        for future in endless:
            if future.done():
                future.result()  # raises: none of these should end
        if plan.own_jobs:
            await asyncio.gather(*(node.stop_jobs(STOP_SECONDS) for node in nodes.values()))
        await cancel_all(tasks)
    launcher.close()
    notifications.close()


def _parts(
    node: Node, heartbeat: float, http: httpx.AsyncClient, lost: "asyncio.Future[None]"
) -> list[Coroutine[Any, Any, None]]:
    """Return all tasks of one node. Without its connection the node is silent; the other tasks are merely restarted."""
    name = node.identity.name
    pulse = Pulse(name, lost)
    talk = partial(run_connection, node, heartbeat, http, pulse)
    restarted: list[tuple[str, Callable[[], Awaitable[None]]]] = [
        ("polling its ranks", node.keep_polling),
        ("reading notifications of its ranks", node.keep_reading_notified),
        ("removing old files", node.keep_tidy),
        ("reading its GPUs", partial(node.keep_reading, heartbeat)),
        ("reading its hardware", node.keep_facts),
        ("shipping logs", partial(run_shipping, node, http)),
    ]
    return [
        keep_running(talk, "the connection", name, pulse.failed),
        *(keep_running(part, label, name) for label, part in restarted),
    ]


def _open_socket(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    # The kernel refuses paths of 108 bytes and more; a relative one always fits.
    previous = os.getcwd()
    os.chdir(path.parent)
    try:
        listener.bind(path.name)
    finally:
        os.chdir(previous)
    return listener


async def _keep_listening(notifications: socket.socket, nodes: dict[str, Node]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        messages = [await loop.sock_recv(notifications, 4096)]
        with contextlib.suppress(BlockingIOError):
            while len(messages) < MAX_AT_ONCE:
                messages.append(notifications.recv(4096))
        keys: dict[str, set[str]] = {}
        for text in messages:
            directory, end = _notification(text)
            ranks, _, key = directory.rpartition("/")
            keys.setdefault(ranks, set()).add(key)
            if end is not None and ranks in nodes:
                nodes[ranks].ranks.unwritten_ends[key] = end
        for ranks, notified in keys.items():
            if ranks in nodes:
                nodes[ranks].notify(notified)


def _notification(text: bytes) -> tuple[str, dict[str, Any] | None]:
    """Return the directory in a notification, and an end that its supervisor cannot write. The directory is empty if no
    supervisor sent it: a job of the agent's user can write here, too."""
    try:
        match json.loads(text):
            case str() as directory:
                return directory, None
            case [str() as directory, dict() as end]:
                return directory, end
    except (ValueError, RecursionError):
        pass
    return "", None


def log_startup(sentence: str) -> None:
    sys.stderr.write(f"gpusched-agent: {sentence}\n")
