"""The only file that touches NVML (through nvidia-ml-py). What the driver does not say is None, never 0 or invented."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import pynvml
from msgspec.structs import replace

from gpusched.protocol.messages import DeviceFacts, Reading, Xid

logger = logging.getLogger(__name__)
T = TypeVar("T")
MIB = 1 << 20
XID_SECONDS = 60.0  # for so long an Xid is told with each reading
MOST_XIDS = 50


class DeviceLost(Exception):
    """The driver says that the device has fallen off the bus."""


class Nvml:
    """The GPUs of this machine. Methods block: a driver in trouble may take seconds, so they run in a thread."""

    def __init__(self) -> None:
        self._is_open = False
        self._said = ""
        self._events: Any = None
        self._watched: set[int] = set()
        self._xids: list[tuple[float, str, int]] = []  # when (monotonic), UUID, code; the latest last

    def is_available(self) -> bool:
        """Opens the library if it can be; without it this is a CPU node until a driver appears."""
        if self._is_open:
            return True
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._say(f"no GPUs through NVML: {error}")
            return False
        self._is_open = True
        self._said = ""
        return True

    def driver_version(self) -> str | None:
        return _text(pynvml.nvmlSystemGetDriverVersion) if self.is_available() else None

    def devices(self) -> list[DeviceFacts]:
        """What is there now. A device that does not even tell its UUID is left out: it cannot be given to anyone."""
        if not self.is_available():
            return []
        found = []
        handles = self._handles()
        islands = _islands(handles)
        for index, handle in handles:
            try:
                found.append(_facts(index, handle, islands.get(index)))
            except pynvml.NVMLError as error:
                self._say(f"GPU {index} does not say what it is: {error}")
            except DeviceLost:
                self._say(f"GPU {index} is lost")
        return found

    def read(self) -> list[Reading]:
        """One look at each device."""
        if not self.is_available():
            return []
        handles = self._handles()
        found = [reading for _, handle in handles if (reading := _reading(handle)) is not None]
        self._hear_xids(handles)
        now = time.monotonic()
        self._xids = [one for one in self._xids if now - one[0] < XID_SECONDS][-MOST_XIDS:]
        told: dict[str, list[Xid]] = {}
        for at, uuid, code in self._xids:
            told.setdefault(uuid, []).append(Xid(code=code, seconds_ago=int(now - at)))
        return [replace(reading, xids=told.get(reading.uuid, [])) for reading in found]

    def _hear_xids(self, handles: list[tuple[int, Any]]) -> None:
        """Takes in what happened since the last time. A driver or device that tells no Xids has none."""
        try:
            self._watch(handles)
            for _ in range(MOST_XIDS):
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                uuid = _uuid_of(event.device)
                if event.eventType & pynvml.nvmlEventTypeXidCriticalError and uuid is not None:
                    self._xids.append((time.monotonic(), uuid, int(event.eventData)))
        except pynvml.NVMLError:
            return  # nothing more to hear (a timeout), or nothing to hear it with

    def _watch(self, handles: list[tuple[int, Any]]) -> None:
        if self._events is None:
            self._events = pynvml.nvmlEventSetCreate()
        for index, handle in handles:
            if index in self._watched:
                continue
            self._watched.add(index)
            try:
                if pynvml.nvmlDeviceGetSupportedEventTypes(handle) & pynvml.nvmlEventTypeXidCriticalError:
                    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
            except pynvml.NVMLError:
                continue

    def _handles(self) -> list[tuple[int, Any]]:
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            # After a driver reload the library must be opened anew.
            self._say(f"NVML stopped answering, opening it again: {error}")
            self._is_open = False
            self._events, self._watched = None, set()
            return []
        handles = []
        for index in range(count):
            try:
                handles.append((index, pynvml.nvmlDeviceGetHandleByIndex(index)))
            except pynvml.NVMLError as error:
                self._say(f"GPU {index} cannot be asked: {error}")
        return handles

    def _say(self, text: str) -> None:
        if text != self._said:
            logger.warning(text)
        self._said = text


# The UUID of each device that was seen, by PCI address: a lost device no longer tells its own.
_uuids: dict[str, str] = {}


def _facts(index: int, handle: Any, island: int | None) -> DeviceFacts:
    uuid = _need(lambda: pynvml.nvmlDeviceGetUUID(handle))
    bus = _text(lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId)
    if bus is not None:
        _uuids[bus] = uuid
    memory = _ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    return DeviceFacts(
        uuid=uuid,
        index=index,
        model=_need(lambda: pynvml.nvmlDeviceGetName(handle)),
        memory_mb=None if memory is None else int(memory.total) // MIB,
        pci_bus_id=bus,
        numa_node=None if bus is None else numa_node(bus),
        nvlink_island=island,
    )


def numa_node(bus: str, devices: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """The NUMA node of a PCI address as NVML writes it (`00000000:3B:00.0`); None where the kernel does not say."""
    domain, _, rest = bus.partition(":")
    try:
        number = int((devices / f"{domain[-4:]}:{rest}".lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


def _islands(handles: list[tuple[int, Any]]) -> dict[int, int]:
    """Index -> the lowest index among those that it reaches over NVLink; without those that reach none."""
    islands = {index: index for index, _ in handles}
    for (one, first), (other, second) in combinations(handles, 2):
        if islands[one] != islands[other] and _is_linked(first, second):
            low, high = sorted((islands[one], islands[other]))
            islands = {index: low if island == high else island for index, island in islands.items()}
    sizes = Counter(islands.values())
    return {index: island for index, island in islands.items() if sizes[island] > 1}


def _is_linked(first: Any, second: Any) -> bool:
    try:
        status = _ask(lambda: pynvml.nvmlDeviceGetP2PStatus(first, second, pynvml.NVML_P2P_CAPS_INDEX_NVLINK))
    except DeviceLost:
        return False
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


def _reading(handle: Any) -> Reading | None:
    try:
        return Reading(
            uuid=_need(lambda: pynvml.nvmlDeviceGetUUID(handle)),
            utilisation_percent=_ask(lambda: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            memory_used_mb=_ask(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) // MIB),
            temperature_celsius=_ask(lambda: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))),
            power_watts=_ask(lambda: float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1000),
            throttle_reasons=_ask(lambda: int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))),
            process_ids=_ask(lambda: [int(p.pid) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]),
        )
    except (DeviceLost, pynvml.NVMLError):
        uuid = _uuid_of(handle)
        return None if uuid is None else Reading(uuid=uuid, lost=True)


def _uuid_of(handle: Any) -> str | None:
    """Of a device that was seen before, also when it is lost."""
    return _uuids.get(_text_or_lost(lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId) or "")


def _ask(question: Callable[[], T]) -> T | None:
    """The answer; None if this driver or device cannot say. Raises DeviceLost."""
    try:
        return question()
    except pynvml.NVMLError_GpuIsLost as error:
        raise DeviceLost from error
    except pynvml.NVMLError:
        return None


def _need(question: Callable[[], str | bytes]) -> str:
    try:
        answer = question()
    except pynvml.NVMLError_GpuIsLost as error:
        raise DeviceLost from error
    return answer.decode() if isinstance(answer, bytes) else answer


def _text(question: Callable[[], str | bytes]) -> str | None:
    answer = _ask(question)
    return answer.decode() if isinstance(answer, bytes) else answer


def _text_or_lost(question: Callable[[], str | bytes]) -> str | None:
    try:
        return _text(question)
    except DeviceLost:
        return None
