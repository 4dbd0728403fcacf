"""The generated bindings check what they are given and work under torch's compilers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from stitchcuda.evaluation.build import build
from stitchcuda.program.bindings import render
from stitchcuda.task.model import Target
from tests.program.samples import cpu_program, cuda_program


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = build(cpu_program(), Target(kind="cpu", arch="native"), cache=tmp_path_factory.mktemp("cache"))
    assert result.ok, result.log
    assert result.folder is not None
    return result.folder


@pytest.fixture
def bindings(folder: Path) -> Iterator[ModuleType]:
    specification = importlib.util.spec_from_file_location("bindings", folder / "bindings.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["bindings"] = module
    specification.loader.exec_module(module)
    yield module
    del sys.modules["bindings"]


@pytest.fixture
def model(folder: Path, bindings: ModuleType) -> torch.nn.Module:
    namespace: dict[str, Any] = {"__name__": "program"}
    exec(compile((folder / "program.py").read_text(), "program.py", "exec"), namespace)
    new: torch.nn.Module = namespace["ModelNew"](2.0)
    return new


X = torch.arange(32.0).reshape(4, 8)


def test_a_call_reaches_the_launcher(model: torch.nn.Module) -> None:
    assert torch.equal(model(X), X * 2 + 1)
    assert torch.equal(model(X, False), X * 2)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"x": X.double()}, r"argument x must be a contiguous float32 tensor on cpu.*torch\.float64"),
        ({"x": X.t()}, r"argument x must be .*strides \(1, 8\)"),
        ({"x": torch.arange(33.0)[1:]}, "argument x must be .*aligned to 16 bytes; .*address modulo 256"),
        ({"x": X.to("meta")}, "argument x|Cannot access data pointer|meta"),
    ],
)
def test_a_wrong_tensor_is_refused_with_what_it_was(bindings: ModuleType, changed: Any, sentence: str) -> None:
    values = {"x": X, "shift": None, "y": torch.empty(32), "n": 32, "factor": 1.0} | changed
    with pytest.raises((ValueError, RuntimeError, NotImplementedError), match=sentence):
        bindings.scale_shift(**values)


def test_a_scalar_of_the_wrong_type_is_refused(bindings: ModuleType) -> None:
    with pytest.raises(Exception, match="argument 4"):
        bindings.scale_shift(X, None, torch.empty(32), 1.5, 1.0)


def test_a_launchers_error_code_is_raised_with_its_name(bindings: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="scale_shift failed with code 7"):
        bindings.scale_shift(X, None, torch.empty(32), 13, 1.0)


def test_autograd_is_refused_instead_of_ignored(bindings: ModuleType) -> None:
    wanted = X.clone().requires_grad_()
    with pytest.raises(RuntimeError, match=r"x requires grad; call it under torch\.no_grad"):
        bindings.scale_shift(wanted, None, torch.empty(32), 32, 1.0)
    with torch.no_grad():
        bindings.scale_shift(wanted, None, torch.empty(32), 32, 1.0)


def test_torch_compile_and_export_see_an_operator(model: torch.nn.Module) -> None:
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(X), X * 2 + 1)
        exported = torch.export.export(model, (X,))
    assert "scale_shift" in exported.graph_module.code
    assert torch.equal(exported.module()(X), X * 2 + 1)


def test_profile_names_each_launch(bindings: ModuleType, model: torch.nn.Module) -> None:
    bindings.PROFILE = True  # type: ignore[attr-defined]
    with torch.profiler.profile() as profile:
        model(X)
    assert "own::scale_shift" in {event.key for event in profile.key_averages()}


def test_the_text_for_cuda_uses_the_current_stream_and_one_device() -> None:
    manifest = cuda_program().manifest
    assert manifest is not None
    text = render(manifest, "kernels.so")
    compile(text, "bindings.py", "exec")
    for part in ("_raw_stream(_index)", "with torch.cuda.device(_index)", "cudaGetErrorString", "'CUDA')"):
        assert part in text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_launches_follow_the_current_stream_and_can_be_captured(tmp_path: Path) -> None:
    major, minor = torch.cuda.get_device_capability()
    result = build(cuda_program(), Target(kind="cuda", arch=f"sm_{major}{minor}"), cache=tmp_path)
    assert result.folder is not None, result.log
    specification = importlib.util.spec_from_file_location("bindings_cuda", result.folder / "bindings.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    x, y = torch.arange(4096.0, device="cuda"), torch.zeros(4096, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.scale_shift(x, None, y, 4096, 3.0)
    assert not y.any()
    graph.replay()
    assert torch.equal(y, x * 3)
    with pytest.raises(RuntimeError, match=r"scale_shift failed with CUDA error \d+: "):
        module.scale_shift(x, None, y, 0, 3.0)
