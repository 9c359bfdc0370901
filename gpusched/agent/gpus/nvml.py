"""The only file that touches NVML (through nvidia-ml-py). What the driver does not say is None, never 0 or invented."""

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import pynvml
from msgspec.structs import replace

from gpusched.agent.gpus.topology import islands, numa_node
from gpusched.protocol.agent_messages import DeviceFacts, Reading, Xid

logger = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")
MIB = 1 << 20
XID_SECONDS = 60.0  # for so long an Xid is told with each reading
MAX_XIDS = 50
NO_INSTANCE = 0xFFFFFFFF  # so an event says that it is of the whole GPU
# MIG instances of GPU 2 have the numbers 300, 301, …: no GPU of a machine has such a number.
MIG_INDEX = 100


class DeviceLost(Exception):
    """The driver says that the device has fallen off the bus."""


def _one_at_a_time(method: "Callable[Concatenate[Nvml, P], T]") -> "Callable[Concatenate[Nvml, P], T]":
    """Let one thread at a time ask the driver: an event is handed out once, and its Xid must reach the list."""

    @wraps(method)
    def locked(self: "Nvml", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked


class Nvml:
    """The GPUs of this machine. Methods block: a driver in trouble may take seconds, so they run in a thread. Any
    thread may call them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_open = False
        self._said = ""
        self._events: Any = None
        self._watched: set[int] = set()
        self._xids: list[tuple[float, str, int]] = []  # when (monotonic), UUID, code; the latest last

    @_one_at_a_time
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

    @property
    def complaint(self) -> str:
        """What was wrong the last time that something was asked; empty if nothing was."""
        return self._said

    @_one_at_a_time
    def driver_version(self) -> str | None:
        return _text(pynvml.nvmlSystemGetDriverVersion) if self.is_available() else None

    @_one_at_a_time
    def devices(self) -> list[DeviceFacts]:
        """What is there now; of a GPU in MIG mode its instances instead of itself. A device that does not even tell its
        UUID is left out: it cannot be given to anyone."""
        if not self.is_available():
            return []
        found: list[DeviceFacts] = []
        handles = dict(self._handles())
        joined = islands(sorted(handles), lambda one, other: _is_linked(handles[one], handles[other]))
        for index, handle in handles.items():
            try:
                found += [_facts(one, joined.get(index)) for one in _offered(index, handle)]
            except pynvml.NVMLError as error:
                self._say(f"GPU {index} does not say what it is: {error}")
            except DeviceLost:
                self._say(f"GPU {index} is lost")
        return found

    @_one_at_a_time
    def read(self) -> list[Reading]:
        """One look at each device."""
        if not self.is_available():
            return []
        handles = self._handles()
        found = [reading for index, handle in handles for reading in _readings(index, handle, _reading)]
        self._hear_xids(handles)
        now = time.monotonic()
        self._xids = [one for one in self._xids if now - one[0] < XID_SECONDS][-MAX_XIDS:]
        told: dict[str, list[Xid]] = {}
        for at, uuid, code in self._xids:
            told.setdefault(uuid, []).append(Xid(code=code, seconds_ago=int(now - at)))
        return [replace(reading, xids=told.get(reading.uuid, [])) for reading in found]

    @_one_at_a_time
    def look(self, devices: Collection[str]) -> list[Reading]:
        """Memory and processes alone, of these devices."""
        handles = self._handles() if self.is_available() else []
        found = [reading for index, handle in handles for reading in _readings(index, handle, _use)]
        return [reading for reading in found if reading.uuid in devices]

    def _hear_xids(self, handles: list[tuple[int, Any]]) -> None:
        """Takes in what happened since the last time. A driver or device that tells no Xids has none."""
        try:
            self._watch(handles)
            for _ in range(MAX_XIDS):
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                if event.eventType & pynvml.nvmlEventTypeXidCriticalError:
                    concerned = _concerned(event.device, int(event.gpuInstanceId))
                    self._xids += [(time.monotonic(), uuid, int(event.eventData)) for uuid in concerned]
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


@dataclass(frozen=True)
class _Offered:
    """A device that may be given to jobs: a GPU, or a MIG instance (`slices` is then the size of its GPU instance).
    `gpu` is the handle of the whole GPU, which alone tells of heat, clocks and links."""

    index: int
    uuid: str
    handle: Any
    gpu: Any
    instance: int | None = None
    slices: int | None = None


# By PCI address the UUIDs that were seen there last, with their GPU instance: a lost device no longer tells its own.
_known: dict[str, dict[str, int | None]] = {}


def _offered(index: int, gpu: Any) -> list[_Offered]:
    """The GPU, or in MIG mode its instances (none if it was not divided yet: nothing can run on it then)."""
    uuid = _need(lambda: pynvml.nvmlDeviceGetUUID(gpu))
    mode = _ask(lambda: pynvml.nvmlDeviceGetMigMode(gpu)[0])
    if mode == pynvml.NVML_DEVICE_MIG_ENABLE:
        most = _ask(lambda: int(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu))) or 0
        found = [one for slot in range(most) if (one := _instance(index, gpu, slot)) is not None]
    else:
        found = [_Offered(index, uuid, gpu, gpu)]
    bus = _text(lambda: pynvml.nvmlDeviceGetPciInfo(gpu).busId)
    if bus is not None:
        _known[bus] = {one.uuid: one.instance for one in found}
    return found


def _instance(index: int, gpu: Any, slot: int) -> _Offered | None:
    handle = _ask(lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot))
    uuid = None if handle is None else _text(lambda: pynvml.nvmlDeviceGetUUID(handle))
    if uuid is None:
        return None  # no instance in this slot, or one that is being made or taken away
    slices = _ask(lambda: int(pynvml.nvmlDeviceGetAttributes(handle).gpuInstanceSliceCount))
    instance = _ask(lambda: int(pynvml.nvmlDeviceGetGpuInstanceId(handle)))
    return _Offered((index + 1) * MIG_INDEX + slot, uuid, handle, gpu, instance, slices)


def _facts(one: _Offered, island: int | None) -> DeviceFacts:
    bus = _text(lambda: pynvml.nvmlDeviceGetPciInfo(one.gpu).busId)
    memory = _ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(one.handle))
    is_whole = one.handle is one.gpu
    return DeviceFacts(
        uuid=one.uuid,
        index=one.index,
        model=_need(lambda: pynvml.nvmlDeviceGetName(one.handle)) if is_whole else _mig_name(one),
        memory_mb=None if memory is None else int(memory.total) // MIB,
        pci_bus_id=bus,
        numa_node=None if bus is None else numa_node(bus),
        nvlink_island=island if is_whole else None,  # CUDA lets no two instances reach each other
        mig_parent=None if is_whole else _need(lambda: pynvml.nvmlDeviceGetUUID(one.gpu)),
        mig_slices=one.slices,
    )


def _mig_name(one: _Offered) -> str:
    """`NVIDIA H100 MIG 1g.10gb`: newer drivers say so themselves, of others it is put together as nvidia-smi does."""
    told = _text(lambda: pynvml.nvmlDeviceGetName(one.handle)) or ""
    if " MIG " in told:
        return told
    gpu = _need(lambda: pynvml.nvmlDeviceGetName(one.gpu))
    size = _ask(lambda: pynvml.nvmlDeviceGetAttributes(one.handle))
    if size is None:
        return f"{gpu} MIG"
    part = "" if size.computeInstanceSliceCount == size.gpuInstanceSliceCount else f"{size.computeInstanceSliceCount}c."
    return f"{gpu} MIG {part}{size.gpuInstanceSliceCount}g.{round(size.memorySizeMB / 1024)}gb"


def _is_linked(first: Any, second: Any) -> bool:
    try:
        status = _ask(lambda: pynvml.nvmlDeviceGetP2PStatus(first, second, pynvml.NVML_P2P_CAPS_INDEX_NVLINK))
    except DeviceLost:
        return False
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


def _readings(index: int, gpu: Any, ask: Callable[[_Offered], Reading]) -> list[Reading]:
    try:
        return [ask(one) for one in _offered(index, gpu)]
    except (DeviceLost, pynvml.NVMLError):
        return [Reading(uuid=uuid, lost=True) for uuid in _concerned(gpu)]


def _reading(one: _Offered) -> Reading:
    """Of a MIG instance the driver tells memory and processes; heat, clocks and errors are those of its GPU, and how
    much of the GPU's power it takes nobody knows."""
    own, gpu = one.handle, one.gpu
    power = power_limit = None
    if own is gpu:
        power = _ask(lambda: float(pynvml.nvmlDeviceGetPowerUsage(gpu)) / 1000)
        power_limit = _ask(lambda: float(pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu)) / 1000)
    return replace(
        _use(one),
        utilisation_percent=_ask(lambda: int(pynvml.nvmlDeviceGetUtilizationRates(own).gpu)),
        temperature_celsius=_ask(lambda: int(pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU))),
        power_watts=power,
        power_limit_watts=power_limit,
        sm_clock_mhz=_ask(lambda: int(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM))),
        memory_clock_mhz=_ask(lambda: int(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM))),
        throttle_reasons=_ask(lambda: int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))),
        ecc_corrected=_ecc(gpu, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ecc_uncorrected=_ecc(gpu, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    )


def _use(one: _Offered) -> Reading:
    return Reading(
        uuid=one.uuid,
        memory_used_mb=_ask(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(one.handle).used) // MIB),
        process_ids=_ask(lambda: [int(p.pid) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(one.handle)]),
    )


def _ecc(gpu: Any, kind: int) -> int | None:
    return _ask(lambda: int(pynvml.nvmlDeviceGetTotalEccErrors(gpu, kind, pynvml.NVML_VOLATILE_ECC)))


def _concerned(gpu: Any, instance: int = NO_INSTANCE) -> list[str]:
    """The UUIDs of what was seen there before, also if it is lost; of one GPU instance, if one is named."""
    known = _known.get(_text_or_lost(lambda: pynvml.nvmlDeviceGetPciInfo(gpu).busId) or "", {})
    return [uuid for uuid, own in known.items() if instance == NO_INSTANCE or own in (None, instance)]


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
