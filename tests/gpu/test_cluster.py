"""The whole system with a real GPU: jobs that share it, run out of its memory, break, and are preempted on it."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gpusched.client import Client
from tests.gpu.conftest import CUDA, smi
from tests.system.stack import Stack
from tests.waiting import wait_for

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
# An endpoint's function: sums on the GPU, and as many MiB of its memory as all inputs of a batch require.
MODEL = """
import torch
from gpusched.serve import serve

def total(batch):
    torch.cuda.empty_cache()
    megabytes = sum(item["megabytes"] for item in batch)
    torch.empty(megabytes << 20, dtype=torch.uint8, device="cuda")
    rows = torch.tensor([item["values"] for item in batch], dtype=torch.float32, device="cuda")
    return rows.sum(dim=1).tolist()

serve(total)
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A control plane, and an agent that offers this machine's GPUs; jobs wait for no delays."""
    with Stack(min_runtime_seconds="0", preemption_delay_seconds="0") as running:
        running.agent(name="gpu")
        wait_for(lambda: running.client().status().available_gpus >= 1, 60, "a GPU to be available")
        yield running


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    client = stack.client()
    wait_for(lambda: client.status().available_gpus == len(smi("uuid")), 20, "all GPUs to be available")
    yield client
    for job in client.list(state="pending,running"):
        client.cancel(job.id)


def hold(client: Client, megabytes: int, **fields: Any) -> Any:
    """Return a job that keeps this much GPU memory until it is stopped."""
    job = client.submit([sys.executable, str(CUDA), str(megabytes)], gpus=1, **fields)
    wait_for(lambda: b"ready" in client.logs(job.id).data, 20, "the job to have its memory")
    return job


def test_jobs_share_a_gpu_by_memory(client: Client) -> None:
    free = int(smi("memory.total")[0]["memory.total"])
    share = free // 3
    jobs = [hold(client, 1024, gpu_memory_mb=share, gpu_sharing="shared") for _ in range(2)]
    if len(smi("uuid")) == 1:
        large = client.submit(["true"], gpus=1, gpu_memory_mb=2 * share, gpu_sharing="shared")
        assert client.get(large.id).state == "pending", "two thirds of it are in use"
    for job in jobs:
        client.cancel(job.id)
    if len(smi("uuid")) == 1:
        assert client.wait(large.id, timeout=60).state == "completed"


def test_reading_of_a_busy_gpu_reaches_the_api(client: Client) -> None:
    job = hold(client, 3000)
    [[device]] = [rank.devices for rank in client.attempts(job.id)[0].ranks]

    def memory_used_mb() -> int:
        [reading] = [shown.reading for shown in client.devices() if shown.uuid == device.uuid]
        return (reading and reading.memory_used_mb) or 0

    wait_for(lambda: memory_used_mb() >= 3000, 20, "a reading of the job's memory")


def test_job_out_of_gpu_memory_is_classed_and_retried_once_on_its_own(client: Client) -> None:
    """A70: the raise is limited by the largest GPU, on which this job fails again."""
    total = int(smi("memory.total")[0]["memory.total"])
    job = client.submit([sys.executable, str(CUDA), str(2 * total)], gpus=1, gpu_memory_mb="auto")
    done = client.wait(job.id, timeout=120)
    attempts = client.attempts(job.id)
    assert (done.state, [attempt.exit_class for attempt in attempts]) == ("failed", ["cuda_oom"] * len(attempts))
    assert "CUDA ran out of GPU memory" in str(done)


def test_fault_of_a_program_is_its_own_and_has_its_xid(client: Client) -> None:
    job = client.submit([sys.executable, str(CUDA), "fault"], gpus=1)
    done = client.wait(job.id, timeout=120)
    assert done.state == "failed" and b"CUDA_ERROR" in client.logs(job.id).data
    [attempt] = client.attempts(job.id)
    assert attempt.exit_class == "user_exit"
    assert "Xid" in (attempt.sentence or ""), attempt.sentence
    assert client.status().available_gpus == len(smi("uuid")), "the GPU is not blamed"


def test_preempted_job_leaves_a_free_gpu(client: Client) -> None:
    total = int(smi("memory.total")[0]["memory.total"])
    gpus = len(smi("uuid"))
    victims = [hold(client, total * 3 // 4, priority=200, grace_seconds=5) for _ in range(gpus)]
    urgent = hold(client, total * 3 // 4, priority=2000)
    waiting = [job for job in victims if client.get(job.id).state == "pending"]
    assert len(waiting) == 1, "one of them made room"
    assert client.get(urgent.id).state == "running"


def test_batches_that_do_not_fit_are_halved(client: Client) -> None:
    """A65: a real out-of-memory error of PyTorch, in a replica that goes on."""
    pytest.importorskip("torch")
    total = int(smi("memory.total")[0]["memory.total"])
    client.create_endpoint("sums", {"command": [sys.executable, "-c", MODEL], "gpu_count": 1}, max_batch=8)
    try:
        inputs = [{"megabytes": total // 5, "values": [number, 1]} for number in range(16)]
        assert list(client.map("sums", inputs, timeout=200)) == [number + 1 for number in range(16)]
        sizes = {task.batch_size for task in client.tasks(endpoint="sums", limit=100)}
        assert sizes and max(size or 0 for size in sizes) <= 4, sizes
        [task] = [client.submit_task("sums", {"megabytes": 2 * total, "values": [1]})]
        assert client.wait_task(task.id, timeout=100).error_code == "out_of_memory"
    finally:
        client.remove_endpoint("sums", with_queue=True)
