"""Locate devices on their machine: the NUMA node of a PCI address, and the GPUs that NVLink joins."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path


def numa_node(bus: str, devices: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """Return the NUMA node of a PCI address as NVML writes it (`00000000:3B:00.0`); None if the kernel does not report
    it."""
    domain, _, address = bus.partition(":")
    try:
        number = int((devices / f"{domain[-4:]}:{address}".lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


def islands(indices: Sequence[int], is_linked: Callable[[int, int], bool]) -> dict[int, int]:
    """Return index -> the lowest index that it reaches over NVLink, directly or through others. Indices that reach no
    other are left out. Calls `is_linked` for as few pairs as possible."""
    island = {index: index for index in indices}
    for first, second in combinations(indices, 2):
        if island[first] != island[second] and is_linked(first, second):
            low, high = sorted((island[first], island[second]))
            island = {index: low if lowest == high else lowest for index, lowest in island.items()}
    sizes = Counter(island.values())
    return {index: lowest for index, lowest in island.items() if sizes[lowest] > 1}
