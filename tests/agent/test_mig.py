"""MIG: the instances of a divided GPU are devices, through the real nvidia-ml-py over the fake driver library."""

import shutil
from typing import Any

import pytest

from tests.agent.conftest import A100, Agent, set_devices
from tests.agent.control import Control, eventually
from tests.agent.test_nvml import ReadGpus, read_gpus

__all__ = ["read_gpus"]
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

H100 = "NVIDIA H100 80GB HBM3|81559|700|-|61|180000|0x40|ok|||{xid}|1755,2619,700000,3,0|{mig}"
SMALL, HALF = "1/1/9984/12", "3/3/40448/500"


def h100(*instances: str, xid: str = "") -> str:
    """In MIG mode with these instances by slot, each gpu_slices/compute_slices/memory_mb/used_mb/name/pid."""
    return H100.format(mig=",".join(instances), xid=xid)


def named(view: dict[str, Any]) -> list[tuple[int, str, str]]:
    return [(device["index"], device["uuid"], device["model"]) for device in view["facts"]]


def test_mig_instances_replace_their_gpu(read_gpus: ReadGpus) -> None:
    """By slot, also past an empty one; of the other GPU nothing changes."""
    view = read_gpus(h100(HALF, "", SMALL), A100)
    assert named(view) == [
        (100, "MIG-fake-0-0-3g", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"),
        (102, "MIG-fake-0-2-1g", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
        (1, "GPU-fake-1", "NVIDIA A100"),
    ]
    half = view["facts"][0]
    assert (half["memory_mb"], half["mig_parent"], half["mig_slices"]) == (40448, "GPU-fake-0", 3)
    assert (half["pci_bus_id"], half["nvlink_island"]) == ("00000000:01:00.0", None)


def test_mig_names_include_compute_instances_and_the_drivers_name(read_gpus: ReadGpus) -> None:
    view = read_gpus(h100("3/1/40448/500", SMALL + "/NVIDIA H100 MIG 1g.10gb+me"))
    assert [name for _, _, name in named(view)] == [
        "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb",
        "NVIDIA H100 MIG 1g.10gb+me",
    ]


def test_mig_instance_has_its_own_memory_and_its_gpus_heat(read_gpus: ReadGpus) -> None:
    """Its use and power are unknown: not reported, and not the GPU's."""
    first, second = read_gpus(h100(HALF + "//4711", SMALL))["readings"]
    assert (first["memory_used_mb"], first["process_ids"]) == (500, [4711])
    assert (second["memory_used_mb"], second["process_ids"]) == (12, [])
    for device in (first, second):
        assert (device["temperature_celsius"], device["throttle_reasons"], device["sm_clock_mhz"]) == (61, 64, 1755)
        assert (device["ecc_corrected"], device["ecc_uncorrected"]) == (3, 0)
        assert (device["utilisation_percent"], device["power_watts"], device["power_limit_watts"]) == (None, None, None)


def test_undivided_gpu_in_mig_mode_has_no_devices(read_gpus: ReadGpus) -> None:
    view = read_gpus(h100("", ""), A100)
    assert [uuid for _, uuid, _ in named(view)] == ["GPU-fake-1"]
    assert [device["uuid"] for device in view["readings"]] == ["GPU-fake-1"]


def test_all_mig_instances_of_a_lost_gpu_are_lost(read_gpus: ReadGpus) -> None:
    read_gpus(h100(HALF, SMALL), A100)
    view = read_gpus(h100(HALF, SMALL).replace("|ok|", "|lost|"), A100)
    assert [(device["uuid"], device["lost"]) for device in view["readings"]] == [
        ("MIG-fake-0-0-3g", True),
        ("MIG-fake-0-1-1g", True),
        ("GPU-fake-1", False),
    ]


def test_xid_applies_to_its_mig_instance_or_to_all(read_gpus: ReadGpus) -> None:
    def codes(*specs: str) -> list[list[int]]:
        return [[xid["code"] for xid in device["xids"]] for device in read_gpus(*specs)["readings"]]

    assert codes(h100(HALF, SMALL)) == [[], []]
    assert codes(h100(HALF, SMALL, xid="31@2")) == [[], [31]]
    assert codes(h100(HALF, SMALL, xid="79")) == [[79], [31, 79]]


def test_running_agent_reports_a_new_mig_layout(agent: Agent, control: Control, environment: dict[str, str]) -> None:
    """Readings name what is there from the next look on; facts follow."""
    set_devices(environment, h100(HALF))
    agent.start(environment=environment)
    eventually(lambda: control.syncs and control.syncs[0].facts, 20, "the facts")
    set_devices(environment, h100(SMALL, SMALL))
    new = ["MIG-fake-0-0-1g", "MIG-fake-0-1-1g"]
    eventually(lambda: [device.uuid for device in control.syncs[-1].readings] == new, 10, "the new readings")
    eventually(
        lambda: any(sync.facts and [device.uuid for device in sync.facts.devices] == new for sync in control.syncs),
        10, "the new facts",
    )  # fmt: skip
