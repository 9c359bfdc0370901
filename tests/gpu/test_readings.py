"""The agent's facts and readings compared with nvidia-smi on a real GPU."""

import pytest

from gpusched.agent.gpus.nvml import Nvml
from gpusched.protocol.agent_messages import DeviceFacts, Reading
from tests.gpu.conftest import smi

pytestmark = pytest.mark.gpu


def looked() -> tuple[dict[str, DeviceFacts], dict[str, Reading]]:
    """(facts, readings) by UUID, of whole GPUs."""
    nvml = Nvml()
    facts = {item.uuid: item for item in nvml.devices()}
    return facts, {item.uuid: item for item in nvml.read()}


def number(text: str) -> float | None:
    """Return a number; None for [N/A] and [Not Supported]."""
    try:
        return float(text)
    except ValueError:
        return None


def test_devices_match_nvidia_smi() -> None:
    rows = smi("uuid", "index", "name", "memory.total", "pci.bus_id", "driver_version", "mig.mode.current")
    facts, _ = looked()
    undivided = [row for row in rows if row["mig.mode.current"] != "Enabled"]
    assert undivided, "all GPUs here are in MIG mode"
    for row in undivided:
        device = facts[row["uuid"]]
        assert (device.model, device.index) == (row["name"], int(row["index"]))
        assert device.memory_mb is not None and abs(device.memory_mb - int(row["memory.total"])) <= 1
        assert (device.pci_bus_id or "").lower().removeprefix("0000") in row["pci.bus_id"].lower()
    assert Nvml().driver_version() == rows[0]["driver_version"]


def test_readings_match_nvidia_smi() -> None:
    fields = ("uuid", "memory.used", "temperature.gpu", "power.draw", "power.limit", "clocks.sm", "utilization.gpu",
              "mig.mode.current")  # fmt: skip
    rows = smi(*fields)
    _, readings = looked()
    for row in (row for row in rows if row["mig.mode.current"] != "Enabled"):
        item = readings[row["uuid"]]
        # Read a moment apart, and nvidia-smi itself opens a context for a moment.
        for ours, theirs, slack in (
            (item.memory_used_mb, row["memory.used"], 1024),
            (item.temperature_celsius, row["temperature.gpu"], 5),
            (item.power_watts, row["power.draw"], 100),
            (item.power_limit_watts, row["power.limit"], 1),
        ):
            expected = number(theirs)
            assert (ours is None) == (expected is None), (row, item)
            assert ours is None or expected is None or abs(ours - expected) <= slack, (row, item)
        assert item.utilisation_percent is None or 0 <= item.utilisation_percent <= 100
        assert (item.sm_clock_mhz is None) == (number(row["clocks.sm"]) is None)
