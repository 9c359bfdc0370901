"""The only file that touches NVML (through nvidia-ml-py). A value that the driver does not report is None, never 0 or a
guess."""

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
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
XID_SECONDS = 60.0  # each reading repeats an Xid for this long
MAX_EVENTS = 1000  # of one reading: a program that fails in a loop must not delay it
NO_INSTANCE = 0xFFFFFFFF  # marks an event of the whole GPU
# MIG instances of GPU 2 have the numbers 300, 301, …: no GPU of a machine has such a high number.
MIG_INDEX = 100


class DeviceLost(Exception):
    """The driver reports that the device has fallen off the bus."""


def _locked(method: "Callable[Concatenate[Nvml, P], T]") -> "Callable[Concatenate[Nvml, P], T]":
    """Let one thread at a time ask the driver: the driver hands out an event once, and its Xid must reach the list."""

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
        self._complaints: dict[int | str, str] = {}  # by index; "": of the driver
        self._events: Any = None
        self._watched: set[int] = set()
        # The latest time (monotonic) of each code of each UUID: many of one GPU displace none of another.
        self._xids: dict[tuple[str, int], float] = {}
        # Index -> the GPU as it was last seen there: a lost one may no longer report its UUID or its address.
        self._seen: dict[int, _Gpu] = {}

    @_locked
    def is_available(self) -> bool:
        """Open the library if possible. Without it this is a CPU node until a driver appears."""
        if self._is_open:
            return True
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._complain("", f"no GPUs through NVML: {error}")
            return False
        self._is_open = True
        return True

    @property
    def complaint(self) -> str:
        """The problems of the driver, or of GPUs when they were listed last; empty if there are none."""
        return "; ".join(self._complaints.values())

    @_locked
    def driver_version(self) -> str | None:
        return _text(pynvml.nvmlSystemGetDriverVersion) if self.is_available() else None

    @_locked
    def devices(self) -> list[DeviceFacts]:
        """Return the present devices; for a GPU in MIG mode its instances instead of itself. A device that does not
        report its UUID is left out: no job could be given it."""
        facts: list[DeviceFacts] = []
        handles = {index: handle for index, handle in self._handles() if handle is not None}
        linked = islands(sorted(handles), lambda first, second: _is_linked(handles[first], handles[second]))
        for index, handle in handles.items():
            try:
                facts += [_facts(device, linked.get(index)) for device in self._devices(index, handle)]
                self._complaints.pop(index, None)
            except pynvml.NVMLError as error:
                self._complain(index, f"GPU {index} does not identify itself: {error}")
            except DeviceLost:
                self._complain(index, f"GPU {index} is lost")
        return facts

    @_locked
    def read(self) -> list[Reading]:
        """Return a full reading of each device. Without the driver, all that were seen before are lost."""
        handles = self._handles()
        readings = [reading for index, handle in handles for reading in self._readings(index, handle, _reading)]
        self._collect_xids(handles)
        now = time.monotonic()
        self._xids = {xid: at for xid, at in self._xids.items() if now - at < XID_SECONDS}
        recent: dict[str, list[Xid]] = {}
        for (uuid, code), at in self._xids.items():
            recent.setdefault(uuid, []).append(Xid(code=code, seconds_ago=int(now - at)))
        return [replace(reading, xids=recent.get(reading.uuid, [])) for reading in readings]

    @_locked
    def read_use(self, devices: Collection[str]) -> list[Reading]:
        """Return readings of memory and processes alone, of these devices."""
        handles = self._handles()
        readings = [reading for index, handle in handles for reading in self._readings(index, handle, _use)]
        return [reading for reading in readings if reading.uuid in devices]

    def _devices(self, index: int, gpu: Any) -> "list[_Device]":
        """Return the devices of a GPU, and remember them. Raises DeviceLost or NVMLError."""
        devices = _devices(index, gpu)
        uuids = {device.uuid: device.instance for device in devices}
        self._seen[index] = _Gpu(_address(gpu), _bus(gpu), uuids)
        return devices

    def _readings(self, index: int, gpu: Any, ask: "Callable[[_Device], Reading]") -> list[Reading]:
        """Return a reading of each device of a GPU. `gpu`: its handle; None if it cannot be opened."""
        if gpu is not None:
            with suppress(DeviceLost, pynvml.NVMLError):
                return [ask(device) for device in self._devices(index, gpu)]
        return [Reading(uuid=uuid, lost=True) for uuid in self._seen[index].uuids] if index in self._seen else []

    def _uuids_of(self, gpu: Any, instance: int) -> list[str]:
        """Return the UUIDs last seen on the GPU of an event, even if it is lost; only those of one GPU instance if
        `instance` names one."""
        # By the handle too: a lost GPU may not report its address on the bus.
        names = {_address(gpu), _bus(gpu)} - {None}
        uuids = next((seen.uuids for seen in self._seen.values() if names & {seen.address, seen.bus}), {})
        return [uuid for uuid, its in uuids.items() if instance == NO_INSTANCE or its in (None, instance)]

    def _collect_xids(self, handles: list[tuple[int, Any]]) -> None:
        """Store the Xids since the last call. A driver or device that reports no Xids has none."""
        try:
            self._watch(handles)
            for _ in range(MAX_EVENTS):
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                if event.eventType & pynvml.nvmlEventTypeXidCriticalError:
                    uuids = self._uuids_of(event.device, int(event.gpuInstanceId))
                    self._xids |= {(uuid, int(event.eventData)): time.monotonic() for uuid in uuids}
        except pynvml.NVMLError:
            return  # no more events (a timeout), or no support for events

    def _watch(self, handles: list[tuple[int, Any]]) -> None:
        if self._events is None:
            self._events = pynvml.nvmlEventSetCreate()
        for index, handle in handles:
            if handle is None or index in self._watched:
                continue
            try:
                if pynvml.nvmlDeviceGetSupportedEventTypes(handle) & pynvml.nvmlEventTypeXidCriticalError:
                    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
            except pynvml.NVMLError_GpuIsLost:
                continue  # it may come back
            except pynvml.NVMLError:
                pass
            self._watched.add(index)

    def _handles(self) -> list[tuple[int, Any]]:
        """Return the index and the handle of each GPU; None of one that cannot be opened, as a lost one may not be, nor
        any while the driver is gone."""
        count = self._count()
        if count is None:
            return [(index, None) for index in self._seen]
        self._complaints = {of: text for of, text in self._complaints.items() if isinstance(of, int) and of < count}
        handles: list[tuple[int, Any]] = []
        for index in range(count):
            try:
                handles.append((index, pynvml.nvmlDeviceGetHandleByIndex(index)))
            except pynvml.NVMLError as error:
                self._complain(index, f"GPU {index} cannot be opened: {error}")
                handles.append((index, None))
        return handles

    def _count(self) -> int | None:
        """Return the number of GPUs; None if the driver does not answer, also once it is opened anew."""
        if self._is_open:
            with suppress(pynvml.NVMLError):
                return int(pynvml.nvmlDeviceGetCount())
            logger.warning("NVML stopped answering, opening it again")
            self._close()
        if not self.is_available():
            return None
        try:
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            self._complain("", f"NVML does not answer: {error}")
            self._close()
            return None
        self._seen = {}  # the driver may have numbered the GPUs anew
        return count

    def _close(self) -> None:
        """Close the library, as after a driver reload: while it is open, opening it again only counts."""
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
        self._is_open = False
        self._events, self._watched = None, set()

    def _complain(self, of: int | str, text: str) -> None:
        if text != self._complaints.get(of):
            logger.warning(text)
        self._complaints[of] = text


