"""Recurrent layers as persistent kernels: the programs compute what PyTorch computes, run here under emulation."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from stitchcuda.recipes.capture import capture
from stitchcuda.recipes.recurrent import Recurrent, stack_of
from stitchcuda.recipes.recurrent_kernel import Cost, Stack, Tiling, arguments, source, tilings
from stitchcuda.recipes.write import write_program
from stitchcuda.task.model import Target
from tests.recipes.emulation import compiles, emulate, gpu, load_emulated, needs_nvcc, task_of

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.{kind}({inputs}, {hidden}, {layers}, bias={bias}, batch_first={batch_first},
                             bidirectional={bidirectional}, dropout={dropout})
        self.head = nn.Linear({hidden} * {directions}, 3)
        self.to(torch.{dtype})

    def forward(self, x, h0{extra}):
        out, state = self.rnn(x, {state})
        return self.head(out[{last}]), state

def get_inputs():
    states = [torch.randn({layers} * {directions}, {batch}, {hidden}) for _ in range({states})]
    return [value.to(torch.{dtype}) for value in (torch.randn({lead}, {inputs}), *states)]

def get_init_inputs():
    return []
"""


def recurrent_task(
    kind: str,
    *,
    layers: int,
    bidirectional: bool = False,
    batch_first: bool = False,
    bias: bool = True,
    hidden: int = 32,
    steps: int = 4,
    batch: int = 3,
    dropout: float = 0.0,
    dtype: str = "float32",
) -> str:
    """Source of a task around one recurrent layer."""
    lstm = kind == "LSTM"
    return TASK.format(
        kind=kind,
        layers=layers,
        bidirectional=bidirectional,
        batch_first=batch_first,
        bias=bias,
        hidden=hidden,
        batch=batch,
        inputs=8,
        dropout=dropout,
        dtype=dtype,
        directions=2 if bidirectional else 1,
        extra=", c0" if lstm else "",
        state="(h0, c0)" if lstm else "h0",
        states=2 if lstm else 1,
        last=":, -1" if batch_first else "-1",
        lead=f"{batch}, {steps}" if batch_first else f"{steps}, {batch}",
    )


