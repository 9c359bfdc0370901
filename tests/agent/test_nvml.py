"""Readings through the real nvidia-ml-py, with a fake driver library that is compiled here."""

import json
import os
import re
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

LOST_FIRST = {"GPU-fake-0": True, "GPU-fake-1": False}
READ_GPUS = """
import json, logging, sys, msgspec
from gpusched.agent.gpus.nvml import Nvml
nvml, log = Nvml(), logging.Handler()
log.emit = lambda record: logged.append(record.getMessage())
logging.getLogger().addHandler(log)
for line in sys.stdin:
    logged = []
    answers = {"logged": logged, "facts": nvml.devices(), "driver": nvml.driver_version(), "readings": nvml.read()}
    answers["complaint"] = nvml.complaint
    print(msgspec.json.encode(answers).decode(), flush=True)
"""


@pytest.fixture
def read_gpus(environment: dict[str, str]) -> Any:
    """Sets the devices, has one long-lived process look, and gives what it saw."""
    process = subprocess.Popen(
        [sys.executable, "-c", READ_GPUS], cwd=ROOT, env={**os.environ, **environment}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip

    def at(*devices: str | None) -> dict[str, Any]:
        set_devices(environment, *filter(None, devices))
        if None in devices:  # no driver
            Path(environment["FAKE_NVML"]).unlink()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        view: dict[str, Any] = json.loads(process.stdout.readline())
        return view

    yield at
    process.kill()
    process.wait()


ReadGpus = Callable[..., dict[str, Any]]


def test_islands_follow_nvlink(read_gpus: Any) -> None:
    """Devices that no NVLink joins to another have no island; a driver that says nothing gives none."""
    answer = read_gpus(A100 + "|x", A100 + "|", A100 + "|x", A100 + "|y", A100 + "|y")
    assert [fact.get("nvlink_island") for fact in answer["facts"]] == [0, None, 0, 3, 3]


def test_numa_node_comes_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "numa_node").write_text("1\n")
    (tmp_path / "0000:3c:00.0").mkdir()
    (tmp_path / "0000:3c:00.0" / "numa_node").write_text("-1\n")
    assert [numa_node(f"00000000:{bus}:00.0", tmp_path) for bus in ("3B", "3C", "3D")] == [1, None, None]


def test_facts_and_readings_come_from_nvml(read_gpus: ReadGpus) -> None:
    view = read_gpus("NVIDIA A100|81920|40000|87|64|312500|0x40|ok|100,200||-|1410,1593,400000,7,1", A100)
    assert view["driver"] == "580.00.00-fake"
    assert view["facts"][0] == {
        "uuid": "GPU-fake-0", "index": 0, "model": "NVIDIA A100", "memory_mb": 81920, "pci_bus_id": "00000000:01:00.0",
        "numa_node": numa_node("00000000:01:00.0"), "nvlink_island": None, "mig_parent": None, "mig_slices": None,
    }  # fmt: skip
    assert view["readings"][0] == {
        "uuid": "GPU-fake-0", "utilisation_percent": 87, "memory_used_mb": 40000, "temperature_celsius": 64,
        "power_watts": 312.5, "power_limit_watts": 400.0, "sm_clock_mhz": 1410, "memory_clock_mhz": 1593,
        "throttle_reasons": 64, "ecc_corrected": 7, "ecc_uncorrected": 1, "process_ids": [100, 200], "lost": False,
        "occupancy": None, "occupant": "", "xids": [],
    }  # fmt: skip
    other = view["readings"][1]
    assert (other["utilisation_percent"], other["process_ids"], other["ecc_uncorrected"]) == (0, [], None)


@pytest.fixture
def old_driver(environment: dict[str, str]) -> None:
    environment["FAKE_NVML_OLD"] = "1"


def test_memory_of_an_old_driver_contains_its_own(old_driver: None, read_gpus: ReadGpus) -> None:
    """Before 510 the driver does not report which part of the used memory it keeps for itself."""
    [reading] = read_gpus("NVIDIA A100|81920|40000|87|64|312500|0x40|ok|")["readings"]
    assert reading["memory_used_mb"] == 40480


def test_unsupported_reading_is_unknown_and_never_zero(read_gpus: ReadGpus) -> None:
    [reading] = read_gpus("NVIDIA T4|-|-|-|-|-|-|ok|-")["readings"]
    assert reading == {
        "uuid": "GPU-fake-0", "utilisation_percent": None, "memory_used_mb": None, "temperature_celsius": None,
        "power_watts": None, "power_limit_watts": None, "sm_clock_mhz": None, "memory_clock_mhz": None,
        "throttle_reasons": None, "ecc_corrected": None, "ecc_uncorrected": None, "process_ids": None, "lost": False,
        "occupancy": None, "occupant": "", "xids": [],
    }  # fmt: skip


def test_more_used_memory_than_there_is_is_unknown(read_gpus: ReadGpus) -> None:
    """NVML has such a value for "not available"; as a size, it would look like memory that a job left behind."""
    views = [read_gpus(f"NVIDIA A100|81920|{used}|0|31|55000|0|ok|") for used in (81920, 81921, (1 << 44) - 1)]
    assert [view["readings"][0]["memory_used_mb"] for view in views] == [81920, None, None]


def test_lost_device_does_not_affect_the_others(read_gpus: ReadGpus) -> None:
    read_gpus(A100, A100)
    first, second = read_gpus(A100.replace("ok", "lost"), A100)["readings"]
    assert (first["uuid"], first["lost"]) == ("GPU-fake-0", True)
    assert first["temperature_celsius"] is None
    assert (second["lost"], second["temperature_celsius"]) == (False, 31)


