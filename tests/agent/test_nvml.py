"""Readings through the real nvidia-ml-py over a fake driver library that is compiled here."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpusched.agent.gpus.topology import numa_node
from tests.agent.conftest import A100, ROOT, Agent, set_devices
from tests.agent.control import Control, eventually

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

LOOK = """
import json, sys, msgspec
from gpusched.agent.gpus.nvml import Nvml
nvml = Nvml()
for line in sys.stdin:
    told = {"facts": nvml.devices(), "driver": nvml.driver_version(), "readings": nvml.read()}
    print(msgspec.json.encode(told).decode(), flush=True)
"""


@pytest.fixture
def look(environment: dict[str, str]) -> Any:
    """Sets the devices, has one long-lived process look, and gives what it saw."""
    process = subprocess.Popen(
        [sys.executable, "-c", LOOK], cwd=ROOT, env={**os.environ, **environment}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip

    def at(*devices: str) -> dict[str, Any]:
        set_devices(environment, *devices)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        seen: dict[str, Any] = json.loads(process.stdout.readline())
        return seen

    yield at
    process.kill()
    process.wait()


Look = Callable[..., dict[str, Any]]


def test_islands_are_what_nvlink_joins(look: Any) -> None:
    """Devices that no NVLink joins to another have no island; a driver that says nothing gives none."""
    found = look(A100 + "|x", A100 + "|", A100 + "|x", A100 + "|y", A100 + "|y")
    assert [one.get("nvlink_island") for one in found["facts"]] == [0, None, 0, 3, 3]


def test_the_numa_node_is_what_the_kernel_says(tmp_path: Path) -> None:
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "numa_node").write_text("1\n")
    (tmp_path / "0000:3c:00.0").mkdir()
    (tmp_path / "0000:3c:00.0" / "numa_node").write_text("-1\n")
    assert [numa_node(f"00000000:{bus}:00.0", tmp_path) for bus in ("3B", "3C", "3D")] == [1, None, None]


def test_facts_and_readings(look: Look) -> None:
    seen = look("NVIDIA A100|81920|40000|87|64|312500|0x40|ok|100,200||-|1410,1593,400000,7,1", A100)
    assert seen["driver"] == "580.00.00-fake"
    assert seen["facts"][0] == {
        "uuid": "GPU-fake-0", "index": 0, "model": "NVIDIA A100", "memory_mb": 81920, "pci_bus_id": "00000000:01:00.0",
        "numa_node": numa_node("00000000:01:00.0"), "nvlink_island": None, "mig_parent": None, "mig_slices": None,
    }  # fmt: skip
    assert seen["readings"][0] == {
        "uuid": "GPU-fake-0", "utilisation_percent": 87, "memory_used_mb": 40000, "temperature_celsius": 64,
        "power_watts": 312.5, "power_limit_watts": 400.0, "sm_clock_mhz": 1410, "memory_clock_mhz": 1593,
        "throttle_reasons": 64, "ecc_corrected": 7, "ecc_uncorrected": 1, "process_ids": [100, 200], "lost": False,
        "occupancy": None, "occupant": "", "xids": [],
    }  # fmt: skip
    other = seen["readings"][1]
    assert (other["utilisation_percent"], other["process_ids"], other["ecc_uncorrected"]) == (0, [], None)


def test_unsupported_is_unknown_never_zero(look: Look) -> None:
    [reading] = look("NVIDIA T4|-|-|-|-|-|-|ok|-")["readings"]
    assert reading == {
        "uuid": "GPU-fake-0", "utilisation_percent": None, "memory_used_mb": None, "temperature_celsius": None,
        "power_watts": None, "power_limit_watts": None, "sm_clock_mhz": None, "memory_clock_mhz": None,
        "throttle_reasons": None, "ecc_corrected": None, "ecc_uncorrected": None, "process_ids": None, "lost": False,
        "occupancy": None, "occupant": "", "xids": [],
    }  # fmt: skip


def test_a_device_that_fell_off_the_bus_is_lost_and_the_others_are_not(look: Look) -> None:
    look(A100, A100)
    first, second = look(A100.replace("ok", "lost"), A100)["readings"]
    assert (first["uuid"], first["lost"]) == ("GPU-fake-0", True)
    assert first["temperature_celsius"] is None
    assert (second["lost"], second["temperature_celsius"]) == (False, 31)


def test_xids_are_told_of_their_device_for_a_while(look: Look) -> None:
    """Of a device that fell off the bus, too; each error once, however often it is told."""
    assert look(A100 + "||", A100 + "||")["readings"][1]["xids"] == []
    first, second = look(A100 + "||", A100 + "||31")["readings"]
    assert (first["xids"], second["xids"]) == ([], [{"code": 31, "seconds_ago": 0}])
    lost = A100.replace("ok", "lost")
    second = look(A100 + "||", lost + "||79")["readings"][1]
    assert (second["lost"], [xid["code"] for xid in second["xids"]]) == (True, [31, 79])
    assert [xid["code"] for xid in look(A100, lost + "||79")["readings"][1]["xids"]] == [31, 79]


def test_a_device_that_tells_no_xids_has_none(look: Look) -> None:
    look(A100 + "||-", A100 + "||")
    first, second = look(A100 + "||79", A100 + "||48")["readings"]
    assert (first["xids"], [xid["code"] for xid in second["xids"]]) == ([], [48])


def test_a_driver_that_comes_later_is_found(look: Look, environment: dict[str, str]) -> None:
    path = Path(environment["FAKE_NVML"])
    assert not path.exists()
    assert look()["facts"] == []
    assert len(look(A100)["facts"]) == 1


def test_without_the_library_it_is_a_cpu_node() -> None:
    code = (
        "from gpusched.agent.host.machine import RealMachine as M; f = M().facts(); print(f.devices, f.driver_version)"
    )
    clean = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=clean, capture_output=True, text=True, check=True
    )
    if "GPU-" in found.stdout:
        pytest.skip("this machine has GPUs")
    assert found.stdout.strip() == "[] None"
    assert "no GPUs through NVML" in found.stderr


def test_the_agent_posts_what_nvml_says(agent: Agent, control: Control, environment: dict[str, str]) -> None:
    """From the driver library to the control plane, while the devices change."""
    set_devices(environment, A100)
    agent.start(environment=environment)
    eventually(lambda: control.syncs and control.syncs[0].facts, 20, "the facts")
    assert control.syncs[0].facts is not None
    assert [device.model for device in control.syncs[0].facts.devices] == ["NVIDIA A100"]
    assert not control.syncs[0].facts.pretend
    set_devices(environment, A100.replace("|31|", "|77|"))
    eventually(lambda: [r.temperature_celsius for r in control.syncs[-1].readings] == [77], 10, "the new reading")
    set_devices(environment, A100.replace("ok", "lost"))
    eventually(lambda: [r.lost for r in control.syncs[-1].readings] == [True], 10, "the loss")