@dataclass(frozen=True)
class _Device:
    """A device that jobs can be given: a GPU, or a MIG instance (`slices` is then the size of its GPU instance). `gpu`
    is the handle of the whole GPU, which alone reports heat, clocks and links."""

    index: int
    uuid: str
    handle: Any
    gpu: Any
    instance: int | None = None
    slices: int | None = None


@dataclass(frozen=True)
class _Gpu:
    """A GPU as it was last seen: the address of its handle, that on the PCI bus, and its devices by UUID, with their
    GPU instance."""

    address: int | None
    bus: str | None
    uuids: dict[str, int | None]


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _bus(gpu: Any) -> str | None:
    try:
        return _text(lambda: pynvml.nvmlDeviceGetPciInfo(gpu).busId)
    except DeviceLost:
        return None


def _devices(index: int, gpu: Any) -> list[_Device]:
    """Return the GPU, or in MIG mode its instances. A GPU that is not divided yet has none: nothing can run on it."""
    uuid = _need(lambda: pynvml.nvmlDeviceGetUUID(gpu))
    mode = _ask(lambda: pynvml.nvmlDeviceGetMigMode(gpu)[0])
    if mode == pynvml.NVML_DEVICE_MIG_ENABLE:
        slots = _ask(lambda: int(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu))) or 0
        devices = [device for slot in range(slots) if (device := _instance(index, gpu, slot)) is not None]
    else:
        devices = [_Device(index, uuid, gpu, gpu)]
    return devices


