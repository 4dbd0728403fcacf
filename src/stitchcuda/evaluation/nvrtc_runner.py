"""Launches compiled kernels through CUDA's driver and times them: the process that ``nvrtc_tune`` starts. A line of
JSON in, a line of JSON out; buffers' contents travel through a shared file. Standard library only, no torch.

The only foreign code here is device code, and an error of the device ends the process: whoever asked starts another.
"""

from __future__ import annotations

import base64
import ctypes
import json
import mmap
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_DYNAMIC_SHARED_SIZE = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"""
PLAIN_SHARED_BYTES = 48 << 10
"""Of a block without asking for more."""
L2_CACHE_SIZE = 38
"""CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE"""
LEAST_FLUSH_BYTES = 64 << 20

STALE = 0xA5
"""Byte that outputs and scratch are filled with before a launch that is checked."""

TYPES = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


class DriverError(Exception):
    """A call of CUDA's driver failed."""


class Driver:
    """libcuda with one context on the first visible device."""

    def __init__(self, path: str) -> None:
        self.api = ctypes.CDLL(path)
        self.must("cuInit", 0)
        self.device = ctypes.c_int()
        self.must("cuDeviceGet", ctypes.byref(self.device), 0)
        context = ctypes.c_void_p()
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.must("cuCtxSetCurrent", context)

    def must(self, name: str, *arguments: Any) -> None:
        """Call one function; DriverError with its own words unless it succeeds."""
        result = getattr(self.api, name)(*arguments)
        if result:
            text = ctypes.c_char_p()
            self.api.cuGetErrorName(result, ctypes.byref(text))
            raise DriverError(f"{name}: {(text.value or b'').decode() or result}")

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Device memory, bytes."""
        pointer = ctypes.c_uint64()
        self.must("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def fill(self, pointer: ctypes.c_uint64, byte: int, size: int) -> None:
        """Set every byte, in the order of the default stream."""
        self.must("cuMemsetD8_v2", pointer, ctypes.c_ubyte(byte), ctypes.c_size_t(size))

    def synchronise(self) -> None:
        """Wait for everything on the device; errors of kernels show here."""
        self.must("cuCtxSynchronize")


class Bench:
    """Buffers and what is run on them."""

    def __init__(self, driver: Driver, shared: mmap.mmap) -> None:
        self.driver, self.shared = driver, shared
        self.memory = (ctypes.c_char * len(shared)).from_buffer(shared)
        self.buffers: dict[str, tuple[ctypes.c_uint64, int, int, str]] = {}
        """Address, bytes, offset in the shared file (-1: none), role"""
        self.flush_bytes = max(LEAST_FLUSH_BYTES, 2 * self._l2_bytes())
        self.flush_buffer = driver.allocate(self.flush_bytes)
        self.events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in self.events:
            driver.must("cuEventCreate", ctypes.byref(event), 0)

    def _l2_bytes(self) -> int:
        size = ctypes.c_int()
        self.driver.must("cuDeviceGetAttribute", ctypes.byref(size), L2_CACHE_SIZE, self.driver.device)
        return size.value

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Allocate the buffers and upload the inputs."""
        for pointer, _, _, _ in self.buffers.values():
            self.driver.must("cuMemFree_v2", pointer)
        self.buffers = {}
        for name, size, offset, role in request["buffers"]:
            self.buffers[name] = self.driver.allocate(size), size, offset, role
        self.upload()
        return {}

    def upload(self) -> None:
        """The inputs as the shared file holds them, and everything else stale."""
        for pointer, size, offset, role in self.buffers.values():
            if role == "input":
                source = ctypes.byref(self.memory, offset)
                self.driver.must("cuMemcpyHtoD_v2", pointer, source, ctypes.c_size_t(size))
            else:
                self.driver.fill(pointer, STALE, size)
        self.driver.synchronise()

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load a cubin, run its launches once for the outputs, then ``repeats`` times under the clock, the L2 cache
        emptied before each; seconds by events and by this process's clock."""
        driver = self.driver
        image = base64.b64decode(request["cubin"])
        module = ctypes.c_void_p()
        driver.must("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(image))
        try:
            launches = [self._prepare(module, launch) for launch in request["launches"]]
            self.upload()
            self._launch(launches)
            driver.synchronise()
            self._download()
            return self._time(launches, request["repeats"], request["seconds"])
        finally:
            driver.must("cuModuleUnload", module)

    def _time(self, launches: list[tuple[Any, ...]], repeats: int, seconds: float) -> dict[str, Any]:
        driver, (first, last) = self.driver, self.events
        by_events, by_clock = [], []
        began = time.perf_counter()
        for _ in range(repeats):
            driver.fill(self.flush_buffer, 0, self.flush_bytes)
            driver.synchronise()
            start = time.perf_counter()
            driver.must("cuEventRecord", first, None)
            self._launch(launches)
            driver.must("cuEventRecord", last, None)
            driver.synchronise()
            by_clock.append(time.perf_counter() - start)
            milliseconds = ctypes.c_float()
            driver.must("cuEventElapsedTime", ctypes.byref(milliseconds), first, last)
            by_events.append(milliseconds.value * 1e-3)
            if time.perf_counter() - began > seconds:
                break
        return {"events": by_events, "clock": by_clock}

    def _prepare(self, module: ctypes.c_void_p, launch: dict[str, Any]) -> tuple[Any, ...]:
        function = ctypes.c_void_p()
        self.driver.must("cuModuleGetFunction", ctypes.byref(function), module, launch["symbol"].encode())
        if launch["shared_bytes"] > PLAIN_SHARED_BYTES:
            self.driver.must(
                "cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_SIZE, ctypes.c_int(launch["shared_bytes"])
            )
        values = [pack(kind, value, self.buffers) for kind, value in launch["arguments"]]
        addresses = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        sizes = [ctypes.c_uint(n) for n in (*launch["grid"], *launch["block"], launch["shared_bytes"])]
        return function, sizes, addresses, values

    def _launch(self, launches: list[tuple[Any, ...]]) -> None:
        for function, sizes, addresses, _ in launches:
            self.driver.must("cuLaunchKernel", function, *sizes, None, addresses, None)

    def _download(self) -> None:
        for pointer, size, offset, role in self.buffers.values():
            if role == "output":
                self.driver.must("cuMemcpyDtoH_v2", ctypes.byref(self.memory, offset), pointer, ctypes.c_size_t(size))


def pack(kind: str, value: Any, buffers: dict[str, tuple[ctypes.c_uint64, int, int, str]]) -> Any:
    """One kernel argument as a C value: a buffer's address by its name, or a number by its type."""
    if kind == "buffer":
        return ctypes.c_uint64(buffers[value][0].value)
    return TYPES[kind](value)


def main() -> None:
    """Answer requests until the other end closes; arguments: libcuda's path, the shared file's number and size."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what device code prints is no answer
    shared = mmap.mmap(int(sys.argv[2]), int(sys.argv[3]))
    try:
        bench = Bench(Driver(sys.argv[1]), shared)
    except (OSError, DriverError, AttributeError) as error:
        print(json.dumps({"error": str(error)}), file=out, flush=True)
        return
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(bench, request["op"])(request)
        except DriverError as error:
            print(json.dumps({"error": str(error)}), file=out, flush=True)
            os._exit(1)  # an error of the device stays in its context
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
