"""Extensions of KernelBench-style Programs build in seconds, do the same as with PyTorch's headers, and what our
headers do not offer is built with PyTorch's."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from stitchcuda.evaluation import torch_build, torch_inline
from stitchcuda.evaluation.build import build
from stitchcuda.evaluation.build_cache import BuildCache
from stitchcuda.evaluation.torch_build import Extensions, build_extensions
from stitchcuda.program.model import Program
from stitchcuda.task.model import Target
from tests.evaluation.conftest import CPU, Judge, make_task
from tests.evaluation.torch_cases import CASES, FUNCTIONS, SOURCE, Case

CUDA = Target(kind="cuda", arch="sm_90")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")

ERRORS = r"""
torch::Tensor e_dtype(torch::Tensor x) { return x + double(x.data_ptr<float>()[0]); }
int64_t e_size(torch::Tensor x, int64_t d) { return x.size(d); }
torch::Tensor e_check(torch::Tensor x) {
  TORCH_CHECK(x.dim() == 2, "x has ", x.dim(), " dimensions: ", x.sizes(), ' ', x.scalar_type(), " on ", x.device());
  TORCH_CHECK(x.size(0) > 1);
  TORCH_CHECK_VALUE(x.size(1) > 1, "narrow");
  return x;
}
torch::Tensor e_python(torch::Tensor x, torch::Tensor y) { return torch::matmul(x, y); }
std::string e_caught(torch::Tensor x) {
  try {
    return x.view({-1, 5}).is_contiguous() ? "fits" : "";
  } catch (const c10::Error& error) {
    return error.what();
  }
}
torch::Tensor e_standard(torch::Tensor x) { throw std::runtime_error("a reason"); }
float e_accessor(torch::Tensor x) {
  auto a = x.accessor<float, 3>();
  return a[0][0][0];
}
torch::Tensor e_undefined(bool used) {
  torch::Tensor nothing;
  return used ? nothing + 1 : nothing;
}
int e_int(int i) { return i; }
torch::Tensor e_dispatch(torch::Tensor x) {
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "e_dispatch", [&] { x.data_ptr<scalar_t>()[0] = 0; });
  return x;
}
torch::Tensor h_to_half(torch::Tensor x) {
  auto y = torch::empty(x.sizes(), x.options().dtype(torch::kHalf));
  for (int64_t i = 0; i < x.numel(); ++i) y.data_ptr<at::Half>()[i] = at::Half(x.data_ptr<float>()[i]);
  return y;
}
torch::Tensor h_to_bfloat(torch::Tensor x) {
  auto y = torch::empty(x.sizes(), x.options().dtype(torch::kBFloat16));
  for (int64_t i = 0; i < x.numel(); ++i) y.data_ptr<c10::BFloat16>()[i] = x.data_ptr<float>()[i];
  return y;
}
torch::Tensor h_to_float(torch::Tensor x) {
  auto y = torch::empty(x.sizes(), x.options().dtype(torch::kFloat));
  if (x.scalar_type() == at::kHalf)
    for (int64_t i = 0; i < x.numel(); ++i) y.data_ptr<float>()[i] = x.data_ptr<at::Half>()[i];
  else
    for (int64_t i = 0; i < x.numel(); ++i) y.data_ptr<float>()[i] = x.data_ptr<at::BFloat16>()[i];
  return y;
}
"""
ERROR_FUNCTIONS = ["e_dtype", "e_size", "e_check", "e_python", "e_caught", "e_standard", "e_accessor", "e_undefined"]
ERROR_FUNCTIONS += ["e_int", "e_dispatch", "h_to_half", "h_to_bfloat", "h_to_float"]

MODULE = r"""
#include <torch/extension.h>
torch::Tensor scale(torch::Tensor x, double by, std::optional<torch::Tensor> add) {
  return add ? x * by + *add : x * by;
}
int64_t pick(int64_t a) { return a + 1; }
double pick_double(double a) { return a * 2; }
std::string pick_text(const std::string& a) { return a + "!"; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "a module";
  m.def("scale", &scale, "Scale a tensor.", py::arg("x"), py::arg("by") = 2.0, py::arg("add") = py::none());
  m.def("pick", &pick);
  m.def("pick", &pick_double, "another");
  m.def("pick", pick_text);
  m.def("both", [](at::Tensor x, std::vector<int64_t> d) { return std::make_tuple(x.sum(d), d, x.size(0) > 1); });
}
"""

KERNELS = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
template <typename scalar_t>
__global__ void relu_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] > scalar_t(0) ? x[i] : scalar_t(0);
}
__global__ void add_one(torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> a) {
  a[blockIdx.x][threadIdx.x] += 1.f;
}
torch::Tensor relu_cuda(torch::Tensor x) {
  TORCH_CHECK(x.device().is_cuda(), "x must be a CUDA tensor");
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto y = torch::empty_like(x);
  const int n = x.numel();
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "relu_cuda", ([&] {
    relu_kernel<scalar_t><<<(n + 255) / 256, 256, 0, stream>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), n);
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  add_one<<<y.size(0), y.size(1), 0, c10::cuda::getCurrentCUDAStream().stream()>>>(
      y.packed_accessor32<float, 2, torch::RestrictPtrTraits>());
  AT_CUDA_CHECK(cudaGetLastError());
  return y;
}
"""


