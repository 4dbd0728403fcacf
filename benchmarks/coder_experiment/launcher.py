"""Launches a program's kernels and times them: the process that ``evaluate`` starts, apart from the one that judges. A
line of JSON in, a line of JSON out; outputs travel through a shared file. Standard library only.

It holds no expected value. An error of the device ends it, and whoever asked starts another. Arguments: back end, the
shared file's number and size, elements of a buffer, the harness's kernels, and for CUDA the file of the driver's
binding.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import json
import mmap
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BUFFERS = ("a", "b", "c", "u", "w", "y")
ZONE = 1 << 16
"""Elements behind what a program may write that have to stay as they are."""
LOCAL_BYTES, REGISTERS = 3, 4
"""CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, CU_FUNC_ATTRIBUTE_NUM_REGS"""
COUNTS = 2
SERVICE_GRID = (1056, 1, 256, 1)


class Cuda:
    """The device through CUDA's driver."""

    def __init__(self, shared: mmap.mmap, elements: int, image: bytes, binding: str) -> None:
        specification = importlib.util.spec_from_file_location("driver_binding", binding)
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        self.error: type[Exception] = module.DriverError
        self.driver = module.Driver("libcuda.so.1")
        self.shared = (ctypes.c_char * len(shared)).from_buffer(shared)
        self.stock = self._load(image)
        self.functions: dict[str, Any] = {}
        size = 4 * (elements + ZONE)
        self.buffers = {name: self.driver.allocate(size) for name in BUFFERS}
        self.counts = self.driver.allocate(4 * COUNTS)
        self.places, self.gathered = self.driver.allocate(len(shared)), self.driver.allocate(len(shared))
        self.events: list[Any] = []
        self.program: Any = None

    def _load(self, image: bytes) -> Any:
        module = ctypes.c_void_p()
        self.driver.must("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(image))
        return module

    def _function(self, module: Any, name: str) -> Any:
        function = ctypes.c_void_p()
        self.driver.must("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def load(self, request: dict[str, Any]) -> None:
        """A program's kernels."""
        self.own: dict[str, Any] = {}
        if request.get("image"):
            self.program = self._load(base64.b64decode(request["image"]))
            self.own = {name: self._function(self.program, name) for name in request["kernels"]}

    def unload(self) -> None:
        """Done with them."""
        if self.program is not None:
            self.driver.must("cuModuleUnload", self.program)
        self.program = None

    def facts(self) -> dict[str, list[int]]:
        """Local memory in bytes and registers of each own kernel."""
        found = {}
        for name, function in self.own.items():
            values = []
            for attribute in (LOCAL_BYTES, REGISTERS):
                value = ctypes.c_int()
                self.driver.must("cuFuncGetAttribute", ctypes.byref(value), attribute, function)
                values.append(value.value)
            found[name] = values
        return found

    def call(self, name: str, grid: tuple[int, ...] | list[int], *values: Any) -> None:
        """Launch a kernel of the harness or of the program."""
        function = self.own.get(name) if name.startswith("own_") else self.functions.get(name)
        if function is None:
            function = self.functions[name] = self._function(self.stock, name)
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        gx, gy, bx, by = grid
        sizes = [ctypes.c_uint(n) for n in (gx, gy, 1, bx, by, 1, 0)]
        self.driver.must("cuLaunchKernel", function, *sizes, None, addresses, None)

    def at(self, name: str, offset: int = 0) -> Any:
        """A buffer's address as an argument."""
        return ctypes.c_uint64(self.buffers[name].value + 4 * offset)

    def count(self, index: int) -> Any:
        """A counter's address as an argument."""
        return ctypes.c_uint64(self.counts.value + 4 * index)

    def poison(self, name: str, elements: int) -> None:
        """Fill with what is no number."""
        self.driver.must("cuMemsetD8_v2", self.buffers[name], ctypes.c_ubyte(0xFF), ctypes.c_size_t(4 * elements))

    def clear(self) -> None:
        """Set the counters to zero."""
        self.driver.must("cuMemsetD8_v2", self.counts, ctypes.c_ubyte(0), ctypes.c_size_t(4 * COUNTS))

    def read_counts(self) -> list[int]:
        """The counters; waits for the device."""
        host = (ctypes.c_uint32 * COUNTS)()
        self.driver.must("cuMemcpyDtoH_v2", host, self.counts, ctypes.c_size_t(4 * COUNTS))
        return list(host)

    def fetch(self, offset: int, elements: int, places: bool) -> None:
        """Elements of the output to the shared file at byte ``offset``: the first, or those whose places lie there."""
        target = ctypes.byref(self.shared, offset)
        source = self.buffers["y"]
        if places:
            self.driver.must("cuMemcpyHtoD_v2", self.places, target, ctypes.c_size_t(4 * elements))
            arguments = (self.at("y"), ctypes.c_uint64(self.places.value), ctypes.c_uint64(self.gathered.value))
            self.call("gather", SERVICE_GRID, *arguments, ctypes.c_uint32(elements))
            source = self.gathered
        self.driver.must("cuMemcpyDtoH_v2", target, source, ctypes.c_size_t(4 * elements))

    def mark(self, index: int) -> None:
        """Record a point in time."""
        while len(self.events) <= index:
            event = ctypes.c_void_p()
            self.driver.must("cuEventCreate", ctypes.byref(event), 0)
            self.events.append(event)
        self.driver.must("cuEventRecord", self.events[index], None)

    def between(self, marks: int) -> list[float]:
        """Seconds from each mark to the next; waits for the device."""
        self.driver.synchronise()
        found = []
        for first, last in zip(self.events[: marks - 1], self.events[1:marks], strict=True):
            milliseconds = ctypes.c_float()
            self.driver.must("cuEventElapsedTime", ctypes.byref(milliseconds), first, last)
            found.append(milliseconds.value * 1e-3)
        return found

    def synchronise(self) -> None:
        """Wait; errors of kernels show here."""
        self.driver.synchronise()


class Cpu:
    """The same on the processor, with functions of shared libraries."""

    error: type[Exception] = OSError

    def __init__(self, shared: mmap.mmap, elements: int, library: str) -> None:
        self.shared = (ctypes.c_char * len(shared)).from_buffer(shared)
        self.stock = ctypes.CDLL(library)
        self.buffers = {name: (ctypes.c_float * (elements + ZONE))() for name in BUFFERS}
        self.counts = (ctypes.c_uint32 * COUNTS)()
        self.marks: list[float] = []
        self.own: dict[str, Any] = {}

    def load(self, request: dict[str, Any]) -> None:
        """A program's functions."""
        self.own = {}
        if request.get("image"):
            library = ctypes.CDLL(request["image"])
            self.own = {name: getattr(library, name) for name in request["kernels"]}

    def unload(self) -> None:
        """Nothing: libraries stay loaded."""

    def facts(self) -> dict[str, list[int]]:
        """Nothing is known of registers here."""
        return {name: [0, 0] for name in self.own}

    def call(self, name: str, grid: tuple[int, ...] | list[int], *values: Any) -> None:
        """Call a function."""
        function = self.own[name] if name.startswith("own_") else getattr(self.stock, name)
        function(*values)

    def at(self, name: str, offset: int = 0) -> Any:
        """A buffer as an argument."""
        return ctypes.c_void_p(ctypes.addressof(self.buffers[name]) + 4 * offset)

    def count(self, index: int) -> Any:
        """A counter as an argument."""
        return ctypes.c_void_p(ctypes.addressof(self.counts) + 4 * index)

    def poison(self, name: str, elements: int) -> None:
        """Fill with what is no number."""
        ctypes.memset(self.buffers[name], 0xFF, 4 * elements)

    def clear(self) -> None:
        """Set the counters to zero."""
        ctypes.memset(self.counts, 0, 4 * COUNTS)

    def read_counts(self) -> list[int]:
        """The counters."""
        return list(self.counts)

    def fetch(self, offset: int, elements: int, places: bool) -> None:
        """Elements of the output to the shared file."""
        target = ctypes.addressof(self.shared) + offset
        if places:
            copy = (ctypes.c_int32 * elements).from_buffer_copy(self.shared, offset)
            self.call("gather", (), self.at("y"), copy, ctypes.c_void_p(target), ctypes.c_uint32(elements))
        else:
            ctypes.memmove(target, self.buffers["y"], 4 * elements)

    def mark(self, index: int) -> None:
        """Record a point in time."""
        self.marks[index:] = [time.perf_counter()]

    def between(self, marks: int) -> list[float]:
        """Seconds from each mark to the next."""
        return [last - first for first, last in zip(self.marks, self.marks[1:], strict=False)]

    def synchronise(self) -> None:
        """Nothing to wait for."""


def run(machine: Cuda | Cpu, request: dict[str, Any]) -> dict[str, Any]:
    """All input sets of one program; the last is timed where ``repeats`` is positive."""
    machine.load(request)
    try:
        damage, times = [], []
        for one in request["sets"]:
            n = one["rows"] * one["cols"]
            inputs = [name for name in ("a", "b", "c") if name in one["keys"]]
            for name in inputs:
                made = ctypes.c_uint32(one["keys"][name]), ctypes.c_int32(one["mode"]), ctypes.c_float(one["scale"])
                machine.call("generate", SERVICE_GRID, machine.at(name), ctypes.c_uint32(n), *made)
            for name in ("u", "w", "y"):
                machine.poison(name, n + ZONE)
            machine.clear()
            for launch in one["launches"]:
                _launch(machine, launch, one)
            for name in inputs:
                made = ctypes.c_uint32(one["keys"][name]), ctypes.c_int32(one["mode"]), ctypes.c_float(one["scale"])
                arguments = (machine.at(name), ctypes.c_uint32(n), *made, machine.count(0))
                machine.call("changed", SERVICE_GRID, *arguments)
            for name in ("u", "w", "y"):
                machine.call("overrun", SERVICE_GRID, machine.at(name, n), ctypes.c_uint32(ZONE), machine.count(1))
            damage.append(machine.read_counts())
            machine.fetch(one["offset"], one["count"], one["places"])
        if request["repeats"]:
            times = _time(machine, request["sets"][-1], request["repeats"], request["seconds"])
        return {"damage": damage, "times": times, "facts": machine.facts()}
    finally:
        machine.unload()


def _time(machine: Cuda | Cpu, one: dict[str, Any], repeats: int, seconds: float) -> list[list[float]]:
    """Seconds of each node, ``repeats`` times or until ``seconds`` are over. Before each, all that a program may write
    is poisoned: nothing of an earlier launch can be used, most of the L2 cache is emptied, and the device is busy for
    longer than it takes to queue the launches, whose time would be measured otherwise."""
    times: list[list[float]] = []
    total = 0.0
    while len(times) < repeats and (len(times) < 2 or total < seconds):
        for name in ("u", "w", "y"):
            machine.poison(name, one["rows"] * one["cols"])
        machine.mark(0)
        for at, launch in enumerate(one["launches"]):
            _launch(machine, launch, one)
            machine.mark(at + 1)
        times.append(machine.between(len(one["launches"]) + 1))
        total += sum(times[-1])
    return times


def _launch(machine: Cuda | Cpu, launch: dict[str, Any], one: dict[str, Any]) -> None:
    if "own" in launch:
        sizes = [ctypes.c_int32(v) for v in (one["rows"], one["cols"], one["rows"] * one["cols"])]
        machine.call(launch["own"], launch["grid"], *(machine.at(name) for name in BUFFERS), *sizes)
        return
    operand = machine.at(launch["operand"] or launch["source"])
    sizes = [ctypes.c_int32(v) for v in (launch["rows"], launch["cols"])]
    values = (machine.at(launch["source"]), operand, ctypes.c_float(launch["constant"]), machine.at(launch["target"]))
    machine.call(launch["lib"], launch["grid"], *values, *sizes)


def main() -> None:
    """Answer requests until the other end closes."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    backend, number, size, elements, stock = sys.argv[1], *(int(v) for v in sys.argv[2:5]), sys.argv[5]
    shared = mmap.mmap(number, size)
    try:
        machine: Cuda | Cpu
        if backend == "cuda":
            with open(stock, "rb") as file:
                machine = Cuda(shared, elements, file.read(), sys.argv[6])
        else:
            machine = Cpu(shared, elements, stock)
    except Exception as error:
        print(json.dumps({"fatal": f"{type(error).__name__}: {error}"}), file=out, flush=True)
        return
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        try:
            answer = run(machine, json.loads(line))
        except (machine.error, OSError, AttributeError) as error:
            print(json.dumps({"error": str(error)[:300]}), file=out, flush=True)
            os._exit(1)
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
