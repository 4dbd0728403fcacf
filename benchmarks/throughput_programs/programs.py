"""The fixed mixed set of ``evaluation_throughput.py``: programs for ten KernelBench tasks of levels 1 to 3, as models
write them: right, wrong, slow, and failing to build; in KernelBench's form (``load_inline`` with ``torch/extension.h``)
and in the native form.

Each task is its stock modules with one own kernel, ``y[i] = f(x[i], e[...])``, at the end or between them. Variants of
a program differ in their launch configuration, and so in their machine code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from stitchcuda.program.model import Argument, Launcher, Manifest, Program

Kind = Literal["correct", "wrong", "slow", "unbuildable"]
Form = Literal["kernelbench", "native", "stock"]


@dataclass(frozen=True)
class Spec:
    """One task. ``expression`` is f in C, of ``v`` and, where there is an extra operand, ``e``; ``extra``: which of its
    elements belongs to element i of ``width`` columns. ``small``: constants of the source for a 2-core machine."""

    level: int
    number: int
    init: str
    forward: str
    expression: str
    extra: Literal["", "column", "row"] = ""
    parameters: str = "self"
    arguments: str = "x"
    small: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.level}/{self.number}"


_WIDE = (("batch_size = 1024", "batch_size = 128"), ("8192", "512"))

SPECS = (
    Spec(1, 12, "pass", "return own(B, A)", "v * e", "row", arguments="A, B", small=(("4096", "512"),)),
    Spec(
        1,
        19,
        "pass",
        "return own(x)",
        "v > 0.f ? v : 0.f",
        small=(("batch_size = 4096", "batch_size = 64"), ("393216", "4096")),
    ),
    Spec(
        1,
        88,
        "pass",
        "return own(x)",
        "0.5f * v * (1.f + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v)))",
        small=(("8192", "512"),),
    ),
    Spec(
        2,
        12,
        "self.gemm = nn.Linear(i, o); self.m, self.s = m, s",
        "return own(self.gemm(x))",
        "2.f * v > 0.f ? 2.f * v : 0.2f * v",
        parameters="self, i, o, m, s",
        small=(("batch_size = 1024", "batch_size = 128"), ("8192", "512")),
    ),
    Spec(
        2,
        29,
        "self.linear = nn.Linear(i, o)",
        "return own(self.linear(x))",
        "mish(mish(v))",
        parameters="self, i, o",
        small=_WIDE,
    ),
    Spec(
        2,
        63,
        "self.linear = nn.Linear(i, o)",
        "return own(self.linear(x))",
        "v > 0.f ? 0.5f * v : 0.f",
        parameters="self, i, o, d",
        small=_WIDE,
    ),
    Spec(
        2,
        70,
        "self.gemm = nn.Linear(i, o)",
        "return own(self.gemm(x))",
        "v + 2.f / (1.f + expf(-v))",
        parameters="self, i, o, f",
        small=_WIDE,
    ),
    Spec(
        2,
        76,
        "self.gemm = nn.Linear(i, o, bias=False); self.bias = nn.Parameter(torch.randn(b))",
        "return own(self.gemm(x), self.bias.detach())",
        "v + e > 0.f ? v + e : 0.f",
        "column",
        parameters="self, i, o, b",
        small=_WIDE,
    ),
    Spec(
        3,
        1,
        "MLP",
        "MLP",
        "v > 0.f ? v : 0.f",
        parameters="self, i, hidden, o",
        small=(("16384", "256"), ("output_size = 8192", "output_size = 128")),
    ),
    Spec(
        3,
        2,
        "MLP",
        "MLP",
        "v > 0.f ? v : 0.f",
        parameters="self, i, hidden, o",
        small=(("32768", "512"), ("16384", "256")),
    ),
)

_MLP_INIT = """sizes = [i, *hidden, o]
        self.network = nn.Sequential()
        for place, (a, b) in enumerate(zip(sizes, sizes[1:])):
            self.network.add_module(str(2 * place), nn.Linear(a, b))"""
_MLP_FORWARD = """layers = list(self.network)
        for layer in layers[:-1]:
            x = own(layer(x))
        return layers[-1](x)"""

_DEVICE = """{mish}
template <int BLOCK> __global__ void own_kernel(const float* __restrict__ x, const float* __restrict__ e_,
                                                float* __restrict__ y, long long n, long long width) {{
  const long long i = blockIdx.x * (long long)BLOCK + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  {repeat}const float e = {element};
  y[i] = {expression};
}}
"""
_MISH = "__device__ inline float mish(float v) { return v * tanhf(v > 20.f ? v : log1pf(expf(v))); }\n"
_SLOW = "for (int k = 0; k < 40; ++k) v = sinf(v) * 0.f + x[i] + 0.f * cosf(v);\n  "
_ELEMENT = {"": "0.f", "column": "e_[i % width]", "row": "e_[i / width]"}

_PYTHON = """import torch
from torch import nn
{head}

