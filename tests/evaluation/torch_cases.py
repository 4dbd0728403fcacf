"""C++ extensions as KernelBench's programs write them, each with what it must compute: small, and together one source.

Used by the tests of our own headers, which build all of them at once, and by
``benchmarks/torch_headers_coverage.py --equal``, which also builds each against PyTorch's headers and compares.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One extension. ``call`` and ``reference`` are Python expressions over ``arguments``, whose values ``inputs``
    gives; in ``call`` the extension is ``ext``."""

    name: str
    source: str
    functions: tuple[str, ...]
    arguments: str
    inputs: str
    call: str
    reference: str

    @property
    def program(self) -> str:
        """A whole KernelBench-style Program."""
        return f'''
from torch.utils.cpp_extension import load_inline

source = r"""
{self.source}
"""
ext = load_inline(name="{self.name}_ext", cpp_sources=source, functions={list(self.functions)!r}, extra_cflags=["-O2"])

class ModelNew(nn.Module):
    def forward(self, {self.arguments}):
        return {self.call}
'''

    @property
    def task(self) -> str:
        """The Task that it solves."""
        return f"""
class Model(nn.Module):
    def forward(self, {self.arguments}):
        return {self.reference}

def get_inputs():
    return {self.inputs}

def get_init_inputs():
    return []
"""


