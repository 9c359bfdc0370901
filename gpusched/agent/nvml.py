"""The only file that touches NVML (through nvidia-ml-py). What the driver does not say is None, never 0 or invented."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from gpusched.protocol.messages import DeviceFacts, Reading

logger = logging.getLogger(__name__)
T = TypeVar("T")
MIB = 1 << 20


class DeviceLost(Exception):
    """The driver says that the device has fallen off the bus."""


class Nvml:
    """The GPUs of this machine. Methods block: a driver in trouble may take seconds, so they run in a thread."""

    def __init__(self) -> None:
        self._is_open = False
        self._said = ""

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
        for index, handle in self._handles():
            try:
                found.append(_facts(index, handle))
            except pynvml.NVMLError as error:
                self._say(f"GPU {index} does not say what it is: {error}")
            except DeviceLost:
                self._say(f"GPU {index} is lost")
        return found

    def read(self) -> list[Reading]:
        """One look at each device."""
        if not self.is_available():
            return []
        return [reading for _, handle in self._handles() if (reading := _reading(handle)) is not None]

    def _handles(self) -> list[tuple[int, Any]]:
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            # After a driver reload the library must be opened anew.
            self._say(f"NVML stopped answering, opening it again: {error}")
            self._is_open = False
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


def _facts(index: int, handle: Any) -> DeviceFacts:
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
    )


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
        bus = _text_or_lost(lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId)
        return Reading(uuid=_uuids[bus], lost=True) if bus in _uuids else None


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
