"""The one process that imports a Program. It obeys binary commands, runs calls, and exports raw outputs. It never holds
an expected value, a tolerance, an input seed or a verdict. torch and the standard library only; loaded by ``sandbox``.

With ``subject: reference`` it runs the Task's own model instead, eager or through one of torch's stock accelerators, so
that baselines are measured by the same code and protocol.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib.util
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from stitchcuda.evaluation import wire
    from stitchcuda.evaluation.wire import Code, Command, Op


def load_file(name: str, path: Path) -> ModuleType:
    """Import one file by its path, without its package."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    wire = load_file("stitchcuda_wire", Path(__file__).with_name("wire.py"))
    Op, Code, Command = wire.Op, wire.Code, wire.Command


HARMLESS_ERRORS = (600, 704)
"""cudaErrorNotReady and cudaErrorPeerAccessAlreadyEnabled, which are answers rather than errors."""


class Nothing(Exception):
    """There was nothing to do."""


class Mismatch(Exception):
    """The Program's state has other names or shapes than the reference's."""


class Runner:
    """One Program, from import to exit."""

    def __init__(self, config: dict[str, Any]) -> None:
        import torch

        here = Path(__file__).parent
        self.torch = torch
        self.layout: Any = load_file("stitchcuda_layout", here / "layout.py")
        self.buffers: Any = load_file("stitchcuda_buffers", here / "buffers.py")
        self.states: Any = load_file("stitchcuda_state", here / "state.py")
        self.poisons: Any = load_file("stitchcuda_poison", here / "poison.py")
        self.launchers: Any = load_file("stitchcuda_launchers", here / "launchers.py")
        self.collect_path = here / "collect.py"
        self.config = config
        self.cuda = config["kind"] == "cuda"
        self.arena: wire.Arena
        self.memory: Any = None
        self.view: memoryview
        self.data: dict[str, torch.Tensor] = {}
        self.setup: dict[str, Any] = {}
        self.arguments: list[Any] = []
        self.model: torch.nn.Module | None = None
        self.call: Callable[..., Any] | None = None
        self.inputs: Any = None
        """CallInputs, once attached"""
        self.outputs: Any = None
        self.held: list[Any] = []
        held_state: Any = load_file("stitchcuda_held_state", here / "held_state.py")
        self.kept: Any = held_state.HeldState(self.states, self.layout, config["kind"])
        self.flush_buffer: torch.Tensor | None = None
        self.poison: Any = None
        self.library: Any = None
        self.witness: Any = None
        self.patched: list[str] = []
        self.launches: Any = self.launchers.Launches()
        self.wall = 0
        """Of the last call, nanoseconds"""
        self.early: dict[str, Any] | None = None
        """The outputs of an ordered call, as they were on the current stream"""

    def report(self, value: Any) -> None:
        wire.put_text(self.view, self.arena, "report", json.dumps(value))

    def read(self, region: str) -> Any:
        return json.loads(wire.get_text(self.view, self.arena, region))

    def sync(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def hello(self) -> None:
        fd = self.config["arena_fd"]
        self.arena = wire.Arena.unpack(os.pread(fd, wire.PAGE, 0))
        self.memory = self.buffers.map_arena(fd, self.arena.total)
        self.view = memoryview(self.memory)
        if self.cuda:
            # What cannot be had without the device is reported; the rest is needed, and fails, later.
            self.torch.zeros(1, device="cuda")
            with contextlib.suppress(RuntimeError):
                self.rehearse()
        self.report({"missing": self.config["missing"], "torch": self.torch.__version__})

    def rehearse(self) -> None:
        """Do with a few elements what is done around calls: a process loads each of torch's kernels when it first needs
        it, and each takes milliseconds."""
        torch = self.torch
        memory = torch.zeros(4096, dtype=torch.uint8, device="cuda")
        values = memory[:2048].view(torch.float32)
        values.fill_(float("nan"))
        values.clone().zero_()
        memory[2048:].view(torch.float32).copy_(values)
        memory[2048:].copy_(memory[:2048])
        torch.stack([values.sum(dtype=torch.float64)] * 2).tolist()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        torch.cuda._sleep(1)
        torch.cuda.memory_snapshot()
        self.sync()
        event.elapsed_time(event)

    def attach(self) -> None:
        self.setup = self.read("setup")
        handles = self.setup.get("handles")
        if handles:
            opened = self.buffers.DeviceBuffers()
        for region in ("inputs", "outputs", "state"):
            if handles and region in handles:
                size = handles[region]["size"]
                self.data[region] = opened.open(region, bytes.fromhex(handles[region]["handle"]), size)
            else:
                offset, size = self.arena.offsets[region]
                self.data[region] = self.buffers.host_buffer(self.memory, offset, size)
        for shared in self.data.values():
            if shared.is_cuda:
                shared[:1].clone()
        self.sync()
        library = opened.library if handles else self.buffers.runtime_library() if self.cuda else None
        self.library = library
        self.poison = self.poisons.Poison(self.cuda, library, self.config["defences"])
        call_inputs: Any = load_file("stitchcuda_call_inputs", Path(__file__).with_name("call_inputs.py"))
        place = "cpu" if self.setup["host_inputs"] else self.config["kind"]
        self.inputs = call_inputs.CallInputs(self.layout, self.data["inputs"], place, guard=self.config["defences"])
        if self.config["defences"] and self.config["subject"] == "program":
            candour: Any = load_file("stitchcuda_candour", Path(__file__).with_name("candour.py"))
            own = (wire, self.layout, self.states, self.launchers, type(self), type(self.inputs), type(self.kept))
            self.witness = candour.Witness(own)
        self.arguments = self.layout.unpack(self.setup["init"], self.data["state"], "cpu")
        allowed = self.setup["precision"] == "tf32"
        self.torch.backends.cuda.matmul.allow_tf32 = allowed
        self.torch.backends.cudnn.allow_tf32 = allowed
        self.report({})

    def load(self, seed: int, flags: int) -> None:
        torch = self.torch
        if self.config["search_path"]:
            sys.path.insert(0, self.config["search_path"])
        if self.config["subject"] == "reference":
            source = self.config["reference"]
            module = load_file("stitchcuda_reference", Path(source))
            factory = module.Model
        else:
            folder = Path(self.config["workdir"]) / "program"
            wire.get_files(self.config["program_fd"], folder)
            os.close(self.config["program_fd"])
            sys.path.insert(0, str(folder))
            inline: Any = load_file("stitchcuda_torch_inline", Path(__file__).with_name("torch_inline.py"))
            inline.install(folder / inline.FOLDER)
            bindings = folder / "bindings.py"
            if flags & wire.KNOCK_OUT:
                self.launchers.knock_out(load_file("bindings", bindings))
            elif self.witness is not None and bindings.exists():
                self.launches.watch(load_file("bindings", bindings))
            module = load_file("program", folder / "program.py")
            factory = module.ModelNew
        self.factory = factory
        self.construct(seed, on_device=self.config["kind"] != "cpu")
        assert isinstance(self.model, torch.nn.Module)

    def construct(self, seed: int, *, on_device: bool = False) -> None:
        """Build the module; ``on_device`` draws the weights there where the source allows it, which is much faster
        for large models and makes no difference where the oracle's state is copied in afterwards.
        """
        torch = self.torch
        self.model = None
        self.kept.let_go()
        gc.collect()
        arguments = copy.deepcopy(self.arguments)
        self.states.seed_all(seed)
        try:
            with torch.device(self.config["kind"]) if on_device else contextlib.nullcontext():
                model = self.build(arguments)
        except Exception:
            if not on_device:
                raise
            self.states.seed_all(seed)
            model = self.build(copy.deepcopy(self.arguments))
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"ModelNew must be a torch.nn.Module, not {type(model).__name__}")
        model = self.states.settle(model, self.config["kind"], self.setup["precision"])
        if self.setup["training"] is not None:
            model.train(self.setup["training"])
        self.model = model
        self.call = model
        self.kept.hold(model, self.setup["watch"])
        self.sync()

    def build(self, arguments: list[Any]) -> Any:
        """Call the factory with the constructor's arguments."""
        assert self.factory is not None
        return self.factory(**arguments[0]) if self.setup["init_keywords"] else self.factory(*arguments)

    def state(self, by_value: bool) -> None:
        """Copy the oracle's state in place; see ``HeldState.take``."""
        misfit, unmatched = self.kept.take(self.read("structure"), self.data["state"], by_value=by_value)
        if misfit:
            raise Mismatch(misfit)
        self.sync()
        if self.cuda:
            self.torch.cuda.empty_cache()
        self.report({"unmatched": unmatched})

    def prepare(self) -> int:
        """Pack or fold weights (a Program), or wrap the model (a baseline); nanoseconds."""
        variant = self.config["variant"]
        if variant:
            stock = load_file("stitchcuda_stock", Path(__file__).with_name("stock.py"))
            self.call = stock.wrap(self.model, variant)
            return 0
        prepare = getattr(self.model, "prepare", None)
        if not callable(prepare):
            raise Nothing
        began = time.perf_counter_ns()
        with self.torch.no_grad():
            prepare()
        self.sync()
        self.kept.find()
        return time.perf_counter_ns() - began

    def settle(self) -> None:
        """Before inputs come: let go of the last outputs, and overwrite what is free."""
        self.poison.freed(True)
        self.outputs = None
        self.sync()
        self.poison.fill()

    def take_inputs(self, flags: int, seed: int) -> None:
        """Fresh copies of the inputs, state as it was, caches emptied, generators seeded (unless negative)."""
        self.outputs = None
        self.poison.freed(False)
        reuse = bool(flags & wire.REUSE)
        kept = self.addresses(self.held) if reuse else set()
        self.inputs.take(self.read("structure"), reuse=reuse, kept=kept)
        self.kept.put_back()
        if self.cuda:
            self.torch.cuda.reset_peak_memory_stats()
            self.poison.reset_persisting_cache()
            if flags & wire.FLUSH and self.setup["flush_bytes"]:
                if self.flush_buffer is None:
                    cache = getattr(self.torch.cuda.get_device_properties(0), "L2_cache_size", 0)
                    size = max(self.setup["flush_bytes"], 2 * cache)
                    self.flush_buffer = self.torch.empty(size, dtype=self.torch.uint8, device="cuda")
                self.flush_buffer.fill_(1)
        if seed >= 0:
            self.states.seed_all(seed)
        self.sync()

    def addresses(self, value: Any) -> set[int]:
        """Where the storages of the tensors in a value lie."""
        tensors: list[torch.Tensor] = []
        self.layout.describe(value, tensors)
        plain = [tensor for tensor in tensors if type(tensor) is self.torch.Tensor]
        return {tensor.untyped_storage().data_ptr() for tensor in plain} - {0}

    def control(self, form: int) -> Any:
        """Memory of the form that the answers to an input case have, with nothing in it."""
        answer, device = self.setup["answers"][form], self.config["kind"]
        tensors = [
            self.torch.empty_strided(e["shape"], e["strides"], dtype=self.layout.dtype_of(e["dtype"]), device=device)
            for e in answer["tensors"]
        ]
        return self.layout.rebuild(answer["structure"], tensors)

    def run_call(self, flags: int, form: int) -> tuple[int, int]:
        """One call, or with ``CONTROL`` an answer of a ``form`` alone; wall and device nanoseconds."""
        torch, inputs = self.torch, self.inputs.values
        if flags & wire.ORDERED:
            # Here, so that nothing comes between the busy stream and the call, however busy the machine is.
            self.inputs.arrive(self.wall)
        call = (lambda *_: self.control(form)) if flags & wire.CONTROL else self.call
        assert call is not None
        self.poison.allocated(bool(flags & wire.FILL))
        # What a container of the Program's own computes when it is gone through is a part of the call.
        plain, clock = self.layout.plain, time.perf_counter_ns
        device = 0
        self.early = None
        self.launches.begin()
        with torch.no_grad():
            if flags & wire.ORDERED:
                began = clock()
                try:
                    outputs = plain(call(*inputs))
                    self.early = self.layout.pack({"out": outputs}, self.data["outputs"], keep_strides=False)
                finally:
                    self.sync()  # nobody is to find the stream busy
                wall = clock() - began
            elif self.cuda:
                start = torch.cuda.Event(enable_timing=True)
                end = torch.cuda.Event(enable_timing=True)
                torch.cuda.synchronize()
                began = clock()
                start.record()
                outputs = plain(call(*inputs))
                end.record()
                torch.cuda.synchronize()
                wall = clock() - began
                device = int(start.elapsed_time(end) * 1e6)
                asked = self.library is not None and self.config["subject"] == "program"
                left = self.library.cudaPeekAtLastError() if asked else 0
                if left and left not in HARMLESS_ERRORS:
                    words = self.library.cudaGetErrorString(left).decode("utf-8", "replace")
                    raise RuntimeError(f"the call leaves CUDA error {left} behind, which nobody asked for: {words}")
            else:
                began = clock()
                outputs = plain(call(*inputs))
                wall = clock() - began
        self.poison.freed(True)
        self.outputs, self.wall = outputs, wall
        self.launches.end(counted=bool(flags & wire.COUNT))
        if flags & wire.FILL and self.witness is not None and not flags & wire.CONTROL:
            self.patched = self.witness.patched()
        if flags & wire.HOLD:
            self.held.append(outputs)
        return wall, device

    def export(self, outputs: Any, with_state: bool) -> None:
        # What an ordered call has copied already is only described.
        early, self.early = self.early, None
        value: dict[str, Any] = {"out": outputs}
        if with_state:
            value["state"] = dict(self.kept.watch)
        told: dict[str, Any] = {}
        if self.witness is not None:
            tensors: list[torch.Tensor] = []
            self.layout.describe(outputs, tensors)
            told = {"lazy": self.witness.lazy(tensors), "patched": self.patched, "waiting": self.witness.waiting()}
        with self.torch.no_grad():
            description = early or self.layout.pack(value, self.data["outputs"], keep_strides=False)
        if with_state and self.witness is not None:
            told["moved"] = self.kept.moved()[:8]
        if self.witness is not None:
            told["limits"] = self.poison.limits()
        description["told"] = told | {"aliases": bool(self.addresses(outputs) & self.inputs.storages())}
        self.sync()
        self.report(description)

    def trace(self, calls: int) -> None:
        """A profiler's pass over the inputs last taken, and what it shows of the Program's launchers: those that refuse
        every call, and those that are called here and not when nobody looks."""
        collect: Any = load_file("stitchcuda_collect", self.collect_path)
        bindings = sys.modules.get("bindings")
        call, inputs = self.call, self.inputs.values
        assert call is not None
        traced: dict[str, Any] = {}
        error = ""
        with self.launchers.counted(bindings) as counts, self.torch.no_grad():
            try:
                if not self.launches.calls:
                    # Nothing was timed: there is nothing to compare with.
                    call(*inputs)
                if bindings is not None:
                    bindings.PROFILE = True  # type: ignore[attr-defined]
                traced = collect.collect(lambda: call(*inputs), calls, self.cuda)
            except Exception as raised:
                # What was seen before it counts all the same.
                error = f"{type(raised).__name__}: {raised}"[:500]
        told: dict[str, Any] = {"failing": self.launchers.failing(counts)}
        told["traced_only"] = self.launches.only_in(self.launchers.launched(counts))
        if self.witness is not None:
            told["patched"] = self.witness.patched()
        self.report(traced | {"told": told} | ({"error": error} if error else {}))

    def obey(self, command: Command) -> tuple[int, int]:
        """Carry one command out; wall and device nanoseconds of the timed part."""
        op = command.op
        if op == Op.HELLO:
            self.hello()
        elif op == Op.ATTACH:
            self.attach()
        elif op == Op.LOAD:
            self.load(command.argument, command.flags)
        elif op == Op.RESEED:
            self.construct(command.argument)
        elif op == Op.STATE:
            self.state(bool(command.flags & wire.BY_VALUE))
        elif op == Op.PREPARE_MODEL:
            return self.prepare(), 0
        elif op == Op.SETTLE:
            self.settle()
        elif op == Op.INPUTS:
            self.take_inputs(command.flags, command.argument)
        elif op == Op.CALL:
            return self.run_call(command.flags, command.argument)
        elif op == Op.EXPORT:
            if not command.flags & wire.ORDERED:
                self.early = None
            self.export(self.outputs, bool(command.flags & wire.STATE_OUT))
            if command.flags & wire.INPUTS_OUT:
                self.inputs.write_back()
                self.sync()
        elif op == Op.EXPORT_HELD:
            self.early = None
            self.export(self.held[command.argument], False)
        elif op == Op.TRACE:
            self.trace(command.argument)
        return 0, 0

    def peaks(self) -> tuple[int, int]:
        """Peak bytes so far: device (since the inputs came), host."""
        device = self.torch.cuda.max_memory_allocated() if self.cuda else 0
        return device, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def classify(error: BaseException) -> Code:
    """Which reply code an exception stands for."""
    text = str(error).lower()
    if isinstance(error, Mismatch):
        return Code.STATE_MISMATCH
    if isinstance(error, Nothing):
        return Code.NOTHING
    memory = ("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc", "not enough memory")
    if isinstance(error, MemoryError) or any(phrase in text for phrase in memory):
        return Code.OUT_OF_MEMORY
    return Code.RAISED


def main(config: dict[str, Any]) -> None:
    """Obey commands until EXIT or the other end closes."""
    if config["torch_folder"] not in sys.path:
        sys.path.append(config["torch_folder"])
    runner = Runner(config)
    while True:
        try:
            command = Command.unpack(wire.read_exact(config["command_fd"], wire.COMMAND.size))
        except wire.Closed:
            return
        wall = device = 0
        code = Code.OK
        if command.op == Op.EXIT:
            return
        if command.op != Op.NOOP:
            try:
                wall, device = runner.obey(command)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                code = classify(error)
                if command.op == Op.ATTACH:
                    code = Code.NO_IPC
                trace = "".join(traceback.format_exception(error))
                runner.report({"error": f"{type(error).__name__}: {error}"[:2000], "trace": trace[-4000:]})
                del error
        peaks = runner.peaks() if command.op in (Op.CALL, Op.LOAD) else (0, 0)
        reply = wire.Reply(command.op, code, command.call, command.token, wall, device, *peaks)
        wire.write_all(config["reply_fd"], reply.pack())


if __name__ == "__main__":
    os._exit(64)