CASES = (
    Case(
        "relu",
        r"""
torch::Tensor c_relu(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
  auto y = torch::empty_like(x);
  const float* a = x.data_ptr<float>();
  float* b = y.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) b[i] = a[i] > 0 ? a[i] : 0.0f;
  return y;
}
""",
        ("c_relu",),
        "x",
        "[torch.randn(7, 33)]",
        "ext.c_relu(x)",
        "torch.relu(x)",
    ),
    Case(
        "dispatch",
        r"""
torch::Tensor c_double(const torch::Tensor& x) {
  auto y = torch::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "c_double", ([&] {
    const scalar_t* a = x.data_ptr<scalar_t>();
    scalar_t* b = y.data_ptr<scalar_t>();
    for (int64_t i = 0; i < x.numel(); ++i) b[i] = a[i] * static_cast<scalar_t>(2) + scalar_t(1);
  }));
  return y;
}
""",
        ("c_double",),
        "x, y, z",
        "[torch.randn(65), torch.randn(65).double(), torch.randn(65).half()]",
        "(ext.c_double(x), ext.c_double(y), ext.c_double(z))",
        "(x * 2 + 1, y * 2 + 1, z * 2 + 1)",
    ),
    Case(
        "accessor",
        r"""
torch::Tensor c_matmul(torch::Tensor a, torch::Tensor b) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), "shapes ", a.sizes(), " and ", b.sizes());
  auto c = torch::zeros({a.size(0), b.size(1)}, torch::TensorOptions().dtype(a.dtype()).device(a.device()));
  auto A = a.accessor<float, 2>();
  auto B = b.accessor<float, 2>();
  auto C = c.accessor<float, 2>();
  for (int64_t i = 0; i < a.size(0); ++i)
    for (int64_t j = 0; j < b.size(1); ++j) {
      double sum = 0;
      for (int64_t k = 0; k < a.size(1); ++k) sum += double(A[i][k]) * B[k][j];
      C[i][j] = float(sum);
    }
  return c;
}
""",
        ("c_matmul",),
        "a, b",
        "[torch.randn(9, 31), torch.randn(12, 31).t()]",
        "ext.c_matmul(a, b)",
        "a @ b",
    ),
    Case(
        "contiguous",
        r"""
torch::Tensor c_rowsum(torch::Tensor x) {
  if (!x.is_contiguous()) x = x.contiguous();
  const auto rows = x.size(0), columns = x.size(-1);
  auto y = torch::zeros({rows}, x.options());
  const float* p = x.data_ptr<float>();
  auto q = y.accessor<float, 1>();
  for (int64_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < columns; ++j) sum += p[i * columns + j];
    q[i] = float(sum);
  }
  return y;
}
""",
        ("c_rowsum",),
        "x",
        "[torch.randn(17, 6).t()]",
        "ext.c_rowsum(x)",
        "x.sum(1)",
    ),
    Case(
        "optional",
        r"""
torch::Tensor c_bias(torch::Tensor x, c10::optional<torch::Tensor> bias) {
  auto y = x.clone();
  const float* b = bias.has_value() ? bias->data_ptr<float>() : nullptr;
  float* p = y.data_ptr<float>();
  const int64_t n = x.size(1);
  if (b)
    for (int64_t i = 0; i < y.numel(); ++i) p[i] += b[i % n];
  return y;
}
""",
        ("c_bias",),
        "x, b",
        "[torch.randn(5, 8), torch.randn(8)]",
        "(ext.c_bias(x, b), ext.c_bias(x, None))",
        "(x + b, x + 0)",
    ),
    Case(
        "lists",
        r"""
std::vector<torch::Tensor> c_halves(torch::Tensor x) {
  auto parts = x.chunk(2, 1);
  return {parts[0].contiguous(), parts[1].contiguous()};
}
torch::Tensor c_total(std::vector<torch::Tensor> all) {
  auto y = torch::zeros_like(all[0]);
  for (const auto& each : all) y += each;
  return y;
}
""",
        ("c_halves", "c_total"),
        "x",
        "[torch.randn(4, 10)]",
        "ext.c_total(ext.c_halves(x))",
        "x[:, :5] + x[:, 5:]",
    ),
    Case(
        "tuple",
        r"""
std::tuple<torch::Tensor, torch::Tensor> c_moments(torch::Tensor x) {
  auto mean = x.mean({1}, true);
  auto centred = x - mean;
  return std::make_tuple(mean, (centred * centred).sum(1) / x.size(1));
}
""",
        ("c_moments",),
        "x",
        "[torch.randn(6, 21)]",
        "tuple(ext.c_moments(x))",
        "(x.mean(1, keepdim=True), x.var(1, unbiased=False))",
    ),
    Case(
        "shapes",
        r"""
torch::Tensor c_shapes(torch::Tensor x, at::IntArrayRef sizes, std::vector<int64_t> order) {
  auto y = x.reshape(sizes).permute(order);
  return y.transpose(0, -1).contiguous().view({-1, x.size(0)}).t().unsqueeze(0).squeeze(0).flatten(0, 1);
}
""",
        ("c_shapes",),
        "x",
        "[torch.randn(4, 18)]",
        "ext.c_shapes(x, (2, 3, 12), [1, 2, 0])",
        "x.reshape(2, 3, 12).permute(1, 2, 0).transpose(0, -1).contiguous().view(-1, 4).t().flatten(0, 1)",
    ),
    Case(
        "factories",
        r"""
torch::Tensor c_factories(torch::Tensor x) {
  const auto options = torch::TensorOptions().dtype(torch::kFloat32).device(x.device()).requires_grad(false);
  auto a = torch::ones({3, 4}, options) + torch::full({3, 4}, 2.5, options) + torch::zeros({4}, x.options());
  auto b = torch::arange(4, x.options()) + torch::tensor({1.0f, 2.0f, 3.0f, 4.0f}, x.options());
  auto c = torch::ones_like(x).mul_(3) + torch::full_like(x, 4) + torch::zeros_like(x);
  return x.add(a).add(b, 2).sub(c);
}
""",
        ("c_factories",),
        "x",
        "[torch.randn(3, 4)]",
        "ext.c_factories(x)",
        "x + 3.5 + 2 * (torch.arange(4.0) + torch.tensor([1.0, 2, 3, 4])) - 7",
    ),
    Case(
        "indices",
        r"""
torch::Tensor c_gather(torch::Tensor table, torch::Tensor index) {
  TORCH_CHECK(index.scalar_type() == torch::kLong, "index must be int64");
  auto y = torch::empty({index.numel(), table.size(1)}, table.options());
  const int64_t* at = index.data_ptr<int64_t>();
  const float* from = table.data_ptr<float>();
  float* to = y.data_ptr<float>();
  for (int64_t i = 0; i < index.numel(); ++i) {
    TORCH_CHECK_INDEX(at[i] >= 0 && at[i] < table.size(0), "index ", at[i], " is out of range");
    std::memcpy(to + i * table.size(1), from + at[i] * table.size(1), sizeof(float) * size_t(table.size(1)));
  }
  return y;
}
""",
        ("c_gather",),
        "t, i",
        "[torch.randn(10, 3), torch.randint(0, 10, (6,))]",
        "ext.c_gather(t, i)",
        "t[i]",
    ),
    Case(
        "booleans",
        r"""
torch::Tensor c_mask(torch::Tensor x) {
  auto keep = torch::empty(x.sizes(), x.options().dtype(torch::kBool));
  bool* k = keep.data_ptr<bool>();
  for (int64_t i = 0; i < x.numel(); ++i) k[i] = x.data_ptr<float>()[i] > 0.5f;
  return torch::where(keep, x, torch::zeros_like(x)) + x.masked_fill(keep, -1.0);
}
""",
        ("c_mask",),
        "x",
        "[torch.randn(40)]",
        "ext.c_mask(x)",
        "torch.where(x > 0.5, x - 1, x)",
    ),
    Case(
        "bfloat16",
        r"""
torch::Tensor c_bf16(torch::Tensor x) {
  auto y = torch::empty(x.sizes(), x.options().dtype(at::kBFloat16));
  const float* a = x.data_ptr<float>();
  auto* b = y.data_ptr<at::BFloat16>();
  for (int64_t i = 0; i < x.numel(); ++i) b[i] = static_cast<at::BFloat16>(a[i]) * at::BFloat16(3.0f);
  return y.to(torch::kFloat);
}
""",
        ("c_bf16",),
        "x",
        "[torch.randn(257)]",
        "ext.c_bf16(x)",
        "(x.bfloat16() * 3).float()",
    ),
    Case(
        "scalars",
        r"""
torch::Tensor c_scalars(torch::Tensor x, int n, int64_t m, float f, double d, bool negate, std::string mode, size_t k) {
  auto y = x * f + d + n * 10 + m * 100 + double(k) * 1000;
  if (mode == "square") y = y.pow(2);
  return negate ? -y : y;
}
""",
        ("c_scalars",),
        "x",
        "[torch.randn(11)]",
        "ext.c_scalars(x, 1, 2, 3, 0.5, True, 'square', 4)",
        "-((x * 3.0 + 0.5 + 10 + 200 + 4000) ** 2)",
    ),
    Case(
        "in_place",
        r"""
void c_accumulate(torch::Tensor& out, const torch::Tensor& x) { out.add_(x, 2).mul_(0.5).clamp_(-1, 1); }
torch::Tensor c_in_place(torch::Tensor x) {
  auto y = torch::empty_like(x);
  y.fill_(1).copy_(x);
  c_accumulate(y, x);
  y.sub_(0.25);
  y[1] = y[0] * 2;
  y[2] = 0.5;
  y /= 2;
  return y;
}
""",
        ("c_in_place",),
        "x",
        "[torch.randn(5, 5)]",
        "ext.c_in_place(x)",
        "torch.cat([((x * 1.5).clamp(-1, 1) - 0.25)[i] * torch.tensor([[0.5, 1, 0, 0.5, 0.5][k]])"
        " + 0.25 * (k == 2) for k, i in enumerate([slice(0, 1), slice(0, 1), slice(2, 3), slice(3, 4), slice(4, 5)])])",
    ),
    Case(
        "convolution",
        r"""
at::Tensor c_conv(at::Tensor x, at::Tensor w, at::Tensor b) {
  auto y = at::conv2d(x, w, b, {2, 2}, {1, 1});
  return torch::relu(y) + at::max_pool2d(y, 1).relu_();
}
""",
        ("c_conv",),
        "x, w, b",
        "[torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3), torch.randn(4)]",
        "ext.c_conv(x, w, b)",
        "2 * torch.relu(F.conv2d(x, w, b, 2, 1))",
    ),
    Case(
        "linear",
        r"""
torch::Tensor c_linear(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
  auto y = torch::gelu(torch::addmm(b, x, w.t())) + torch::linear(x, w);
  return y + torch::matmul(x, w.transpose(0, 1)) + x.mm(w.t());
}
""",
        ("c_linear",),
        "x, w, b",
        "[torch.randn(8, 16), torch.randn(5, 16), torch.randn(5)]",
        "ext.c_linear(x, w, b)",
        "F.gelu(F.linear(x, w, b)) + 3 * F.linear(x, w)",
    ),
    Case(
        "reductions",
        r"""
torch::Tensor c_reduce(torch::Tensor x) {
  auto [values, at] = x.max(1);
  auto low = std::get<0>(torch::min(x, 1, true)).squeeze(1);
  auto y = values + low + x.sum(1) + x.sum({0, 1}) + torch::mean(x, {1}) + torch::amax(x, {0, 1}) + x.max();
  y += at.to(x.scalar_type()) + x.argmin(1).to(torch::kFloat);
  return y + torch::softmax(x, 1).sum(1) + x.cumsum(1).select(1, 0);
}
""",
        ("c_reduce",),
        "x",
        "[torch.randn(6, 9)]",
        "ext.c_reduce(x)",
        "x.amax(1) + x.amin(1) + x.sum(1) + x.sum() + x.mean(1) + 2 * x.max() + x.argmax(1) + x.argmin(1) + 1"
        " + x[:, 0]",
    ),
    Case(
        "operators",
        r"""
torch::Tensor c_operators(torch::Tensor a, torch::Tensor b) {
  auto c = 2 * a + b / 4 - 1.5 + (a - b) * (a + b) + 1.0 / (b.abs() + 3) + (3 - a);
  c += b;
  c -= 1;
  c *= a;
  return c + (a > b).to(a.dtype()) * 2 + (a <= 0).to(torch::kFloat32);
}
""",
        ("c_operators",),
        "a, b",
        "[torch.randn(30), torch.randn(30)]",
        "ext.c_operators(a, b)",
        "(a + b / 4 + 1.5 + (a - b) * (a + b) + 1 / (b.abs() + 3) + b - 1) * a + 2 * (a > b) + (a <= 0)",
    ),
    Case(
        "channels_last",
        r"""
torch::Tensor c_channels(torch::Tensor x) {
  TORCH_CHECK(!x.is_contiguous() && x.is_contiguous(at::MemoryFormat::ChannelsLast), "strides ", x.strides());
  auto y = torch::empty_like(x);
  TORCH_CHECK(y.stride(1) == 1 && y.strides() == x.strides(), "the layout was lost");
  auto a = x.accessor<float, 4>();
  auto b = y.accessor<float, 4>();
  for (int64_t n = 0; n < x.size(0); ++n)
    for (int64_t c = 0; c < x.size(1); ++c)
      for (int64_t h = 0; h < x.size(2); ++h)
        for (int64_t w = 0; w < x.size(3); ++w) b[n][c][h][w] = a[n][c][h][w] * float(c + 1);
  return y.contiguous();
}
""",
        ("c_channels",),
        "x",
        "[torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)]",
        "ext.c_channels(x.to(memory_format=torch.channels_last))",
        "x * torch.arange(1.0, 4.0).view(1, 3, 1, 1)",
    ),
    Case(
        "slices",
        r"""
torch::Tensor c_slices(torch::Tensor x) {
  auto a = x[1].select(0, 2), b = x.narrow(0, 1, 2)[0].slice(0, 1, 4)[1], c = x.slice(1, 1)[1][1];
  TORCH_CHECK(a.data_ptr<float>() == x.data_ptr<float>() + x.stride(0) + 2 * x.stride(1), "a view must not copy");
  x[0][0].zero_();
  auto parts = torch::split(x, 2, 1);
  return torch::cat({a, b, c, x[0][0], parts[0][0][1]}, 0) + torch::stack({a, b}).sum();
}
""",
        ("c_slices",),
        "x",
        "[torch.randn(3, 5, 4)]",
        "ext.c_slices(x.clone())",
        "torch.cat([x[1, 2], x[1, 2], x[1, 2], torch.zeros(4), x[0, 1]]) + 2 * x[1, 2].sum()",
    ),
    Case(
        "items",
        r"""
double c_largest(torch::Tensor x) { return x.max().item<float>(); }
torch::Tensor c_items(torch::Tensor x) {
  const auto n = torch::tensor({3, 4, 5}).sum().item().toInt();
  const float first = x[0].item<float>();
  return x * first + n + x.abs().sum().item().toDouble();
}
""",
        ("c_largest", "c_items"),
        "x",
        "[torch.randn(12)]",
        "ext.c_items(x) + ext.c_largest(x)",
        "x * x[0] + 12 + x.abs().sum() + x.max()",
    ),
    Case(
        "threads",
        r"""
torch::Tensor c_threads(torch::Tensor x) {
  auto y = torch::empty_like(x);
  auto rows = x.accessor<float, 2>();
  float* out = y.data_ptr<float>();
  const int64_t columns = x.size(1);
  #pragma omp parallel for
  for (int64_t i = 0; i < x.size(0); ++i) {
    for (int64_t j = 0; j < columns; ++j) out[i * columns + j] = rows[i][j] * rows[i][j];
  }
  return y;
}
""",
        ("c_threads",),
        "x",
        "[torch.randn(64, 20)]",
        "ext.c_threads(x)",
        "x * x",
    ),
    Case(
        "integers",
        r"""
torch::Tensor c_integers(torch::Tensor x) {
  auto y = torch::empty_like(x);
  AT_DISPATCH_ALL_TYPES(x.scalar_type(), "c_integers", [&] {
    for (int64_t i = 0; i < x.numel(); ++i) y.data_ptr<scalar_t>()[i] = x.data_ptr<scalar_t>()[i] / scalar_t(2);
  });
  return y;
}
""",
        ("c_integers",),
        "x",
        "[torch.randn(32)]",
        "ext.c_integers((x * 100).to(torch.int32)).float() + ext.c_integers((x * 20).to(torch.int8)).float()",
        "((x * 100).to(torch.int32).float() / 2).trunc() + ((x * 20).to(torch.int8).float() / 2).trunc()",
    ),
    Case(
        "packed",
        r"""
static double c_sum_packed(const torch::PackedTensorAccessor32<float, 3> a) {
  double sum = 0;
  for (int i = 0; i < a.size(0); ++i)
    for (int j = 0; j < a.size(1); ++j)
      for (int k = 0; k < a.size(2); ++k) sum += a[i][j][k];
  return sum;
}
torch::Tensor c_packed(torch::Tensor x) {
  auto first = x.packed_accessor64<float, 3>()[0][0][0];
  return x + c_sum_packed(x.packed_accessor32<float, 3>()) + first;
}
""",
        ("c_packed",),
        "x",
        "[torch.randn(2, 3, 4)]",
        "ext.c_packed(x)",
        "x + x.double().sum().float() + x[0, 0, 0]",
    ),
    Case(
        "edges",
        r"""
torch::Tensor c_edges(torch::Tensor x, torch::Tensor empty) {
  TORCH_CHECK(empty.numel() == 0 && empty.is_contiguous() && empty.size(1) == 3, "an empty tensor");
  TORCH_CHECK(x[0].dim() == 0 && x[0].numel() == 1, "a tensor without dimensions");
  TORCH_CHECK(!torch::Tensor().defined() && x.defined(), "an undefined tensor");
  torch::Tensor later;
  later = x;
  TORCH_CHECK(later.is_same(x) && later.nbytes() == size_t(x.numel()) * 4, "the same");
  TORCH_CHECK(x.device().is_cpu() && !x.is_cuda() && x.device() == torch::kCPU && x.get_device() == -1, x.device());
  TORCH_CHECK(x.dtype() == torch::kFloat32 && x.options().dtype() == x.dtype(), x.scalar_type());
  torch::NoGradGuard no_grad;
  return later + empty.sum();
}
""",
        ("c_edges",),
        "x",
        "[torch.randn(4)]",
        "ext.c_edges(x, x.new_empty(0, 3))",
        "x + 0",
    ),
    Case(
        "norms",
        r"""
torch::Tensor c_norms(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
  const int64_t rows = x.size(0), n = x.size(1);
  auto y = torch::empty_like(x);
  const float *p = x.data_ptr<float>(), *pw = w.data_ptr<float>(), *pb = b.data_ptr<float>();
  float* q = y.data_ptr<float>();
  for (int64_t i = 0; i < rows; ++i) {
    double mean = 0, square = 0;
    for (int64_t j = 0; j < n; ++j) mean += p[i * n + j];
    mean /= double(n);
    for (int64_t j = 0; j < n; ++j) square += (p[i * n + j] - mean) * (p[i * n + j] - mean);
    const double scale = 1.0 / std::sqrt(square / double(n) + 1e-5);
    for (int64_t j = 0; j < n; ++j) q[i * n + j] = float((p[i * n + j] - mean) * scale) * pw[j] + pb[j];
  }
  return y - torch::layer_norm(x, {n}, w, b, 1e-5);
}
""",
        ("c_norms",),
        "x, w, b",
        "[torch.randn(6, 40), torch.randn(40), torch.randn(40)]",
        "ext.c_norms(x, w, b) + x",
        "x + 0",
    ),
)
"""Different in what they use of PyTorch's interface."""

SOURCE = "".join(case.source for case in CASES)
FUNCTIONS = [name for case in CASES for name in case.functions]
