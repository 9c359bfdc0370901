"""Preemption with real processes: notice, grace, the same devices handed over, and the victim's work goes on later."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import is_alive
from tests.system.stack import Stack
from tests.waiting import wait_for

pytestmark = pytest.mark.e2e

# Saves the notice when it is stopped, as a trainer would save its work.
TRAINER = """#!/bin/sh
trap 'cp "$GPUSCHED_PREEMPT_FILE" "$1/notice-$GPUSCHED_ATTEMPT"; sleep 1; exit 0' TERM
echo $$ > "$1/pid-$GPUSCHED_ATTEMPT"
while :; do sleep 0.1; done
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """One pretend node of eight GPUs without a delay before preemption."""
    with Stack(min_runtime_seconds="0", preemption_delay_seconds="0") as running:
        running.fleet(1)
        yield running


def test_urgent_job_preempts_and_the_victim_resumes(stack: Stack, tmp_path: Path) -> None:
    """A16, A36: the notice has the deadline; the preemptor starts when the process is gone; the victim requeues."""
    client = stack.client()
    victim = client.submit(script=TRAINER, args=[str(tmp_path)], gpus=8, priority=200, grace_seconds=20)
    wait_for(lambda: (tmp_path / "pid-1").exists() and bool((tmp_path / "pid-1").read_text()), 20, "the trainer to run")
    pid = int((tmp_path / "pid-1").read_text())
    urgent = client.submit(["sh", "-c", f"kill -0 {pid} 2>/dev/null && echo early; sleep 2"], gpus=8, priority=2000)
    wait_for(lambda: client.get(urgent.id).state == "running", 30, "the urgent job to run")
    assert not is_alive(pid)
    notice = json.loads((tmp_path / "notice-1").read_text())
    assert notice["reason"] == "preempted" and notice["deadline_at"]
    waiting = client.get(victim.id)
    assert (waiting.state, waiting.attempt, waiting.submitted_at) == ("pending", 1, victim.submitted_at)
    assert client.wait(urgent.id, timeout=30).state == "completed"
    assert b"early" not in client.logs(urgent.id).data
    wait_for(lambda: (tmp_path / "pid-2").exists(), 30, "the trainer to go on")
    [first, _] = client.attempts(victim.id)
    assert first.reason == "preempted"
    assert first.sentence == f"preempted for job {urgent.id} of tenant default, which has priority 2000"
    client.cancel(victim.id)
    assert client.wait(victim.id, timeout=40).state == "cancelled"
    assert client.status().available_gpus == 8


# Runs out of GPU memory, as PyTorch reports it, in its first attempt.
OUT_OF_MEMORY = """#!/bin/sh
[ "$GPUSCHED_ATTEMPT" = 1 ] || exit 0
echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB" >&2
exit 1
"""


def test_job_that_runs_out_of_chosen_gpu_memory_is_retried_on_a_larger_gpu(stack: Stack) -> None:
    """A70: a real process, its class from its output, one retry that costs none of its own."""
    client = stack.client()
    [large] = [node.name for node in client.nodes()]
    client.cordon(large)
    stack.agent("--pretend", "1:NVIDIA L4:24576:1:8:65536", name="small")
    job = client.submit(script=OUT_OF_MEMORY, gpus=1, gpu_memory_mb="auto")
    wait_for(lambda: client.get(job.id).gpu_memory_mb == 36_864, 60, "the retry with more memory")
    waiting = client.get(job.id)
    assert (waiting.state, waiting.attempt, waiting.retries_used) == ("pending", 1, 0)
    client.uncordon(large)
    done = client.wait(job.id, timeout=30)
    assert (done.state, done.attempt, done.nodes) == ("completed", 2, [large])
    assert done.gpu_memory_auto is not None and done.gpu_memory_auto.retries == 1
    [first, _] = client.attempts(job.id)
    assert first.exit_class == "cuda_oom"