def _instance(index: int, gpu: Any, slot: int) -> _Device | None:
    handle = _ask(lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot))
    uuid = None if handle is None else _text(lambda: pynvml.nvmlDeviceGetUUID(handle))
    if uuid is None:
        return None  # no instance in this slot, or one that is being created or destroyed
    slices = _ask(lambda: int(pynvml.nvmlDeviceGetAttributes(handle).gpuInstanceSliceCount))
    instance = _ask(lambda: int(pynvml.nvmlDeviceGetGpuInstanceId(handle)))
    return _Device((index + 1) * MIG_INDEX + slot, uuid, handle, gpu, instance, slices)


def _facts(device: _Device, island: int | None) -> DeviceFacts:
    bus = _text(lambda: pynvml.nvmlDeviceGetPciInfo(device.gpu).busId)
    memory = _ask(lambda: _memory(device.handle))
    is_whole = device.handle is device.gpu
    return DeviceFacts(
        uuid=device.uuid,
        index=device.index,
        model=_need(lambda: pynvml.nvmlDeviceGetName(device.handle)) if is_whole else _mig_name(device),
        memory_mb=None if memory is None else int(memory.total) // MIB,
        pci_bus_id=bus,
        numa_node=None if bus is None else numa_node(bus),
        nvlink_island=island if is_whole else None,  # CUDA does not connect two instances
        mig_parent=None if is_whole else _need(lambda: pynvml.nvmlDeviceGetUUID(device.gpu)),
        mig_slices=device.slices,
    )


def _mig_name(device: _Device) -> str:
    """Return a name such as `NVIDIA H100 MIG 1g.10gb`. Newer drivers report it; otherwise compose it as nvidia-smi
    does."""
    reported = _text(lambda: pynvml.nvmlDeviceGetName(device.handle)) or ""
    if " MIG " in reported:
        return reported
    gpu = _need(lambda: pynvml.nvmlDeviceGetName(device.gpu))
    size = _ask(lambda: pynvml.nvmlDeviceGetAttributes(device.handle))
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


def _reading(device: _Device) -> Reading:
    """Return a device's full reading. A MIG instance has its own memory and processes; heat, clocks and errors are its
    GPU's, and its share of the GPU's power is unknown."""
    handle, gpu = device.handle, device.gpu
    power = power_limit = None
    if handle is gpu:
        power = _ask(lambda: float(pynvml.nvmlDeviceGetPowerUsage(gpu)) / 1000)
        power_limit = _ask(lambda: float(pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu)) / 1000)
    return replace(
        _use(device),
        utilisation_percent=_ask(lambda: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        temperature_celsius=_ask(lambda: int(pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU))),
        power_watts=power,
        power_limit_watts=power_limit,
        sm_clock_mhz=_ask(lambda: int(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM))),
        memory_clock_mhz=_ask(lambda: int(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM))),
        throttle_reasons=_ask(lambda: int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))),
        ecc_corrected=_ecc(gpu, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ecc_uncorrected=_ecc(gpu, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    )


def _use(device: _Device) -> Reading:
    return Reading(
        uuid=device.uuid,
        memory_used_mb=_ask(lambda: _used_mb(_memory(device.handle))),
        process_ids=_ask(lambda: [int(p.pid) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(device.handle)]),
    )


def _memory(handle: Any) -> Any:
    """Return total and used bytes. The memory that the driver keeps for itself (480 MiB of an H100) is not used, as in
    nvidia-smi; drivers before 510 do not tell it apart."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_ArgumentVersionMismatch):
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _used_mb(memory: Any) -> int | None:
    """Return the used MiB; None if they are more than there are, as NVML's value for "not available" is."""
    return int(memory.used) // MIB if memory.used <= memory.total else None


def _ecc(gpu: Any, kind: int) -> int | None:
    return _ask(lambda: int(pynvml.nvmlDeviceGetTotalEccErrors(gpu, kind, pynvml.NVML_VOLATILE_ECC)))


def _ask(question: Callable[[], T]) -> T | None:
    """Return the answer; None if this driver or device does not support the question. Raises DeviceLost."""
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
