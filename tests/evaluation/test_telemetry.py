"""What a runner reports is parsed with suspicion, and kernels are told apart by exact names."""

from __future__ import annotations

import json

import pytest

from stitchcuda.evaluation.integrity.census import take_census
from stitchcuda.evaluation.telemetry import function_name, mangled_function, origin_of, own_kernels, parse_trace


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("void fused_norm<128, float>(float const*, float*, int)", "fused_norm"),
        ("(anonymous namespace)::step(float*)", "step"),
        ("void ns::inner::scan<(int)4>(Params<float>)", "scan"),
        ("plain", "plain"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)",
            "vectorized_elementwise_kernel",
        ),
    ],
)
def test_the_function_name_is_taken_out_of_a_demangled_kernel(kernel: str, name: str) -> None:
    assert function_name(kernel) == name


def test_kernels_are_found_in_sources() -> None:
    files = {
        "a.cu": """
// __global__ void commented(int) {}
template <int N> __global__ void __launch_bounds__(256, 2) first(float* x) {}
extern "C" __global__ __launch_bounds__(128) void second(float* x) {}
static __global__ void
third (int n) {}
""",
        "program.py": "@triton.jit\ndef fourth(x):\n    pass\nsource = '__global__ void fifth(int* p) {}'\n",
    }
    assert own_kernels(files) == {"first", "second", "third", "fourth", "fifth"}


def test_origins() -> None:
    own = frozenset({"fused"})
    assert origin_of("void fused<4>(float*)", "kernel", own, "cuda") == "own"
    assert origin_of("void not_fused<4>(float*)", "kernel", own, "cuda") == "framework"
    assert origin_of("sm90_xmma_gemm_f32f32_tn_n", "kernel", own, "cuda") == "library"
    assert origin_of("nvjet_sm90_tst_128x64", "kernel", own, "cuda") == "library"
    assert origin_of("Memcpy DtoD (Device -> Device)", "copy", own, "cuda") == "copy"
    assert origin_of("own::fused", "op", own, "cpu") == "own"
    assert origin_of("aten::addmm", "op", own, "cpu") == "library"
    assert origin_of("aten::mul", "op", own, "cpu") == "framework"


def test_names_alone_make_no_origin() -> None:
    own = frozenset({"vectorized_elementwise_kernel", "sm90_xmma_gemm_f32", "split_gemm"})
    stock = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)"
    assert origin_of(stock, "kernel", own, "cuda", "aten::add") == "framework"
    assert origin_of("sm90_xmma_gemm_f32", "kernel", own, "cuda") == "library"
    assert origin_of("void split_gemm<4>(float*)", "kernel", own, "cuda") == "own"
    assert origin_of("own::unheard_of", "op", own, "cpu") == "framework"


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_Z6finishPKfPfx", "finish"),
        ("_ZN12_GLOBAL__N_14stepEPf", "step"),
        ("_ZN2ns5inner4scanILi4EEEvPf", "scan"),
        ("_ZL6hiddenPf", "hidden"),
        ("_Z16recurrent_chains6Chains", "recurrent_chains"),
        ("_Z4tmplIfEvPT_6Chains", "tmpl"),
        ("_ZN1a1b4deepE6Chains", "deep"),
        ("plain", "plain"),
    ],
)
def test_the_function_name_is_taken_out_of_a_symbol(symbol: str, name: str) -> None:
    assert mangled_function(symbol) == name


def report(rows: list[dict[str, object]]) -> str:
    """A runner's report with these rows."""
    return json.dumps({"rows": rows, "wall_seconds": 1e-3, "busy_seconds": 99.0, "launches": 3})


def row(name: str, seconds: object) -> dict[str, object]:
    """One kernel row."""
    return {"name": name, "kind": "kernel", "operator": "", "seconds": seconds, "calls": 1}


def test_sums_are_computed_here_and_nonsense_is_dropped() -> None:
    text = report([row("fused()", 3e-3), row("gemm()", 1e-3), row("evil()", -5), row("nan()", float("nan"))])
    trace = parse_trace(text, subject="program", target="cuda", own=frozenset({"fused"}))
    assert trace is not None
    assert trace.busy_seconds == pytest.approx(4e-3)
    census = take_census(trace)
    assert census.own == pytest.approx(0.75)
    assert census.library == pytest.approx(0.25)
    assert census.label == "hybrid"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": 3}', report([{"name": "x"}]), '{"rows": [[]]}'])
def test_what_is_no_trace_is_none(text: str) -> None:
    assert parse_trace(text, subject="program", target="cuda", own=frozenset()) is None


@pytest.mark.parametrize(
    ("own", "library", "label"),
    [(0.97, 0.0, "pure"), (0.5, 0.5, "hybrid"), (0.05, 0.9, "library"), (0.0, 0.9, "host_only")],
)
def test_labels(own: float, library: float, label: str) -> None:
    rows = [row("fused()", own), row("gemm()", library), row("rest()", 1 - own - library)]
    trace = parse_trace(report(rows), subject="program", target="cuda", own=frozenset({"fused"}))
    assert trace is not None
    assert take_census(trace).label == label


@pytest.mark.parametrize(
    ("operator", "label"), [("mkldnn::_convolution_pointwise", "library"), ("aten::mkldnn_convolution", "host_only")]
)
def test_library_routines_that_a_program_calls_itself_are_its_work_on_cpu(operator: str, label: str) -> None:
    rows = [row(operator, 0.7) | {"kind": "op"}, row("aten::copy_", 0.3) | {"kind": "op"}]
    trace = parse_trace(report(rows), subject="program", target="cpu", own=frozenset())
    assert trace is not None
    assert take_census(trace).label == label
