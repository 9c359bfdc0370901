"""A CUDA program without CUDA's toolkit: the driver's own library by ctypes. It prints the UUIDs of its devices; with a
number of MiB it allocates that much on the first, prints `ready`, and waits to be killed."""

import ctypes
import signal
import sys


def check(code: int, call: str) -> None:
    if code:
        raise SystemExit(f"{call} gives {code}")


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    check(cuda.cuInit(0), "cuInit")
    count = ctypes.c_int()
    check(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    for index in range(count.value):
        print(uuid_of(cuda, index), flush=True)
    if len(sys.argv) > 1:
        hold(cuda, int(sys.argv[1]))


def uuid_of(cuda: ctypes.CDLL, index: int) -> str:
    device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    check(cuda.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
    check(cuda.cuDeviceGetUuid(raw, device), "cuDeviceGetUuid")
    text = bytes(raw).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def hold(cuda: ctypes.CDLL, megabytes: int) -> None:
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    device = ctypes.c_int()
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device), "cuCtxCreate")
    check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(megabytes << 20)), "cuMemAlloc")
    check(cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(1), ctypes.c_size_t(megabytes << 20)), "cuMemsetD8")
    check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
    print("ready", flush=True)
    signal.pause()


main()
