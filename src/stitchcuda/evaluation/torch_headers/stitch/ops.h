// Free functions of at:: and torch:: that call torch's, and operators between tensors.
#pragma once

#include "tensor.h"

#define STITCH_FREE(name, path, parameters, ...)     \
  inline Tensor name parameters {                    \
    static ::stitch::Function f{path};               \
    return ::stitch::run(f, __VA_ARGS__);            \
  }
#define STITCH_FREE_UNARY(name) \
  inline Tensor name(const Tensor& x) { return x.name(); }

namespace stitch {
template <class... A> at::Tensor create(Function& f, const c10::TensorOptions& o, std::optional<c10::MemoryFormat> format, const A&... arguments) {
  const auto layout = format ? format : o.format_;
  // Always a device: the default that Python code may have set is not for C++ code.
  return run_with(f,
                  {{"dtype", o.dtype_ ? to_python(*o.dtype_) : Ref()},
                   {"device", device_object(o.device())},
                   {"requires_grad", o.grad_ ? to_python(*o.grad_) : Ref()},
                   {"pin_memory", o.pinned_ ? to_python(*o.pinned_) : Ref()},
                   {"memory_format", layout ? to_python(*layout) : Ref()}},
                  arguments...);
}
template <class... A> at::Tensor create_like(Function& f, const at::Tensor& x, const c10::TensorOptions& o, std::optional<c10::MemoryFormat> format, const A&... arguments) {
  const auto layout = format ? format : o.format_;
  return run_with(f,
                  {{"dtype", o.dtype_ ? to_python(*o.dtype_) : Ref()},
                   {"device", o.device_ ? device_object(*o.device_) : Ref()},
                   {"requires_grad", o.grad_ ? to_python(*o.grad_) : Ref()},
                   {"pin_memory", o.pinned_ ? to_python(*o.pinned_) : Ref()},
                   {"memory_format", layout ? to_python(*layout) : Ref()}},
                  x, arguments...);
}
}  // namespace stitch