def test_lost_device_is_reported_when_the_driver_cannot_open_it(read_gpus: ReadGpus) -> None:
    """`nvidia-smi` prints "Unable to determine the device handle" for it, and has no address of it either."""
    read_gpus(A100 + "||", A100)
    for _ in range(2):
        first, second = read_gpus(A100.replace("ok", "shut") + "||", A100)["readings"]
        assert {first["uuid"]: first["lost"], second["uuid"]: second["lost"]} == LOST_FIRST
    [first, _] = read_gpus(A100.replace("ok", "shut") + "||79", A100)["readings"]
    assert [xid["code"] for xid in first["xids"]] == [79]
    first, second = read_gpus(A100, A100)["readings"]
    assert (first["lost"], second["lost"]) == (False, False)


def test_complaint_ends_with_its_cause(read_gpus: ReadGpus) -> None:
    """A hint that a GPU is lost must not stay on the node's page after it is back. Each problem is logged once."""
    lost, shut = A100.replace("ok", "lost"), A100.replace("ok", "shut")
    views = [read_gpus(*devices) for devices in ([lost, A100, shut], [lost, A100, shut], [A100, A100, shut], [A100])]
    assert [re.findall(r"GPU \d", view["complaint"]) for view in views] == [["GPU 2", "GPU 0"]] * 2 + [["GPU 2"], []]
    assert [len(view["logged"]) for view in views] == [2, 0, 0, 0]


def test_xids_are_repeated_for_their_device_for_a_while(read_gpus: ReadGpus) -> None:
    """Also for a lost device; each error once, however often it is repeated."""
    assert read_gpus(A100 + "||", A100 + "||")["readings"][1]["xids"] == []
    first, second = read_gpus(A100 + "||", A100 + "||31")["readings"]
    assert (first["xids"], second["xids"]) == ([], [{"code": 31, "seconds_ago": 0}])
    lost = A100.replace("ok", "lost")
    second = read_gpus(A100 + "||", lost + "||79")["readings"][1]
    assert (second["lost"], [xid["code"] for xid in second["xids"]]) == (True, [31, 79])
    assert [xid["code"] for xid in read_gpus(A100, lost + "||79")["readings"][1]["xids"]] == [31, 79]


def test_many_xids_of_one_device_displace_none_of_another(read_gpus: ReadGpus) -> None:
    """A program that fails in a loop causes them; the failed hardware of its neighbour must still be reported."""
    read_gpus(A100 + "||", A100 + "||")
    for number in range(60):
        first, second = read_gpus(A100 + f"||31 number {number}", A100 + "||79")["readings"]
    assert [xid["code"] for xid in first["xids"]] == [31]
    assert [xid["code"] for xid in second["xids"]] == [79]


@pytest.mark.parametrize("fault", ["lost", "shut"])
def test_xids_of_a_device_that_was_lost_at_first(fault: str, read_gpus: ReadGpus) -> None:
    """As after a start of the agent before the reset of the GPU."""
    read_gpus(A100.replace("ok", fault) + "||")
    read_gpus(A100 + "||")
    [reading] = read_gpus(A100 + "||79")["readings"]
    assert [xid["code"] for xid in reading["xids"]] == [79]


def test_device_without_xid_support_has_none(read_gpus: ReadGpus) -> None:
    read_gpus(A100 + "||-", A100 + "||")
    first, second = read_gpus(A100 + "||79", A100 + "||48")["readings"]
    assert (first["xids"], [xid["code"] for xid in second["xids"]]) == ([], [48])


def test_driver_that_appears_later_is_used(read_gpus: ReadGpus, environment: dict[str, str]) -> None:
    path = Path(environment["FAKE_NVML"])
    assert not path.exists()
    assert read_gpus()["facts"] == []
    assert len(read_gpus(A100)["facts"]) == 1


def test_devices_are_lost_while_the_driver_is_gone_and_come_back_with_it(
    read_gpus: ReadGpus, environment: dict[str, str]
) -> None:
    """The library must be closed before it is opened anew: it counts how often it was opened."""
    read_gpus(A100, A100)
    for _ in range(2):
        view = read_gpus(None)
        assert (view["facts"], [reading["lost"] for reading in view["readings"]]) == ([], [True, True])
    view = read_gpus(A100, A100)
    assert [reading["lost"] for reading in view["readings"]] == [False, False]
    assert len(view["facts"]) == 2


def test_node_without_nvml_is_a_cpu_node() -> None:
    code = (
        "from gpusched.agent.host.machine import RealMachine as M; f = M().facts(); print(f.devices, f.driver_version)"
    )
    clean = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=clean, capture_output=True, text=True, check=True
    )
    if "GPU-" in answer.stdout:
        pytest.skip("this machine has GPUs")
    assert answer.stdout.strip() == "[] None"
    assert "no GPUs through NVML" in answer.stderr


def test_agent_sends_nvml_readings(agent: Agent, control: Control, environment: dict[str, str]) -> None:
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


def test_agent_ends_on_sigterm_although_the_driver_hangs(
    agent: Agent, control: Control, environment: dict[str, str]
) -> None:
    """A thread that hangs in the driver cannot be ended; the service must not wait for it."""
    set_devices(environment, A100)
    process = agent.start(environment=environment)
    eventually(lambda: control.syncs and control.syncs[-1].readings, 20, "a reading")
    set_devices(environment, A100.replace("ok", "hang"))
    messages = len(control.syncs)
    eventually(lambda: len(control.syncs) > messages + 20, 20, "messages without readings")
    assert not control.syncs[-1].readings
    process.terminate()
    assert process.wait(10) == 0
