"""A CUDA program without CUDA's toolkit: the driver's own library by ctypes. It prints the UUIDs of its devices. With a
number of MiB it then allocates that much on the first, prints `ready`, and waits to be killed; with `fault` it runs a
kernel that writes to an address that is not its own."""

import ctypes
import signal
import sys

# Older than any driver in use: the driver compiles it for its GPU.
FAULT = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry fault()
{
    .reg .b64 %address;
    .reg .b32 %value;
    mov.u64 %address, 64;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
"""
cuda = ctypes.CDLL("libcuda.so.1")


def check(code: int, call: str) -> None:
    if code:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(name))
        raise SystemExit(f"{call}: {(name.value or b'').decode()} ({code})")


def main() -> None:
    check(cuda.cuInit(0), "cuInit")
    count = ctypes.c_int()
    check(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    for index in range(count.value):
        print(uuid_of(index), flush=True)
    if len(sys.argv) > 1:
        use(sys.argv[1])


def uuid_of(index: int) -> str:
    device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    check(cuda.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
    check(cuda.cuDeviceGetUuid(raw, device), "cuDeviceGetUuid")
    text = bytes(raw).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def use(what: str) -> None:
    context, device = ctypes.c_void_p(), ctypes.c_int()
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device), "cuCtxCreate")
    if what == "fault":
        fault()
    else:
        hold(int(what))


def hold(megabytes: int) -> None:
    memory = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(megabytes << 20)), "cuMemAlloc")
    check(cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(1), ctypes.c_size_t(megabytes << 20)), "cuMemsetD8")
    check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
    print("ready", flush=True)
    signal.pause()


def fault() -> None:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuModuleLoadData(ctypes.byref(module), FAULT), "cuModuleLoadData")
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"fault"), "cuModuleGetFunction")
    check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None), "cuLaunchKernel")
    check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")


main()