namespace at {

inline std::vector<Tensor> Tensor::chunk(int64_t count, int64_t dim) const {
  static ::stitch::Function f{"Tensor.chunk"};
  return ::stitch::tensors(::stitch::run_object(f, {}, *this, count, dim));
}
inline std::vector<Tensor> Tensor::split(int64_t size, int64_t dim) const {
  static ::stitch::Function f{"Tensor.split"};
  return ::stitch::tensors(::stitch::run_object(f, {}, *this, size, dim));
}
inline std::vector<Tensor> Tensor::unbind(int64_t dim) const {
  static ::stitch::Function f{"Tensor.unbind"};
  return ::stitch::tensors(::stitch::run_object(f, {}, *this, dim));
}
inline std::tuple<Tensor, Tensor> Tensor::max(int64_t dim, bool keep) const {
  static ::stitch::Function f{"Tensor.max"};
  return ::stitch::two(::stitch::run_object(f, {}, *this, dim, keep));
}
inline std::tuple<Tensor, Tensor> Tensor::min(int64_t dim, bool keep) const {
  static ::stitch::Function f{"Tensor.min"};
  return ::stitch::two(::stitch::run_object(f, {}, *this, dim, keep));
}
inline Scalar Tensor::item() const {
  static ::stitch::Function f{"Tensor.item"};
  return ::stitch::scalar(::stitch::run_object(f, {}, *this));
}

#define STITCH_FACTORY(name)                                                                        \
  inline Tensor name(IntArrayRef sizes, const TensorOptions& options = {}) {                        \
    static ::stitch::Function f{#name};                                                             \
    return ::stitch::create(f, options, std::nullopt, sizes);                                       \
  }
STITCH_FACTORY(zeros)
STITCH_FACTORY(ones)
STITCH_FACTORY(rand)
STITCH_FACTORY(randn)
#undef STITCH_FACTORY
inline Tensor empty(IntArrayRef sizes, const TensorOptions& options = {}, std::optional<MemoryFormat> format = std::nullopt) {
  static ::stitch::Function f{"empty"};
  return ::stitch::create(f, options, format, sizes);
}
inline Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, const TensorOptions& options = {}) {
  static ::stitch::Function f{"empty_strided"};
  return ::stitch::create(f, options, std::nullopt, sizes, strides);
}
inline Tensor full(IntArrayRef sizes, const Scalar& value, const TensorOptions& options = {}) {
  static ::stitch::Function f{"full"};
  return ::stitch::create(f, options, std::nullopt, sizes, value);
}
inline Tensor arange(const Scalar& end, const TensorOptions& options = {}) {
  static ::stitch::Function f{"arange"};
  return ::stitch::create(f, options, std::nullopt, end);
}
inline Tensor arange(const Scalar& start, const Scalar& end, const TensorOptions& options = {}) {
  static ::stitch::Function f{"arange"};
  return ::stitch::create(f, options, std::nullopt, start, end);
}
inline Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step, const TensorOptions& options = {}) {
  static ::stitch::Function f{"arange"};
  return ::stitch::create(f, options, std::nullopt, start, end, step);
}
inline Tensor eye(int64_t n, const TensorOptions& options = {}) {
  static ::stitch::Function f{"eye"};
  return ::stitch::create(f, options, std::nullopt, n);
}
#define STITCH_LIKE(name)                                                                                        \
  inline Tensor name(const Tensor& x, const TensorOptions& options = {}, std::optional<MemoryFormat> format = std::nullopt) { \
    static ::stitch::Function f{#name};                                                                          \
    return ::stitch::create_like(f, x, options, format);                                                         \
  }
STITCH_LIKE(empty_like)
STITCH_LIKE(zeros_like)
STITCH_LIKE(ones_like)
STITCH_LIKE(rand_like)
STITCH_LIKE(randn_like)
#undef STITCH_LIKE
inline Tensor full_like(const Tensor& x, const Scalar& value, const TensorOptions& options = {}, std::optional<MemoryFormat> format = std::nullopt) {
  static ::stitch::Function f{"full_like"};
  return ::stitch::create_like(f, x, options, format, value);
}
// A tensor of given values, with the element type that PyTorch takes for them.
template <class T> Tensor tensor(ArrayRef<T> values, const TensorOptions& options = {}) {
  static ::stitch::Function f{"tensor"};
  ::stitch::Ref list = ::stitch::checked(PyList_New(Py_ssize_t(values.size())));
  for (size_t i = 0; i < values.size(); ++i) PyList_SET_ITEM(list.get(), Py_ssize_t(i), Scalar(values[i]).object().release());
  return ::stitch::create(f, options, std::nullopt, list);
}
template <class T> Tensor tensor(std::initializer_list<T> values, const TensorOptions& options = {}) {
  return tensor(ArrayRef<T>(values.begin(), values.size()), options);
}
template <class T> Tensor tensor(const std::vector<T>& values, const TensorOptions& options = {}) {
  return tensor(ArrayRef<T>(values), options);
}
template <class T, std::enable_if_t<std::is_arithmetic<T>::value, int> = 0> Tensor tensor(T value, const TensorOptions& options = {}) {
  static ::stitch::Function f{"tensor"};
  return ::stitch::create(f, options, std::nullopt, Scalar(value));
}
inline Tensor scalar_tensor(const Scalar& value, const TensorOptions& options = {}) {
  static ::stitch::Function f{"scalar_tensor"};
  return ::stitch::create(f, options, std::nullopt, value);
}

STITCH_FREE_UNARY(abs)
STITCH_FREE_UNARY(ceil)
STITCH_FREE_UNARY(cos)
STITCH_FREE_UNARY(erf)
STITCH_FREE_UNARY(exp)
STITCH_FREE_UNARY(expm1)
STITCH_FREE_UNARY(floor)
STITCH_FREE_UNARY(log)
STITCH_FREE_UNARY(log1p)
STITCH_FREE_UNARY(log2)
STITCH_FREE_UNARY(neg)
STITCH_FREE_UNARY(reciprocal)
STITCH_FREE_UNARY(relu)
STITCH_FREE_UNARY(round)
STITCH_FREE_UNARY(rsqrt)
STITCH_FREE_UNARY(sigmoid)
STITCH_FREE_UNARY(sin)
STITCH_FREE_UNARY(sqrt)
STITCH_FREE_UNARY(square)
STITCH_FREE_UNARY(tanh)
STITCH_FREE_UNARY(sum)
STITCH_FREE_UNARY(mean)
STITCH_FREE_UNARY(max)
STITCH_FREE_UNARY(min)
STITCH_FREE_UNARY(t)
STITCH_FREE_UNARY(isnan)
template <class A, class B> auto add(const A& a, const B& b, const Scalar& alpha = 1) -> decltype(a.add(b, alpha)) { return a.add(b, alpha); }
template <class A, class B> auto sub(const A& a, const B& b, const Scalar& alpha = 1) -> decltype(a.sub(b, alpha)) { return a.sub(b, alpha); }
inline Tensor mul(const Tensor& a, const Tensor& b) { return a.mul(b); }
inline Tensor mul(const Tensor& a, const Scalar& b) { return a.mul(b); }
inline Tensor div(const Tensor& a, const Tensor& b) { return a.div(b); }
inline Tensor div(const Tensor& a, const Scalar& b) { return a.div(b); }
inline Tensor pow(const Tensor& a, const Tensor& b) { return a.pow(b); }
inline Tensor pow(const Tensor& a, const Scalar& b) { return a.pow(b); }
inline Tensor maximum(const Tensor& a, const Tensor& b) { return a.maximum(b); }
inline Tensor minimum(const Tensor& a, const Tensor& b) { return a.minimum(b); }
inline Tensor max(const Tensor& a, const Tensor& b) { return a.maximum(b); }
inline Tensor min(const Tensor& a, const Tensor& b) { return a.minimum(b); }
inline Tensor clamp(const Tensor& x, const std::optional<Scalar>& low, const std::optional<Scalar>& high = std::nullopt) { return x.clamp(low, high); }
inline Tensor clamp_min(const Tensor& x, const Scalar& low) { return x.clamp_min(low); }
inline Tensor clamp_max(const Tensor& x, const Scalar& high) { return x.clamp_max(high); }
inline Tensor sum(const Tensor& x, IntArrayRef dims, bool keep = false) { return x.sum(dims, keep); }
inline Tensor mean(const Tensor& x, IntArrayRef dims, bool keep = false) { return x.mean(dims, keep); }
inline Tensor var(const Tensor& x, IntArrayRef dims, bool unbiased, bool keep = false) { return x.var(dims, unbiased, keep); }
inline std::tuple<Tensor, Tensor> max(const Tensor& x, int64_t dim, bool keep = false) { return x.max(dim, keep); }
inline std::tuple<Tensor, Tensor> min(const Tensor& x, int64_t dim, bool keep = false) { return x.min(dim, keep); }
inline Tensor amax(const Tensor& x, IntArrayRef dims, bool keep = false) { return x.amax(dims, keep); }
inline Tensor amin(const Tensor& x, IntArrayRef dims, bool keep = false) { return x.amin(dims, keep); }
inline Tensor argmax(const Tensor& x, std::optional<int64_t> dim = std::nullopt, bool keep = false) { return x.argmax(dim, keep); }
inline Tensor argmin(const Tensor& x, std::optional<int64_t> dim = std::nullopt, bool keep = false) { return x.argmin(dim, keep); }
inline Tensor norm(const Tensor& x, const Scalar& p = 2) { return x.norm(p); }
inline Tensor softmax(const Tensor& x, int64_t dim) { return x.softmax(dim); }
inline Tensor log_softmax(const Tensor& x, int64_t dim) { return x.log_softmax(dim); }
inline Tensor logsumexp(const Tensor& x, IntArrayRef dims, bool keep = false) { return x.logsumexp(dims, keep); }
inline Tensor cumsum(const Tensor& x, int64_t dim) { return x.cumsum(dim); }
inline Tensor cumprod(const Tensor& x, int64_t dim) { return x.cumprod(dim); }
inline Tensor matmul(const Tensor& a, const Tensor& b) { return a.matmul(b); }
inline Tensor mm(const Tensor& a, const Tensor& b) { return a.mm(b); }
inline Tensor bmm(const Tensor& a, const Tensor& b) { return a.bmm(b); }
inline Tensor transpose(const Tensor& x, int64_t a, int64_t b) { return x.transpose(a, b); }
inline Tensor permute(const Tensor& x, IntArrayRef dims) { return x.permute(dims); }
inline Tensor reshape(const Tensor& x, IntArrayRef sizes) { return x.reshape(sizes); }
inline Tensor flatten(const Tensor& x, int64_t start = 0, int64_t end = -1) { return x.flatten(start, end); }
inline Tensor squeeze(const Tensor& x, int64_t dim) { return x.squeeze(dim); }
inline Tensor unsqueeze(const Tensor& x, int64_t dim) { return x.unsqueeze(dim); }
inline Tensor clone(const Tensor& x) { return x.clone(); }
inline Tensor tril(const Tensor& x, int64_t diagonal = 0) { return x.tril(diagonal); }
inline Tensor triu(const Tensor& x, int64_t diagonal = 0) { return x.triu(diagonal); }
inline std::vector<Tensor> chunk(const Tensor& x, int64_t count, int64_t dim = 0) { return x.chunk(count, dim); }
inline std::vector<Tensor> split(const Tensor& x, int64_t size, int64_t dim = 0) { return x.split(size, dim); }
STITCH_FREE(cat, "cat", (TensorList tensors, int64_t dim = 0), tensors, dim)
STITCH_FREE(stack, "stack", (TensorList tensors, int64_t dim = 0), tensors, dim)
STITCH_FREE(einsum, "functional.einsum", (const std::string& equation, TensorList tensors), equation, tensors)
STITCH_FREE(where, "where", (const Tensor& c, const Tensor& a, const Tensor& b), c, a, b)
inline Tensor addmm(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& beta = 1, const Scalar& alpha = 1) {
  static ::stitch::Function f{"addmm"};
  return ::stitch::run_with(f, {{"beta", ::stitch::to_python(beta)}, {"alpha", ::stitch::to_python(alpha)}}, x, a, b);
}
inline Tensor baddbmm(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& beta = 1, const Scalar& alpha = 1) {
  static ::stitch::Function f{"baddbmm"};
  return ::stitch::run_with(f, {{"beta", ::stitch::to_python(beta)}, {"alpha", ::stitch::to_python(alpha)}}, x, a, b);
}

using MaybeTensor = std::optional<Tensor>;
STITCH_FREE(linear, "_C._nn.linear", (const Tensor& x, const Tensor& weight, const MaybeTensor& bias = {}), x, weight, bias)
#define STITCH_CONV(name)                                                                                          \
  STITCH_FREE(name, #name,                                                                                         \
              (const Tensor& x, const Tensor& weight, const MaybeTensor& bias = {}, IntArrayRef stride = 1,        \
               IntArrayRef padding = 0, IntArrayRef dilation = 1, int64_t groups = 1),                             \
              x, weight, bias, stride, padding, dilation, groups)
STITCH_CONV(conv1d)
STITCH_CONV(conv2d)
STITCH_CONV(conv3d)
#undef STITCH_CONV
#define STITCH_CONV_TRANSPOSE(name, function)                                                                      \
  STITCH_FREE(name, function,                                                                                      \
              (const Tensor& x, const Tensor& weight, const MaybeTensor& bias = {}, IntArrayRef stride = 1,        \
               IntArrayRef padding = 0, IntArrayRef output_padding = 0, int64_t groups = 1, IntArrayRef dilation = 1), \
              x, weight, bias, stride, padding, output_padding, groups, dilation)
STITCH_CONV_TRANSPOSE(conv_transpose1d, "conv_transpose1d")
STITCH_CONV_TRANSPOSE(conv_transpose2d, "conv_transpose2d")
STITCH_CONV_TRANSPOSE(conv_transpose3d, "conv_transpose3d")
#undef STITCH_CONV_TRANSPOSE
STITCH_FREE(convolution, "convolution",
            (const Tensor& x, const Tensor& weight, const MaybeTensor& bias, IntArrayRef stride, IntArrayRef padding,
             IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups),
            x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
#define STITCH_MAX_POOL(name)                                                                                       \
  STITCH_FREE(name, #name,                                                                                          \
              (const Tensor& x, IntArrayRef kernel, IntArrayRef stride = {}, IntArrayRef padding = 0,               \
               IntArrayRef dilation = 1, bool ceil_mode = false),                                                   \
              x, kernel, stride, padding, dilation, ceil_mode)
STITCH_MAX_POOL(max_pool1d)
STITCH_MAX_POOL(max_pool2d)
STITCH_MAX_POOL(max_pool3d)
#undef STITCH_MAX_POOL
#define STITCH_AVG_POOL(name)                                                                                       \
  STITCH_FREE(name, "_C._nn." #name,                                                                                \
              (const Tensor& x, IntArrayRef kernel, IntArrayRef stride = {}, IntArrayRef padding = 0,               \
               bool ceil_mode = false, bool count_include_pad = true, std::optional<int64_t> divisor = {}),         \
              x, kernel, stride, padding, ceil_mode, count_include_pad, divisor)
STITCH_AVG_POOL(avg_pool2d)
STITCH_AVG_POOL(avg_pool3d)
#undef STITCH_AVG_POOL
STITCH_FREE(adaptive_avg_pool2d, "_C._nn.adaptive_avg_pool2d", (const Tensor& x, IntArrayRef size), x, size)
STITCH_FREE(adaptive_avg_pool3d, "_C._nn.adaptive_avg_pool3d", (const Tensor& x, IntArrayRef size), x, size)
STITCH_FREE(batch_norm, "batch_norm",
            (const Tensor& x, const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& mean,
             const MaybeTensor& var, bool training, double momentum, double eps, bool cudnn),
            x, weight, bias, mean, var, training, momentum, eps, cudnn)
STITCH_FREE(layer_norm, "layer_norm",
            (const Tensor& x, IntArrayRef shape, const MaybeTensor& weight = {}, const MaybeTensor& bias = {},
             double eps = 1e-5, bool cudnn = true),
            x, shape, weight, bias, eps, cudnn)
STITCH_FREE(group_norm, "group_norm",
            (const Tensor& x, int64_t groups, const MaybeTensor& weight = {}, const MaybeTensor& bias = {},
             double eps = 1e-5, bool cudnn = true),
            x, groups, weight, bias, eps, cudnn)
STITCH_FREE(instance_norm, "instance_norm",
            (const Tensor& x, const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& mean,
             const MaybeTensor& var, bool use_input_stats, double momentum, double eps, bool cudnn),
            x, weight, bias, mean, var, use_input_stats, momentum, eps, cudnn)
STITCH_FREE(dropout, "dropout", (const Tensor& x, double p, bool train), x, p, train)
STITCH_FREE(leaky_relu, "_C._nn.leaky_relu", (const Tensor& x, const Scalar& slope = 0.01), x, slope)
STITCH_FREE(elu, "_C._nn.elu", (const Tensor& x, const Scalar& alpha = 1), x, alpha)
STITCH_FREE(hardtanh, "_C._nn.hardtanh", (const Tensor& x, const Scalar& low = -1, const Scalar& high = 1), x, low, high)
STITCH_FREE(hardswish, "_C._nn.hardswish", (const Tensor& x), x)
STITCH_FREE(hardsigmoid, "_C._nn.hardsigmoid", (const Tensor& x), x)
STITCH_FREE(silu, "_C._nn.silu", (const Tensor& x), x)
STITCH_FREE(softplus, "_C._nn.softplus", (const Tensor& x, const Scalar& beta = 1, const Scalar& threshold = 20), x, beta, threshold)
inline Tensor gelu(const Tensor& x, const std::string& approximate = "none") {
  static ::stitch::Function f{"_C._nn.gelu"};
  return ::stitch::run_with(f, {{"approximate", ::stitch::to_python(approximate)}}, x);
}
inline Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v, const MaybeTensor& mask = {},
                                           double dropout = 0, bool causal = false, std::optional<double> scale = {}) {
  static ::stitch::Function f{"_C._nn.scaled_dot_product_attention"};
  return ::stitch::run_with(f, {{"scale", ::stitch::to_python(scale)}}, q, k, v, mask, dropout, causal);
}

#define STITCH_OPERATOR(symbol, method)                                                                \
  inline Tensor operator symbol(const Tensor& a, const Tensor& b) { return a.method(b); }              \
  inline Tensor operator symbol(const Tensor& a, const Scalar& b) { return a.method(b); }
STITCH_OPERATOR(+, add)
STITCH_OPERATOR(-, sub)
STITCH_OPERATOR(*, mul)
STITCH_OPERATOR(/, div)
STITCH_OPERATOR(==, eq)
STITCH_OPERATOR(!=, ne)
STITCH_OPERATOR(<, lt)
STITCH_OPERATOR(<=, le)
STITCH_OPERATOR(>, gt)
STITCH_OPERATOR(>=, ge)
#undef STITCH_OPERATOR
inline Tensor operator+(const Scalar& a, const Tensor& b) { return b.add(a); }
inline Tensor operator*(const Scalar& a, const Tensor& b) { return b.mul(a); }
inline Tensor operator-(const Scalar& a, const Tensor& b) { return b.neg().add(a); }
inline Tensor operator/(const Scalar& a, const Tensor& b) { return b.reciprocal().mul(a); }

// No gradient is recorded while one lives.
class NoGradGuard {
 public:
  NoGradGuard() : before_(call("is_grad_enabled", {}).get() == Py_True) { set(false); }
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;
  ~NoGradGuard() {
    if (before_) set(true);
  }

 private:
  static ::stitch::Ref call(const char* name, std::initializer_list<bool> value) {
    ::stitch::need_lock();
    ::stitch::Ref function = ::stitch::attribute(::stitch::attribute(::stitch::torch(), "_C").get(), name);
    const ::stitch::Ref on = value.size() ? ::stitch::to_python(*value.begin()) : ::stitch::Ref();
    return ::stitch::call(function.get(), &on, value.size());
  }
  static void set(bool on) { call("_set_grad_enabled", {on}); }
  bool before_;
};

inline std::optional<Device> device_of(const Tensor& x) { return x.defined() ? std::optional<Device>(x.device()) : std::nullopt; }
inline int64_t maybe_wrap_dim(int64_t dim, int64_t dims) {
  const int64_t n = dims ? dims : 1;
  if (dim < -n || dim >= n)
    throw IndexError(::stitch::text("Dimension out of range (expected to be in range of [", -n, ", ", n - 1, "], but got ", dim, ")"));
  return dim < 0 ? dim + n : dim;
}

}  // namespace at

namespace stitch {
inline void put(std::string& s, const at::DeprecatedTypeProperties& v) { s += c10::toString(v.scalarType()); }
}