class ModelNew(nn.Module):
    def __init__({parameters}):
        super().__init__()
        {init}

    def forward(self, {arguments}):
        {forward}
"""

_INLINE = '''from torch.utils.cpp_extension import load_inline

CPP = "torch::Tensor run(torch::Tensor x, torch::Tensor e, bool has_extra);"
CUDA = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>
{device}
torch::Tensor run(torch::Tensor x, torch::Tensor e, bool has_extra) {{
  TORCH_CHECK(x.is_cuda(), "x must be on the GPU");
  TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
  auto y = torch::empty_like(x);
  const long long n = x.numel(), width = x.size(-1);
  own_kernel<{block}><<<(unsigned)((n + {block} - 1) / {block}), {block}>>>(
      x.data_ptr<float>(), has_extra ? e.data_ptr<float>() : nullptr, y.data_ptr<float>(), n, width);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}}
"""
module = load_inline(name="own_{key}", cpp_sources=CPP, cuda_sources=CUDA, functions=["run"])


def own(x, e=None):
    return module.run(x.contiguous(), x if e is None else e.contiguous(), e is not None)
'''

_NATIVE_HEAD = """from bindings import run


def own(x, e=None):
    x = x.contiguous()
    y = torch.empty_like(x)
    run(x, e, y, x.numel(), x.shape[-1])
    return y
"""

_NATIVE_CUDA = """#include <cuda_runtime.h>
{device}
extern "C" int run(const float* x, const float* e, float* y, long n, long width, void* stream) {{
  own_kernel<{block}><<<(unsigned)((n + {block} - 1) / {block}), {block}, 0, (cudaStream_t)stream>>>(x, e, y, n, width);
  return cudaGetLastError();
}}
"""

_NATIVE_CPU = """#include <cmath>
static inline float mish(float v) {{ return v * tanhf(v > 20.f ? v : log1pf(expf(v))); }}
extern "C" int run(const float* x, const float* e_, float* y, long n, long width, void*) {{
  #pragma omp parallel for schedule(static, {block} * 64)
  for (long i = 0; i < n; ++i) {{
    float v = x[i];
    {repeat}const float e = {element};
    y[i] = {expression};
  }}
  return 0;
}}
"""


@dataclass(frozen=True)
class Member:
    """One program of the set and what it is meant to be."""

    name: str
    spec: Spec
    kind: Kind
    form: Form
    program: Program


def make(spec: Spec, kind: Kind, form: Form, target: Literal["cuda", "cpu"], block: int = 256) -> Member:
    """One program."""
    name = f"{spec.name} {kind} {form} {block}"
    expression = f"({spec.expression})"
    if kind == "wrong":
        expression += " * 1.01f"
    if kind == "unbuildable":
        expression += " + undeclared"
    pieces = {
        "expression": expression,
        "element": _ELEMENT[spec.extra] if spec.extra else "0.f",
        "repeat": _SLOW if kind == "slow" else "",
    }
    device = _DEVICE.format(mish=_MISH if "mish" in spec.expression else "", **pieces)
    head = {
        "kernelbench": _INLINE.format(device=device, block=block, key=f"{spec.level}_{spec.number}_{kind}_{block}"),
        "native": _NATIVE_HEAD,
        "stock": _stock(spec),
    }[form]
    mlp = spec.init == "MLP"
    entry = _PYTHON.format(
        head=head,
        parameters=spec.parameters,
        init=_MLP_INIT if mlp else spec.init,
        arguments=spec.arguments,
        forward=_MLP_FORWARD if mlp else spec.forward,
    )
    if form != "native":
        return Member(name, spec, kind, form, Program(files={"program.py": entry}))
    file = "kernels.cu" if target == "cuda" else "kernels.cpp"
    text = (
        _NATIVE_CUDA.format(device=device, block=block)
        if target == "cuda"
        else _NATIVE_CPU.format(block=block, **pieces)
    )
    arguments = [
        Argument(name="x", dtype="float32"),
        Argument(name="e", dtype="float32", optional=True),
        Argument(name="y", dtype="float32", role="output"),
        Argument(name="n", kind="scalar", dtype="int64"),
        Argument(name="width", kind="scalar", dtype="int64"),
    ]
    manifest = Manifest(target=target, launchers=[Launcher(name="run", source=file, arguments=arguments)])
    return Member(name, spec, kind, form, Program(files={"program.py": entry, file: text}, manifest=manifest))


def _stock(spec: Spec) -> str:
    """f by torch's own operators."""
    text = spec.expression.replace("tanhf", "torch.tanh").replace("expf", "torch.exp").replace("mish(", "F.mish(")
    for number in ("0.7978845608028654f", "0.044715f", "0.5f", "0.2f", "0.f", "1.f", "2.f"):
        text = text.replace(number, number[:-1].rstrip(".") or "0")
    if "?" in text:
        condition, rest = text.split("?")
        yes, no = rest.split(":")
        left, right = condition.split(">")
        text = f"torch.where(({left.strip()}) > ({right.strip()}), {yes.strip()}, {no.strip()} + 0 * v)"
    extra = {"": "", "column": "", "row": "    e = e.unsqueeze(1)\n"}[spec.extra]
    return f"from torch.nn import functional as F\n\n\ndef own(v, e=None):\n{extra}    return {text}\n"


def compared() -> list[Member]:
    """Twenty in KernelBench's form, two for each task: one that is right, and one that is not, or is slow."""
    others: tuple[Kind, ...] = ("wrong", "slow", "wrong", "correct", "unbuildable")
    members = []
    for place, spec in enumerate(SPECS):
        members.append(make(spec, "correct", "kernelbench", "cuda", 256))
        members.append(make(spec, others[place % len(others)], "kernelbench", "cuda", 128))
    return members


def large(target: Literal["cuda", "cpu"]) -> Iterator[Member]:
    """A hundred, ten for each task, in an order in which neighbours are of different tasks."""
    native: list[tuple[Kind, Form, int]] = [
        ("correct", "native", 256),
        ("correct", "kernelbench", 256),
        ("wrong", "native", 256),
        ("correct", "native", 128),
        ("unbuildable", "native", 256),
        ("correct", "native", 512),
        ("wrong", "kernelbench", 128),
        ("slow", "native", 256),
        ("correct", "stock", 0),
        ("correct", "native", 1024),
    ]
    for kind, form, block in native:
        for spec in SPECS:
            # KernelBench's form is about CUDA; on cpu these are native too, with another block.
            chosen: Form = "native" if form == "kernelbench" and target == "cpu" else form
            yield make(spec, kind, chosen, target, block + (1 if chosen != form else 0))


KERNELS = (1, 8)
"""Sizes of the programs whose builds are timed."""


def device_kernels(count: int) -> list[str]:
    """So many different kernels, each a reduction over rows with its own epilogue."""
    return [
        f"""__global__ void kernel{k}(const float* __restrict__ x, float* __restrict__ y, int width, float factor) {{
  __shared__ float part[32];
  float sum = 0.f;
  const float* row = x + (long long)blockIdx.x * width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) sum += row[i] * row[i];
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {{
    sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.f;
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x == 0) part[0] = rsqrtf(sum / width + {k + 1}e-6f);
  }}
  __syncthreads();
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    y[(long long)blockIdx.x * width + i] = row[i] * part[0] * factor + {k}.f;
}}
"""
        for k in range(count)
    ]


def native_build(count: int) -> Program:
    """The same kernels, a source each, behind C launchers."""
    files, launchers = {"program.py": "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"}, []
    for k, kernel in enumerate(device_kernels(count)):
        files[f"kernel{k}.cu"] = (
            f"#include <cuda_runtime.h>\n{kernel}"
            f'extern "C" int run{k}(const float* x, float* y, int rows, int width, float factor, void* stream) {{\n'
            f"  kernel{k}<<<rows, 256, 0, (cudaStream_t)stream>>>(x, y, width, factor);\n"
            "  return cudaGetLastError();\n}\n"
        )
        arguments = [
            Argument(name="x", dtype="float32"),
            Argument(name="y", dtype="float32", role="output"),
            Argument(name="rows", kind="scalar", dtype="int32"),
            Argument(name="width", kind="scalar", dtype="int32"),
            Argument(name="factor", kind="scalar", dtype="float32"),
        ]
        launchers.append(Launcher(name=f"run{k}", source=f"kernel{k}.cu", arguments=arguments))
    return Program(files=files, manifest=Manifest(target="cuda", launchers=launchers))


def inline_sources(count: int) -> tuple[str, str, list[str]]:
    """The same kernels as load_inline takes them: C++ declarations, CUDA source, functions."""
    declarations = [f"torch::Tensor run{k}(torch::Tensor x, double factor);" for k in range(count)]
    functions = [
        f"torch::Tensor run{k}(torch::Tensor x, double factor) {{\n"
        '  TORCH_CHECK(x.is_cuda() && x.is_contiguous(), "x must be a contiguous CUDA tensor");\n'
        "  auto y = torch::empty_like(x);\n"
        f"  kernel{k}<<<x.size(0), 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1), (float)factor);\n"
        "  return y;\n}\n"
        for k in range(count)
    ]
    source = "".join(device_kernels(count)) + "".join(functions)
    return "\n".join(declarations), source, [f"run{k}" for k in range(count)]


def inline_build(count: int) -> Program:
    """The same kernels in KernelBench's form."""
    cpp, cuda, functions = inline_sources(count)
    entry = (
        "import torch\nfrom torch.utils.cpp_extension import load_inline\n\n"
        f"CPP = {cpp!r}\nCUDA = r'''\n#include <torch/extension.h>\n{cuda}'''\n"
        f"module = load_inline(name='kernels', cpp_sources=CPP, cuda_sources=CUDA, functions={functions!r})\n\n\n"
        "class ModelNew(torch.nn.Module):\n    pass\n"
    )
    return Program(files={"program.py": entry})
