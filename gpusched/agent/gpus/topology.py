"""Where devices are on their machine: the NUMA node by PCI address, and which of them NVLink joins."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path


def numa_node(bus: str, devices: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """The NUMA node of a PCI address as NVML writes it (`00000000:3B:00.0`); None where the kernel does not say."""
    domain, _, rest = bus.partition(":")
    try:
        number = int((devices / f"{domain[-4:]}:{rest}".lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


def islands(indices: Sequence[int], is_linked: Callable[[int, int], bool]) -> dict[int, int]:
    """Index -> the lowest index among those that it reaches over NVLink, also through others; without those that reach
    none. `is_linked` is asked about as few pairs as will do."""
    island = {index: index for index in indices}
    for one, other in combinations(indices, 2):
        if island[one] != island[other] and is_linked(one, other):
            low, high = sorted((island[one], island[other]))
            island = {index: low if own == high else own for index, own in island.items()}
    sizes = Counter(island.values())
    return {index: own for index, own in island.items() if sizes[own] > 1}
