"""A machine with a real NVIDIA GPU, or one clear reason to skip these tests."""

import csv
import io
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpusched.agent.gpus.nvml import Nvml
from tests.agent.conftest import Agent
from tests.agent.conftest import agent as agent
from tests.agent.conftest import control as control
from tests.agent.control import Control, eventually

CUDA = Path(__file__).with_name("cuda.py")


def smi(*fields: str) -> list[dict[str, str]]:
    """Return nvidia-smi's values of each GPU, field by field."""
    result = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    rows = csv.reader(io.StringIO(result.stdout), skipinitialspace=True)
    return [dict(zip(fields, row, strict=True)) for row in rows if row]


def used_mb(uuid: str) -> int:
    """Memory in use on a GPU, as nvidia-smi says."""
    [row] = [row for row in smi("uuid", "memory.used") if row["uuid"] == uuid]
    return int(row["memory.used"])


@pytest.fixture(scope="session", autouse=True)
def real_gpu() -> None:
    """Skips where there is no GPU to test with."""
    if shutil.which("nvidia-smi") is None or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode:
        pytest.skip("no NVIDIA GPU here: nvidia-smi is missing or fails")
    if not Nvml().is_available():
        pytest.fail("nvidia-smi works, but NVML does not load in Python")


@pytest.fixture
def uuid(agent: Agent, control: Control) -> str:
    """A running agent, and the UUID of its first unused GPU."""
    agent.start()
    eventually(lambda: _free(control), 30, "an unused GPU (end what runs on this machine's GPUs)")
    return _free(control)[0]


def _free(control: Control) -> list[str]:
    return [
        reading.uuid
        for reading in readings(control)
        if reading.occupancy == "clear" and not reading.uuid.startswith("MIG-")
    ]


def readings(control: Control) -> list[Any]:
    """The agent's latest, if it has told any."""
    recent = [sync.readings for sync in control.syncs[-20:] if sync.readings]
    return recent[-1] if recent else []


def occupancy(control: Control, uuid: str) -> tuple[str | None, str]:
    """(word, who) of the latest reading of a device."""
    verdicts = [(reading.occupancy, reading.occupant) for reading in readings(control) if reading.uuid == uuid]
    return verdicts[0] if verdicts else (None, "")