def inline(arguments: str, before: str = "") -> Program:
    """A Program with one call of load_inline."""
    text = f"from torch.utils.cpp_extension import load_inline\n{before}\next = load_inline({arguments})\n"
    text += "ModelNew = None\n"
    return Program(files={"program.py": text})


def built(program: Program, cache: Path, target: Target = CPU, **options: Any) -> Extensions:
    return build_extensions(program, target, cache=BuildCache(cache), deadline=time.monotonic() + 200, **options)


def loaded(extensions: Extensions) -> ModuleType:
    (extension,) = extensions.each
    assert extension.headers == "own", f"{extension.why} {extension.error}"
    assert extension.library is not None
    return torch_inline._load(extension.library, "under_test")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torch_headers")


@pytest.fixture(scope="module")
def ext(cache: Path) -> ModuleType:
    """All cases and the functions above, in one library."""
    call = f"name='all', cpp_sources=source, functions={[*FUNCTIONS, *ERROR_FUNCTIONS]!r}"
    return loaded(built(inline(call, f"source = {SOURCE + ERRORS!r}"), cache, headers=("own",)))


def values(case: Case, ext: ModuleType) -> dict[str, Any]:
    torch.manual_seed(0)
    scope: dict[str, Any] = {"torch": torch, "F": F, "ext": ext}
    names = [name.strip() for name in case.arguments.split(",")]
    return scope | dict(zip(names, eval(case.inputs, scope), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_extension_computes_what_it_says(ext: ModuleType, case: Case) -> None:
    scope = values(case, ext)
    wanted, given = eval(case.reference, scope), eval(case.call, scope)
    torch.testing.assert_close(given, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ("e_dtype(torch.ones(2).double())", RuntimeError, "expected scalar type Float but found Double"),
        ("e_size(torch.ones(2, 3), 2)", IndexError, r"Dimension out of range .*\[-2, 1\], but got 2"),
        ("e_check(torch.ones(3))", RuntimeError, r"x has 1 dimensions: \[3\] Float on cpu"),
        ("e_check(torch.ones(1, 3))", RuntimeError, "x.size.0. > 1"),
        ("e_check(torch.ones(2, 1))", ValueError, "narrow"),
        ("e_python(torch.ones(2, 3), torch.ones(2, 3))", RuntimeError, "mat1 and mat2 shapes cannot be multiplied"),
        ("e_standard(torch.ones(1))", RuntimeError, "a reason"),
        ("e_accessor(torch.ones(2, 2))", RuntimeError, "expected 3 dims but tensor has 2"),
        ("e_undefined(True)", RuntimeError, "undefined"),
        (
            "e_dispatch(torch.ones(1, dtype=torch.int64))",
            NotImplementedError,
            "\"e_dispatch\" not implemented for 'Long'",
        ),
        ("e_check(None)", TypeError, "incompatible function arguments"),
        ("e_check()", TypeError, "incompatible function arguments"),
        ("e_check(torch.ones(2, 2), 3)", TypeError, "incompatible function arguments"),
        ("e_int(2.0)", TypeError, "incompatible function arguments"),
        ("e_int(2**40)", TypeError, "incompatible function arguments"),
        ("c_gather(torch.ones(2, 2), torch.tensor([5]))", IndexError, "index 5 is out of range"),
    ],
)
def test_errors_cross_into_python(ext: ModuleType, call: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        eval(f"ext.{call}", {"ext": ext, "torch": torch})


def test_a_program_may_catch_errors_of_operators(ext: ModuleType) -> None:
    assert ext.e_caught(torch.ones(5)) == "fits"
    assert "invalid for input of size 4" in ext.e_caught(torch.ones(4))
    assert ext.e_undefined(False) is None


def test_sixteen_bit_types_round_as_torch_does(ext: ModuleType) -> None:
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for dtype, convert in ((torch.float16, ext.h_to_half), (torch.bfloat16, ext.h_to_bfloat)):
        every = patterns.view(dtype)
        torch.testing.assert_close(ext.h_to_float(every), every.float(), rtol=0, atol=0, equal_nan=True)
        between = torch.randint(-(2**31), 2**31, (1 << 17,), dtype=torch.int64).to(torch.int32).view(torch.float32)
        near = every.float() * (1 + 2.0**-12)
        for x in (every.float(), between, near, near * (1 - 2.0**-23), torch.tensor([65519.9, 65520.0, -(2.0**-25)])):
            torch.testing.assert_close(convert(x), x.to(dtype), rtol=0, atol=0, equal_nan=True)


def test_objects_are_neither_lost_nor_kept(ext: ModuleType) -> None:
    x = torch.ones(3, 4)
    ext.c_total([x, x])
    before = sys.getrefcount(x)
    for _ in range(200):
        ext.c_total([x, x])
        ext.c_bias(x, x[0])
        ext.e_caught(x)
        assert ext.c_relu(x) is not x
    assert sys.getrefcount(x) == before
    assert ext.e_check(x) is x


def test_without_the_exchange_table_everything_is_the_same(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__")  # as torch before 2.10
    copy = tmp_path / "copy.so"  # a second library with state of its own
    call = f"name='all', cpp_sources=source, functions={[*FUNCTIONS, *ERROR_FUNCTIONS]!r}"
    (extension,) = built(inline(call, f"source = {SOURCE + ERRORS!r}"), cache, headers=("own",)).each
    assert extension.library is not None
    shutil.copyfile(extension.library, copy)
    slow = torch_inline._load(copy, "slow")
    for case in CASES:
        scope = values(case, slow)
        torch.testing.assert_close(eval(case.call, scope), eval(case.reference, scope), rtol=2e-5, atol=2e-5)


def test_a_module_of_its_own_has_defaults_names_and_overloads(cache: Path) -> None:
    module = loaded(built(inline(f"'module', {MODULE!r}"), cache, headers=("own",)))
    x = torch.ones(2, 3)
    assert torch.equal(module.scale(x), 2 * x)
    assert torch.equal(module.scale(add=x, x=x, by=3), 4 * x)
    assert [module.pick(1), module.pick(1.5), module.pick("a")] == [2, 3.0, "a!"]
    total, dims, many = module.both(x, [0, 1])
    assert (total.item(), dims, many) == (6, [0, 1], True)
    assert module.scale.__doc__ == "Scale a tensor."
    with pytest.raises(TypeError):
        module.scale(x, nothing=1)


def test_code_that_runs_when_a_library_is_loaded_is_a_finding(cache: Path) -> None:
    source = "__attribute__((constructor)) static void early() {}\ntorch::Tensor f(torch::Tensor x) { return x; }"
    found = built(inline(f"'f', {source!r}, functions=['f']"), cache, headers=("own",)).report.findings
    assert [finding.rule for finding in found] == ["static_initialiser"]
    honest = built(inline(f"'module', {MODULE!r}"), cache, headers=("own",))
    assert honest.report.findings == ()


@needs_nvcc
def test_cuda_extensions_compile_without_a_gpu(cache: Path) -> None:
    call = (
        "name='k', cpp_sources='torch::Tensor relu_cuda(torch::Tensor x);', cuda_sources=source, functions='relu_cuda'"
    )
    extensions = built(inline(call, f"source = {KERNELS!r}"), cache, CUDA, headers=("own",))
    assert extensions.note == "own headers"
    assert len(extensions.report.kernels) == 5
    flags = call + ", extra_cuda_cflags=['-gencode=arch=compute_70,code=sm_70']"
    (other,) = built(inline(flags, f"source = {KERNELS!r}"), cache, CUDA, headers=("own",)).each
    assert other.headers == ""
    assert "another architecture" in other.why


PLAIN = r"""
// In place of PYBIND11_MODULE(TORCH_EXTENSION_NAME, m), which takes PyTorch's headers long to read.
#include <Python.h>
#include <c10/util/TypeSafeSignMath.h>
static PyObject* sign(PyObject*, PyObject* x) { return PyLong_FromLong(c10::signum(PyLong_AsLong(x))); }
static PyMethodDef methods[] = {{"sign", sign, METH_O, nullptr}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "signs", nullptr, -1, methods};
#define NAMED(name) extern "C" __attribute__((visibility("default"))) PyObject* PyInit_##name()
#define ENTRY(name) NAMED(name)
ENTRY(TORCH_EXTENSION_NAME) { return PyModule_Create(&module); }
"""


def test_what_our_headers_lack_is_built_with_pytorchs_and_said(tmp_path: Path) -> None:
    call = f"name='signs', cpp_sources={PLAIN!r}, no_implicit_headers=True"
    result = build(inline(call), CPU, cache=tmp_path)
    assert result.ok, result.log
    assert result.extensions.startswith("PyTorch's headers: main.cpp:")
    assert "TypeSafeSignMath.h" in result.extensions
    assert result.folder is not None
    assert build(inline(call), CPU, cache=tmp_path).cached
    module = torch_inline._load(result.folder / torch_inline.FOLDER / "0.so", "signs")
    assert [module.sign(-5), module.sign(3)] == [-1, 1]


@pytest.mark.parametrize(
    "source",
    [
        "torch::Tensor f(torch::Tensor x) { return torch::nn::functional::normalize(x); }",
        "torch::Tensor f(torch::Tensor x) { return x.resize_({2}); }",
        "torch::Tensor f(torch::Tensor x) { x.data_ptr<long long>(); return x; }",
        "torch::Tensor f(torch::Tensor x) { auto a = torch::empty_like(x).accessor<float, 1>(); return x; }",
    ],
)
def test_what_our_headers_lack_does_not_compile(cache: Path, source: str) -> None:
    (extension,) = built(inline("'f', source, functions=['f']", f"source = {source!r}"), cache, headers=("own",)).each
    assert extension.headers == ""
    assert "error" in extension.why


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("void f();\nTORCH_LIBRARY(mine, m) {}", "registers operators"),
        (
            "void f(torch::Tensor x) {\n#pragma omp parallel for\nfor (int i = 0; i < 3; ++i) { x[i].zero_(); }\n}",
            "tensors in threads",
        ),
        (
            "void f(torch::Tensor x) {\n#pragma omp parallel\n{ auto y = torch::zeros({3}); }\n}",
            "tensors in threads",
        ),
    ],
)
def test_what_would_do_something_else_is_not_tried(tmp_path: Path, source: str, why: str) -> None:
    (extension,) = built(
        inline("'f', source, functions=['f']", f"source = {source!r}"), tmp_path, headers=("own",)
    ).each
    assert extension.headers == ""
    assert why in extension.why


def test_a_program_that_does_not_compile_fails_to_build_unless_it_may_catch_that(tmp_path: Path) -> None:
    call = "'broken', '// PYBIND11_MODULE(broken, m)\\nint f() { return nothing; }', no_implicit_headers=True"
    result = build(inline(call), CPU, cache=tmp_path)
    assert not result.ok
    assert "nothing" in result.log
    lenient = Program(
        files={
            "program.py": "from torch.utils.cpp_extension import load_inline\n"
            f"try:\n    ext = load_inline({call})\nexcept RuntimeError:\n    ext = None\nModelNew = None\n"
        }
    )
    assert build(lenient, CPU, cache=tmp_path).ok


def test_the_confined_runner_uses_the_library(judge: Judge) -> None:
    (case,) = (case for case in CASES if case.name == "lists")
    evaluation = judge(make_task(case.task), case.program)
    assert evaluation.status == "correct", evaluation.message + evaluation.log
    assert evaluation.provenance["extensions"] == "own headers"
    assert evaluation.seconds["load"] < 10


def test_a_function_that_is_not_declared_is_said_at_once(tmp_path: Path) -> None:
    program = inline("'f', '', 'torch::Tensor f(torch::Tensor x) { return x; }', functions=['f']")
    result = build(program, CUDA, cache=tmp_path)
    assert "functions names f, which cpp_sources does not declare" in result.log
    both = build(inline(f"'module', {MODULE!r}, functions=['scale']"), CPU, cache=tmp_path)
    assert "has a PYBIND11_MODULE too" in both.log
    assert result.seconds + both.seconds < 10


def test_a_call_that_is_known_only_at_run_time_is_left_to_the_runner(tmp_path: Path) -> None:
    program = inline("name='x', cpp_sources=open('x.cpp').read(), functions=['f']")
    (extension,) = built(program, tmp_path).each
    assert (extension.headers, extension.library, extension.error) == ("", None, "")
    assert "cpp_sources is put together at run time" in extension.why
    assert not (tmp_path / "libraries").exists()


def test_equal_calls_share_a_library_whatever_they_are_called(cache: Path) -> None:
    first = built(inline(f"name='one', cpp_sources={MODULE!r}"), cache, headers=("own",))
    second = built(inline(f"name='two', cpp_sources=[{MODULE!r}], verbose=True"), cache, headers=("own",))
    assert second.cached
    assert first.each[0].library == second.each[0].library


def test_headers_are_part_of_the_package() -> None:
    assert (torch_build.HEADERS / "torch" / "extension.h").is_file()
    assert len(torch_build._identity("own")) > 64
