"""MIG: the instances of a divided GPU are devices, through the real nvidia-ml-py over the fake driver library."""

import shutil
from typing import Any

import pytest

from tests.agent.conftest import A100, Agent, set_devices
from tests.agent.control import Control, eventually
from tests.agent.test_nvml import Look, look

__all__ = ["look"]
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

H100 = "NVIDIA H100 80GB HBM3|81559|700|-|61|180000|0x40|ok|||{xid}|1755,2619,700000,3,0|{mig}"
SMALL, HALF = "1/1/9984/12", "3/3/40448/500"


def h100(*instances: str, xid: str = "") -> str:
    """In MIG mode with these instances by slot, each gpu_slices/compute_slices/memory_mb/used_mb/name/pid."""
    return H100.format(mig=",".join(instances), xid=xid)


def named(seen: dict[str, Any]) -> list[tuple[int, str, str]]:
    return [(one["index"], one["uuid"], one["model"]) for one in seen["facts"]]


def test_the_instances_are_devices_instead_of_their_gpu(look: Look) -> None:
    """By slot, also past an empty one; of the other GPU nothing changes."""
    seen = look(h100(HALF, "", SMALL), A100)
    assert named(seen) == [
        (100, "MIG-fake-0-0-3g", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"),
        (102, "MIG-fake-0-2-1g", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
        (1, "GPU-fake-1", "NVIDIA A100"),
    ]
    half = seen["facts"][0]
    assert (half["memory_mb"], half["mig_parent"], half["mig_slices"]) == (40448, "GPU-fake-0", 3)
    assert (half["pci_bus_id"], half["nvlink_island"]) == ("00000000:01:00.0", None)


def test_a_compute_instance_and_the_drivers_own_name_are_told(look: Look) -> None:
    seen = look(h100("3/1/40448/500", SMALL + "/NVIDIA H100 MIG 1g.10gb+me"))
    assert [name for _, _, name in named(seen)] == [
        "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb",
        "NVIDIA H100 MIG 1g.10gb+me",
    ]


def test_an_instance_has_its_own_memory_and_processes_and_the_heat_of_its_gpu(look: Look) -> None:
    """How busy it is and what power it takes nobody tells: unknown, not the GPU's."""
    first, second = look(h100(HALF + "//4711", SMALL))["readings"]
    assert (first["memory_used_mb"], first["process_ids"]) == (500, [4711])
    assert (second["memory_used_mb"], second["process_ids"]) == (12, [])
    for one in (first, second):
        assert (one["temperature_celsius"], one["throttle_reasons"], one["sm_clock_mhz"]) == (61, 64, 1755)
        assert (one["ecc_corrected"], one["ecc_uncorrected"]) == (3, 0)
        assert (one["utilisation_percent"], one["power_watts"], one["power_limit_watts"]) == (None, None, None)


def test_in_mig_mode_without_instances_there_is_nothing_to_run_on(look: Look) -> None:
    seen = look(h100("", ""), A100)
    assert [uuid for _, uuid, _ in named(seen)] == ["GPU-fake-1"]
    assert [one["uuid"] for one in seen["readings"]] == ["GPU-fake-1"]


def test_all_instances_of_a_gpu_that_fell_off_the_bus_are_lost(look: Look) -> None:
    look(h100(HALF, SMALL), A100)
    seen = look(h100(HALF, SMALL).replace("|ok|", "|lost|"), A100)
    assert [(one["uuid"], one["lost"]) for one in seen["readings"]] == [
        ("MIG-fake-0-0-3g", True),
        ("MIG-fake-0-1-1g", True),
        ("GPU-fake-1", False),
    ]


def test_an_xid_is_of_the_instance_that_it_names_or_of_all(look: Look) -> None:
    def codes(*told: str) -> list[list[int]]:
        return [[xid["code"] for xid in one["xids"]] for one in look(*told)["readings"]]

    assert codes(h100(HALF, SMALL)) == [[], []]
    assert codes(h100(HALF, SMALL, xid="31@2")) == [[], [31]]
    assert codes(h100(HALF, SMALL, xid="79")) == [[79], [31, 79]]


def test_a_new_layout_is_told_by_the_running_agent(agent: Agent, control: Control, environment: dict[str, str]) -> None:
    """Readings name what is there from the next look on; facts follow."""
    set_devices(environment, h100(HALF))
    agent.start(environment=environment)
    eventually(lambda: control.syncs and control.syncs[0].facts, 20, "the facts")
    set_devices(environment, h100(SMALL, SMALL))
    new = ["MIG-fake-0-0-1g", "MIG-fake-0-1-1g"]
    eventually(lambda: [one.uuid for one in control.syncs[-1].readings] == new, 10, "the new readings")
    eventually(
        lambda: any(sync.facts and [one.uuid for one in sync.facts.devices] == new for sync in control.syncs),
        10, "the new facts",
    )  # fmt: skip