def results(value: object) -> list[torch.Tensor]:
    """The tensors of a nested result."""
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("kind", "layers", "bidirectional", "batch_first", "bias", "launches"),
    [
        ("GRU", 3, False, False, True, 1),
        ("LSTM", 2, False, True, True, 1),
        ("GRU", 2, True, False, False, 2),
        ("LSTM", 2, True, True, True, 2),
        ("LSTM", 1, False, False, False, 1),
    ],
)
def test_a_program_with_persistent_kernels_computes_what_the_reference_does(
    kind: str,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
    bias: bool,
    launches: int,
    arch: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = recurrent_task(kind, layers=layers, bidirectional=bidirectional, batch_first=batch_first, bias=bias)
    device = gpu(8).model_copy(update={"target": Target(kind="cuda", arch=arch)})
    program = write_program(task_of(text), device, [Recurrent.name])
    assert program.manifest is not None
    name = program.manifest.launchers[0].name
    assert program.files["program.py"].count(f" {name}(") == launches
    same_results(text, load_emulated(program, tmp_path, monkeypatch))


def same_results(text: str, module: ModuleType) -> None:
    """The Program's results are the reference's."""
    scope: dict[str, object] = {}
    exec(compile(text, "task", "exec"), scope)
    torch.manual_seed(1)
    reference = scope["Model"]()  # type: ignore[operator]
    torch.manual_seed(1)
    own = module.ModelNew()
    inputs = scope["get_inputs"]()  # type: ignore[operator]
    with torch.no_grad():
        expected, got = results(reference(*inputs)), results(own(*inputs))
    assert [tuple(t.shape) for t in got] == [tuple(t.shape) for t in expected]
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("kind", "batch", "tiling"),
    [
        ("GRU", 3, Tiling(False, 2, 2, 16, 6, True)),
        ("LSTM", 5, Tiling(False, 2, 1, 8, 4, True)),
        ("LSTM", 3, Tiling(False, 3, 3, 12, 8, True)),
        ("GRU", 4, Tiling(False, 4, 2, 4, 12, True)),
    ],
)
def test_states_go_from_block_to_block_within_a_cluster(
    kind: str, batch: int, tiling: Tiling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stitchcuda.recipes.recurrent._best", lambda stack, rewriter: tiling)
    text = recurrent_task(kind, layers=2, bidirectional=True, batch=batch, steps=7)
    program = write_program(task_of(text), gpu(), [Recurrent.name])
    assert program.manifest is not None
    assert all("_cluster_" in launcher.name for launcher in program.manifest.launchers)
    same_results(text, load_emulated(program, tmp_path, monkeypatch))


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_a_wavefront_walks_its_batch_rows_in_groups(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiling = Tiling(True, 4, 2, 16, 8 if kind == "LSTM" else 6)
    monkeypatch.setattr("stitchcuda.recipes.recurrent._best", lambda stack, rewriter: tiling)
    text = recurrent_task(kind, layers=3, batch=5, steps=5)
    program = write_program(task_of(text), gpu(), [Recurrent.name])
    same_results(text, load_emulated(program, tmp_path, monkeypatch))


LAST = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(8, 32, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, 3)

    def forward(self, x, h0, c0):
        out, {names} = self.rnn(x, (h0, c0))
        return self.head(out[:, -1, :]), {also}

def get_inputs():
    return [torch.randn(3, 5, 8), torch.randn(4, 3, 32), torch.randn(4, 3, 32)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("names", "also", "launchers"), [("_", "x", 3), ("(h, c)", "c", 1), ("_", "out[:, 0]", 1)])
def test_the_last_layer_runs_one_step_in_reverse_when_nobody_reads_the_others(
    names: str, also: str, launchers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = LAST.format(names=names, also=also)
    program = write_program(task_of(text), gpu(8), [Recurrent.name])
    assert program.manifest is not None
    assert len(program.manifest.launchers) == launchers
    same_results(text, load_emulated(program, tmp_path, monkeypatch))


def test_a_kernel_that_was_wrong_gives_way_to_another_and_in_the_end_to_the_library() -> None:
    text = recurrent_task("LSTM", layers=2, bidirectional=True)
    disabled: set[str] = set()
    kinds = []
    for _ in range(3):
        program = write_program(task_of(text), gpu(), [Recurrent.name], disabled=disabled)
        used = {launcher.name for launcher in program.manifest.launchers} if program.manifest else set()
        kinds.append(sorted({name.split("_")[1] for name in used}))
        disabled |= used
    assert sorted(kinds[:2]) == [["cluster"], ["layer"]]
    assert kinds[2] == []


PROJECTED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(8, 32, proj_size=16)

    def forward(self, x, h0, c0):
        return self.rnn(x, (h0, c0))[0]

def get_inputs():
    return [torch.randn(4, 3, 8), torch.randn(1, 3, 16), torch.randn(1, 3, 32)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    "text",
    [
        recurrent_task("GRU", layers=2, dropout=0.5),
        PROJECTED,
        recurrent_task("GRU", layers=1, dtype="float64"),
    ],
    ids=["dropout", "projection", "float64"],
)
def test_it_leaves_alone_what_the_kernel_does_not_compute(text: str) -> None:
    graph = capture(task_of(text)).graph
    nodes = [node for node in graph.nodes if "lstm" in str(node.target) or "gru" in str(node.target)]
    assert nodes
    assert all(stack_of(node) is None for node in nodes)


def test_a_layer_that_no_tiling_can_hold_is_left_to_the_library() -> None:
    stack = Stack("lstm", steps=8, batch=4, inputs=64, hidden=1024, layers=1, bidirectional=True)
    assert tilings(stack, wavefront=False, multiprocessors=16, shared_memory=232448) == []
    assert tilings(Stack("gru", 8, 4, 8, 40, 1), wavefront=False, multiprocessors=132, shared_memory=232448) == []


def test_every_tiling_keeps_all_its_blocks_resident() -> None:
    for stack in (Stack("gru", 512, 10, 128, 256, 6), Stack("lstm", 512, 10, 128, 256, 6, True)):
        found = tilings(stack, wavefront=not stack.bidirectional, multiprocessors=132, shared_memory=232448)
        assert found
        assert all(Cost(stack, tiling).ctas <= 132 for tiling in found)


def test_a_missing_block_ends_in_nan_instead_of_a_hang(tmp_path: Path) -> None:
    stack = Stack("gru", steps=3, batch=2, inputs=8, hidden=32, layers=1, bias=False)
    tiling = Tiling(wavefront=False, batch_tile=2, batch_step=2, units=16, rows_per_warp=6)
    text = source(stack, tiling, "gru").replace("dim3(CTAS)", "dim3(CTAS - 1)").replace("2000000000ll", "1000000ll")
    emulate({"gru.cu": text}, tmp_path / "gru.so")
    shapes = {"x": (3, 2, 96), "w_hh_0": (96, 32), "h0": (1, 2, 32), "out": (3, 2, 32), "h_n": (1, 2, 32)}
    tensors = {name: torch.randn(shapes[name]) for name, _ in arguments(stack, tiling)}
    function = ctypes.CDLL(str(tmp_path / "gru.so")).gru
    assert function(*[ctypes.c_void_p(tensors[name].data_ptr()) for name, _ in arguments(stack, tiling)], None) == 0
    assert tensors["out"][-1].isnan().all()


@needs_nvcc
@pytest.mark.parametrize(
    "stack",
    [Stack("gru", 512, 10, 128, 256, 6), Stack("lstm", 512, 10, 128, 256, 6, True)],
    ids=["gru wavefront", "lstm bidirectional"],
)
def test_the_best_tiling_compiles_for_every_architecture_without_spills(stack: Stack, tmp_path: Path) -> None:
    best = tilings(stack, wavefront=not stack.bidirectional, multiprocessors=132, shared_memory=232448)[0]
    for report in compiles(source(stack, best, "recurrent"), tmp_path).values():
        assert " 0 bytes spill stores" in report
        assert " 0 bytes stack frame" in report
        assert int(re.findall(r"Used (\d+) registers", report)[0]) <= 255
