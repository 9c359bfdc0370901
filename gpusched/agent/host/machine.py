"""The facts and device readings of a node: of this machine through NVML, or made up for a pretend node."""

import hashlib
import logging
import math
import os
import platform
import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from gpusched import __version__
from gpusched.agent import config
from gpusched.agent.config import Config
from gpusched.agent.containers import runtimes
from gpusched.agent.gpus.nvml import Nvml
from gpusched.agent.host import doctor
from gpusched.agent.isolation import confinement
from gpusched.agent.rank_files.rank_dir import boot_id
from gpusched.protocol.agent_messages import DeviceFacts, Hint, NodeFacts, Reading

logger = logging.getLogger(__name__)


class Machine(Protocol):
    def facts(self) -> NodeFacts: ...

    def readings(self, busy: Callable[[], set[str]]) -> list[Reading]:
        """Return a full reading of each device. `busy` returns the devices of live ranks; only a pretend machine calls
        it."""
        ...

    def read_use(self, devices: Collection[str], busy: Callable[[], set[str]]) -> list[Reading]:
        """Return memory and processes of some devices: fast enough to wait for."""
        ...


def _cpu_facts() -> NodeFacts:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return NodeFacts(
        hostname=platform.node() or "localhost",
        boot_id=boot_id(),
        agent_version=__version__,
        cpu_cores=len(os.sched_getaffinity(0)),
        memory_mb=pages * size // (1 << 20),
        isolation=confinement.isolation(confinement.current()),
    )


class RealMachine:
    """This machine and its GPUs."""

    def __init__(self, directory: Path | None = None) -> None:
        """`directory`: the node's files; None: it has none yet."""
        self._nvml = Nvml()
        self._directory = directory
        self._hints_error = ""

    def facts(self) -> NodeFacts:
        devices, driver = self._nvml.devices(), self._nvml.driver_version()
        settings = config.current()
        versions = runtimes.versions(settings)
        hints = self._hints(settings, len(devices), versions)
        return replace(_cpu_facts(), devices=devices, driver_version=driver, runtimes=versions, hints=hints)

    def _hints(self, settings: Config, devices: int, versions: dict[str, str]) -> list[Hint]:
        """Return warnings about this machine. They are only advice: their failure is logged once and stops nothing
        else."""
        try:
            return doctor.hints(settings, self._nvml, devices, versions, self._directory)
        except Exception as error:
            if repr(error) != self._hints_error:
                logger.exception("the node reports without hints: they failed")
            self._hints_error = repr(error)
            return []

    def readings(self, busy: Callable[[], set[str]]) -> list[Reading]:
        return self._nvml.read()

    def read_use(self, devices: Collection[str], busy: Callable[[], set[str]]) -> list[Reading]:
        return self._nvml.read_use(devices)


@dataclass(frozen=True)
class PretendSpec:
    """`NODES:MODEL:GPU_MEMORY_MB:GPUS:CPU_CORES:MEMORY_MB`, such as `4:NVIDIA A100-SXM4-80GB:81920:8:128:1048576`."""

    nodes: int
    model: str
    gpu_memory_mb: int
    gpus: int
    cpu_cores: int
    memory_mb: int

    @classmethod
    def parse(cls, text: str) -> "PretendSpec":
        """Parse the text. Raises ValueError with the accepted format."""
        parts = text.split(":")
        try:
            nodes, model, gpu_memory_mb, gpus, cpu_cores, memory_mb = parts
            spec = cls(int(nodes), model, int(gpu_memory_mb), int(gpus), int(cpu_cores), int(memory_mb))
        except ValueError as error:
            raise ValueError(f"{text!r} is not NODES:MODEL:GPU_MEMORY_MB:GPUS:CPU_CORES:MEMORY_MB") from error
        if min(spec.nodes, spec.cpu_cores, spec.memory_mb) < 1 or min(spec.gpus, spec.gpu_memory_mb) < 0:
            raise ValueError(f"{text!r}: nodes, cores and memory must be at least 1")
        return spec


class PretendMachine:
    """A node of a demo or a benchmark: real processes, made-up GPUs and readings. Its facts mark it as pretend."""

    def __init__(self, name: str, spec: PretendSpec) -> None:
        self._name, self._spec = name, spec
        seed = hashlib.sha256(name.encode()).hexdigest()
        self._uuids = [f"GPU-{seed[:8]}-{seed[8:12]}-{seed[12:16]}-{seed[16:20]}-{i:012x}" for i in range(spec.gpus)]
        self._devices = [
            DeviceFacts(
                uuid=uuid,
                index=i,
                model=spec.model,
                memory_mb=spec.gpu_memory_mb,
                numa_node=2 * i // spec.gpus,
                nvlink_island=0,
            )
            for i, uuid in enumerate(self._uuids)
        ]
        self._phase = int(seed[:4], 16) / 1000

    def facts(self) -> NodeFacts:
        cores, memory_mb = self._spec.cpu_cores, self._spec.memory_mb
        return replace(_cpu_facts(), cpu_cores=cores, memory_mb=memory_mb, devices=self._devices, pretend=True)

    def readings(self, busy: Callable[[], set[str]]) -> list[Reading]:
        allocated = busy()
        return [self._reading(i, uuid, uuid in allocated) for i, uuid in enumerate(self._uuids)]

    def read_use(self, devices: Collection[str], busy: Callable[[], set[str]]) -> list[Reading]:
        allocated = busy()
        return [self._reading(i, uuid, uuid in allocated) for i, uuid in enumerate(self._uuids) if uuid in devices]

    def _reading(self, index: int, uuid: str, is_busy: bool) -> Reading:
        wave = math.sin(time.time() / 40 + self._phase + index)
        jitter = random.random()  # noqa: S311 - a made-up reading
        used = (0.55 + 0.3 * wave) * self._spec.gpu_memory_mb if is_busy else 4
        return Reading(
            uuid=uuid,
            utilisation_percent=round(88 + 8 * wave + 3 * jitter) if is_busy else 0,
            memory_used_mb=round(used),
            temperature_celsius=round(66 + 6 * wave + jitter) if is_busy else 31 + index % 4,
            power_watts=round(300 + 60 * wave + 10 * jitter, 1) if is_busy else 55.0 + index,
            power_limit_watts=400.0,
            sm_clock_mhz=1410 if is_busy else 210,
            memory_clock_mhz=1593,
            throttle_reasons=0,
            ecc_corrected=0,
            ecc_uncorrected=0,
            process_ids=[],
        )
