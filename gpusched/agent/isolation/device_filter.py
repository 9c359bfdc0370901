"""Restrict the processes of a cgroup to their GPUs: a small eBPF program that the kernel runs at each open of a device
file, as container runtimes do. Standard library only, because supervisors load it.

Device numbers are those of the kernel's Documentation/admin-guide/devices.txt and of NVIDIA's driver; instructions and
commands those of linux/bpf.h."""

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterable, Sequence

from gpusched.agent.rank_files import raw_file

NVIDIA_MAJOR = 195  # /dev/nvidia0 and so on
# Not GPUs from here on: nvidia-modeset, and nvidiactl, which every CUDA program opens.
FIRST_COMMON_MINOR = 254
_GPUS = "/proc/driver/nvidia/gpus"
_SYSCALL = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH, _CGROUP_DEVICE_PROGRAM, _CGROUP_DEVICE_HOOK, _ALLOW_MULTI = 5, 8, 15, 6, 2
_CHARACTER_DEVICE = 2
# Opcodes: load a word of the context, and with a number, jump if equal / not equal / at least, set, exit.
_LOAD, _AND, _EQUAL, _UNEQUAL, _AT_LEAST, _SET, _LEAVE = 0x61, 0x57, 0x15, 0x55, 0x35, 0xB7, 0x95
_libc = ctypes.CDLL(None, use_errno=True)


def minors(uuids: Iterable[str], gpus: str = _GPUS) -> list[int] | None:
    """Return the minor numbers of GPUs from the driver; None if it does not know one of them (a MIG instance, a pretend
    GPU), or there is no driver."""
    minor_by_uuid: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for gpu in os.listdir(gpus):
            text = raw_file.read(f"{gpus}/{gpu}/information").decode(errors="replace")
            fields = {
                name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())
            }
            if fields.get("Device Minor", "").isdigit() and "GPU UUID" in fields:
                minor_by_uuid[fields["GPU UUID"]] = int(fields["Device Minor"])
    requested = list(uuids)
    return (
        sorted(minor_by_uuid[uuid] for uuid in requested)
        if minor_by_uuid and all(uuid in minor_by_uuid for uuid in requested)
        else None
    )


def is_possible(group: str) -> bool:
    """Return True if this process can filter devices of a cgroup. The filter stays there and forbids nothing."""
    try:
        restrict(group, NVIDIA_MAJOR, range(FIRST_COMMON_MINOR))
    except OSError:
        return False
    return True


def restrict(group: str, major: int, allowed: Iterable[int], first_common: int = FIRST_COMMON_MINOR) -> None:
    """Allow processes of the cgroup, and of those below it, to open among the character devices of that major number
    only those of `allowed` and from `first_common` on. OSError if the kernel refuses."""
    program = _load(_program(major, sorted(set(allowed)), first_common))
    try:
        directory = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bpf(_PROG_ATTACH, struct.pack("=IIII", directory, program, _CGROUP_DEVICE_HOOK, _ALLOW_MULTI))
        finally:
            os.close(directory)
    finally:
        os.close(program)  # the cgroup keeps it


def _program(major: int, allowed: Sequence[int], first_common: int) -> bytes:
    """Assemble the program. Register 1 is the context: u32 access_type (kind in its lower half), major, minor. 1 in
    register 0 allows."""
    tests = [(_EQUAL, minor) for minor in allowed if minor < first_common]
    remaining = len(tests) + 2  # instructions from the end of the tests to "allow"
    code = [
        _instruction(_LOAD, 2, 1, 0, 0),
        _instruction(_AND, 2, 0, 0, 0xFFFF),
        _instruction(_UNEQUAL, 2, 0, remaining + 4, _CHARACTER_DEVICE),
        _instruction(_LOAD, 2, 1, 4, 0),
        _instruction(_UNEQUAL, 2, 0, remaining + 2, major),
        _instruction(_LOAD, 2, 1, 8, 0),
        _instruction(_AT_LEAST, 2, 0, remaining, first_common),
    ]
    code += [_instruction(test, 2, 0, remaining - 1 - at, minor) for at, (test, minor) in enumerate(tests)]
    code += [_instruction(_SET, 0, 0, 0, 0), _instruction(_LEAVE, 0, 0, 0, 0)]
    return b"".join([*code, _instruction(_SET, 0, 0, 0, 1), _instruction(_LEAVE, 0, 0, 0, 0)])


def _instruction(operation: int, target: int, source: int, offset: int, number: int) -> bytes:
    return struct.pack("=BBhi", operation, source << 4 | target, offset, number)


def _load(code: bytes) -> int:
    instructions, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"Apache-2.0")
    addresses = ctypes.addressof(instructions), ctypes.addressof(licence)
    return _bpf(_PROG_LOAD, struct.pack("=IIQQ", _CGROUP_DEVICE_PROGRAM, len(code) // 8, *addresses))


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYSCALL.get(os.uname().machine)
    if number is None:
        raise OSError(0, f"the number of bpf() on {os.uname().machine} is unknown")
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result = int(_libc.syscall(number, command, buffer, 128))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
