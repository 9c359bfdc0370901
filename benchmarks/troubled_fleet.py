"""An agent of a pretend fleet with problems, for screenshots and tests of pages: heat, foreign processes, silence."""

import argparse
import logging
import os
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from gpusched.agent import daemon
from gpusched.agent.host.machine import Machine, PretendMachine, PretendSpec
from gpusched.protocol.agent_messages import NodeFacts, Reading, Xid

H100, A100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"
NODES_PER_RACK = 10
_MEMORY_MB = {H100: 81559, A100: 81920, L40S: 46068}
# Bit of HwThermalSlowdown in the clocks' event reasons of NVML.
_SLOWED = 0x40
Trouble = Callable[[Reading], Reading]


def _warm(reading: Reading) -> Reading:
    return replace(reading, temperature_celsius=88)


def _slowed(reading: Reading) -> Reading:
    return replace(reading, temperature_celsius=93, throttle_reasons=_SLOWED)


def _foreign(reading: Reading) -> Reading:
    return replace(
        reading, occupancy="foreign", occupant="pid 48213 (python) of user jdoe", memory_used_mb=61240,
        utilisation_percent=97, temperature_celsius=71, process_ids=[48213],
    )  # fmt: skip


def _dirty(reading: Reading) -> Reading:
    return replace(reading, occupancy="dirty", occupant="pid 9917 (python) of user ada", memory_used_mb=18022)


def _fallen(reading: Reading) -> Reading:
    return replace(reading, xids=[Xid(code=79, seconds_ago=1)])


def _silent(reading: Reading) -> Reading:
    """Return the reading of a driver that reports little."""
    return replace(reading, utilisation_percent=None, power_watts=None, temperature_celsius=None)


def _idle(reading: Reading) -> Reading:
    """Return the reading of a GPU whose job loaded a model and does nothing."""
    return replace(reading, utilisation_percent=0, power_watts=71.0, temperature_celsius=36)


# (number of the node, first and last device) -> the problem; a small fleet has the first of them.
TROUBLES: dict[tuple[int, int, int], Trouble] = {
    (2, 3, 3): _warm, (3, 6, 6): _foreign, (1, 6, 7): _idle, (14, 0, 7): _idle, (23, 2, 3): _slowed,
    (37, 5, 5): _fallen, (52, 0, 3): _idle, (88, 1, 1): _dirty, (97, 0, 7): _silent, (120, 4, 4): _foreign,
    (131, 7, 7): _warm, (144, 0, 1): _idle, (160, 2, 2): _fallen, (171, 0, 0): _warm,
}  # fmt: skip


class TroubledMachine(PretendMachine):
    def __init__(self, name: str, number: int, spec: PretendSpec, rack: str) -> None:
        super().__init__(name, spec)
        self._rack = rack
        self._troubles = {
            index: trouble for (node, first, last), trouble in TROUBLES.items() if node == number
            for index in range(first, last + 1)
        }  # fmt: skip

    def facts(self) -> NodeFacts:
        return replace(super().facts(), labels={"rack": self._rack}, driver_version="570.133.20")

    def _reading(self, index: int, uuid: str, is_busy: bool) -> Reading:
        reading = super()._reading(index, uuid, is_busy)
        trouble = self._troubles.get(index)
        return reading if trouble is None or (trouble is _idle and not is_busy) else trouble(reading)


def model_of(number: int, nodes: int) -> str:
    """Return the model of a node: two fifths of a fleet are H100, most of the others A100."""
    share = number / max(nodes, 1)
    return H100 if share <= 0.4 else A100 if share <= 0.85 else L40S


def machines(first: int, last: int, nodes: int, gpus: int = 8) -> dict[str, Machine]:
    """Return nodes `first` to `last` of a fleet of `nodes` by name, ten in a rack."""
    by_name: dict[str, Machine] = {}
    for number in range(first, last + 1):
        rack = f"r{(number - 1) // NODES_PER_RACK + 1:02d}"
        name = f"{rack}-n{(number - 1) % NODES_PER_RACK + 1:02d}"
        model = model_of(number, nodes)
        spec = PretendSpec(1, model, _MEMORY_MB[model], gpus, 128, 1 << 20)
        by_name[name] = TroubledMachine(name, number, spec, rack)
    return by_name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--last", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    options = parser.parse_args()
    logging.basicConfig(level="WARNING")
    token = os.environ.pop("GPUSCHED_JOIN_TOKEN")
    fleet = machines(options.first, options.last, options.nodes)
    daemon.run(daemon.Plan(options.data_dir.absolute(), fleet, options.url, token, own_jobs=True, heartbeat_seconds=2))


if __name__ == "__main__":
    main()
