"""Replicas as processes that call gpusched.serve.serve(), and a dispatcher that reaches them through Unix sockets."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

from asgiref.sync import sync_to_async

from gpusched.protocol.batches import SOCKET_NAME
from serving.batching.dispatcher import Dispatcher, ServedEndpoint
from serving.models import InferenceRequest
from serving.requests.submit import NewRequest, submit
from tests.factories import identity_for

ROOT = Path(__file__).resolve().parents[2]
FUNCTION = """
import os, signal, sys, time
from gpusched.serve import serve

class OutOfMemoryError(RuntimeError):  # as torch.cuda.OutOfMemoryError
    pass

def function(requests):
    if any(isinstance(request, bytes) for request in requests):
        return [request[::-1] * (40 if request.startswith(b"grow") else 1) for request in requests]
    if "exit" in requests and not os.path.exists(sys.argv[1]):
        open(sys.argv[1], "w").close()
        os._exit(1)
    if "hang" in requests:
        time.sleep(60)
    if "slow" in requests:
        open(sys.argv[2], "w").close()
        time.sleep(0.5)
    if "few" in requests:
        return []
    if len(requests) > 1 and "memory" in requests:
        raise MemoryError
    if "greedy" in requests:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if "killed" in requests:
        os.kill(os.getpid(), signal.SIGKILL)
    if len(requests) > 6 and any(request.startswith("large") for request in requests):
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if "error" in requests:
        raise ValueError("no")
    return [ValueError("alone") if request == "one" else {"got": request} for request in requests]

serve(function, max_batch=int(sys.argv[3]) or None)
"""


class UnixStream:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def read(self):
        return await self.reader.read(65536)

    async def write(self, data):
        self.writer.write(data)
        await self.writer.drain()

    def close(self):
        self.writer.close()


class Replicas:
    """Replica processes by job id, and the opening of streams to them."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = {}
        self.hung = []

    def start(self, job_id, max_batch=0):
        if job_id in self.processes:
            return
        folder = self.folder / str(job_id)
        folder.mkdir()
        environment = {**os.environ, "GPUSCHED_SOCKET_DIR": str(folder), "PYTHONPATH": str(ROOT)}
        marks = [str(self.folder / name) for name in ("exited", "slow")]
        command = [sys.executable, "-c", FUNCTION, *marks, str(max_batch)]
        self.processes[job_id] = subprocess.Popen(command, env=environment)

    async def open(self, job_id):
        path = self.folder / str(job_id) / SOCKET_NAME
        async with asyncio.timeout(20):
            while True:
                try:
                    return UnixStream(*await asyncio.open_unix_connection(str(path)))
                except OSError:
                    await asyncio.sleep(0.02)

    def stop(self):
        for process in self.processes.values():
            process.kill()
            process.wait()


@asynccontextmanager
async def dispatching(replicas, endpoint, *job_ids, **fields):
    dispatcher = Dispatcher(1, replicas.open, replicas.hung.append)
    values = {"max_batch": 8, "max_wait_seconds": 0.01, "timeout_seconds": 10.0, "is_draining": False, **fields}
    dispatcher.endpoints[endpoint.pk] = ServedEndpoint(endpoint.pk, endpoint.name, **values)
    for job_id in job_ids:
        replicas.start(job_id)
        dispatcher.add_replica(job_id, [endpoint.pk], None)
    task = asyncio.create_task(dispatcher.run())
    try:
        yield dispatcher
    finally:
        task.cancel()
        await dispatcher.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not await sync_to_async(condition)():
            await asyncio.sleep(0.02)


def ended(ids):
    return lambda: not InferenceRequest.objects.filter(pk__in=ids, ended_at=None).exists()


def outcome(number):
    row = InferenceRequest.objects.get(pk=number)
    return bytes(row.result or b"") if row.state == "completed" else row.error_code


def send(endpoint, user, *texts):
    requests = [NewRequest(b'"%s"' % text.encode(), "application/json") for text in texts]
    return submit(endpoint, requests, identity_for(user)).ids


def got(text):
    return b'{"got": "%s"}' % text.encode()
