"""Real CUDA jobs under a real agent: each sees only its device, which is offered again only when it is free."""

import os
import subprocess
import sys

import pytest

from gpusched.agent.isolation import confinement
from tests.agent.conftest import Agent
from tests.agent.control import Control, eventually
from tests.gpu.conftest import CUDA, occupancy, smi, used_mb

pytestmark = pytest.mark.gpu
TAKEN_MB, SLACK_MB = 1024, 256


def test_cuda_job_sees_only_its_device(uuid: str, control: Control) -> None:
    key = control.run(sys.executable, str(CUDA), device_uuids=[uuid])
    end = control.end_of(key, 60)
    eventually(lambda: len(control.logs.get(key, b"")) >= end.log_bytes, 10, "the log")
    assert (end.exit_code, control.logs[key].decode().split()) == (0, [uuid]), f"of {len(smi('uuid'))} GPUs"


def test_job_without_devices_sees_none(uuid: str, control: Control) -> None:
    key = control.run(sys.executable, str(CUDA))
    end = control.end_of(key, 60)
    eventually(lambda: len(control.logs.get(key, b"")) >= end.log_bytes, 10, "the log")
    assert uuid not in control.logs[key].decode() and "CUDA_ERROR_NO_DEVICE" in control.logs[key].decode()


def test_job_cannot_use_a_gpu_that_is_not_its_own(uuid: str, control: Control) -> None:
    """Where the node filters devices, CUDA_VISIBLE_DEVICES is more than a hint."""
    if not confinement.current().filters_devices:
        pytest.skip("the kernel lets this user load no eBPF device filter here")
    key = control.run("env", "-u", "CUDA_VISIBLE_DEVICES", sys.executable, str(CUDA))
    end = control.end_of(key, 60)
    eventually(lambda: len(control.logs.get(key, b"")) >= end.log_bytes, 10, "the log")
    assert end.exit_code != 0 and uuid not in control.logs[key].decode(), control.logs[key]


def test_job_keeps_its_gpu_while_its_agent_is_killed(uuid: str, agent: Agent, control: Control) -> None:
    key = control.run(sys.executable, str(CUDA), str(TAKEN_MB), device_uuids=[uuid])
    eventually(lambda: b"ready" in control.logs.get(key, b""), 60, "the job to have its memory")
    agent.kill()
    control.syncs.clear()
    agent.start()
    eventually(lambda: occupancy(control, uuid)[0] == "clear", 30, "the new agent to recognize the job's process")
    assert used_mb(uuid) > TAKEN_MB - SLACK_MB
    control.stop(key, grace_seconds=0)
    assert not control.end_of(key, 60).left


def test_memory_of_a_killed_job_is_free_when_its_end_is_reported(uuid: str, control: Control) -> None:
    """A34: the server offers devices by the verdict in the end's report."""
    base = used_mb(uuid)
    key = control.run(sys.executable, str(CUDA), str(TAKEN_MB), device_uuids=[uuid])
    eventually(lambda: b"ready" in control.logs.get(key, b""), 60, "the job to have its memory")
    assert used_mb(uuid) > base + TAKEN_MB - SLACK_MB
    eventually(lambda: occupancy(control, uuid)[0] == "clear", 20, "the job to be no stranger on its own GPU")
    control.stop(key, grace_seconds=0)
    end = control.end_of(key, 60)
    assert used_mb(uuid) < base + SLACK_MB
    assert not end.left, "so it is offered at once"


def test_foreign_process_is_reported_and_keeps_the_gpu(uuid: str, control: Control) -> None:
    """A35"""
    stranger = subprocess.Popen(
        [sys.executable, str(CUDA), str(TAKEN_MB)], env={**os.environ, "CUDA_VISIBLE_DEVICES": uuid},
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        eventually(lambda: occupancy(control, uuid)[0] == "foreign", 30, "the stranger to be seen")
        assert f"pid {stranger.pid} " in occupancy(control, uuid)[1]
    finally:
        stranger.kill()
        stranger.wait()
    eventually(lambda: occupancy(control, uuid)[0] == "clear", 30, "the GPU to be free again")
