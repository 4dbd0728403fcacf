// at::Tensor: a counted handle of a Python tensor with its description beside it, so that pointers and sizes cost
// nothing. Operators call torch's own, by their Python names. Nothing here changes a tensor's shape in place, which
// the description of another handle would not see.
#pragma once

#include "accessor.h"
#include "options.h"

namespace at {
class Tensor;
using TensorList = c10::ArrayRef<Tensor>;

// What the deprecated Tensor::type() gives, as far as dispatch and checks use it.
class DeprecatedTypeProperties {
 public:
  DeprecatedTypeProperties(ScalarType type, bool cuda) : type_(type), cuda_(cuda) {}
  ScalarType scalarType() const { return type_; }
  operator ScalarType() const { return type_; }
  bool is_cuda() const { return cuda_; }

 private:
  ScalarType type_;
  bool cuda_;
};
}  // namespace at

namespace stitch {

inline PyTypeObject* tensor_type() {
  static auto* type = reinterpret_cast<PyTypeObject*>(attribute(torch(), "Tensor").release());
  return type;
}

struct Described {
  std::atomic<long> references{1};
  PyObject* object = nullptr;  // owned
  void* data = nullptr;
  c10::ScalarType type = c10::ScalarType::Undefined;
  c10::Device device{c10::DeviceType::CPU};
  int64_t dims = 0, count = 1;
  int64_t *sizes = near, *strides = near + 8;
  int64_t near[16];
  std::vector<int64_t> far;

  explicit Described(PyObject* borrowed) : object(borrowed) {
    if (exchange()) describe_fast();
    else describe();
    for (int64_t i = 0; i < dims; ++i) count *= sizes[i];
    Py_INCREF(object);
  }
  ~Described() {
    if (!Py_IsInitialized()) return;  // a static of the program's, after Python has ended
    if (C10_LIKELY(PyGILState_Check())) Py_DECREF(object);
    else Dropped::put(object);
  }
  Described(const Described&) = delete;
  Described& operator=(const Described&) = delete;

 private:
  void reserve(int64_t n) {
    dims = n;
    if (n > 8) {
      far.resize(size_t(2 * n));
      sizes = far.data();
      strides = far.data() + n;
    }
  }
  void describe_fast() {
    ExchangedTensor t;
    if (exchange()->view(object, &t)) throw_python_error();
    type = type_of(t.dtype.code, t.dtype.bits, t.dtype.lanes);
    if (t.device.type == 2) device = c10::Device(c10::DeviceType::CUDA, c10::DeviceIndex(t.device.index));
    else if (t.device.type != 1 && t.device.type != 3) throw c10::Error("a tensor on a device that is neither cpu nor cuda");
    data = static_cast<char*>(t.data) + t.byte_offset;
    reserve(t.ndim);
    for (int64_t i = 0, step = 1; i < dims; ++i) {
      sizes[i] = t.shape[i];
      const int64_t from_end = dims - 1 - i;
      strides[t.strides ? i : from_end] = t.strides ? t.strides[i] : step;
      step *= t.shape[from_end];
    }
  }
  void describe() {
    if (!dtype_of(attribute(object, "dtype").get(), &type)) throw c10::Error("a tensor of an unknown element type");
    Ref cuda = attribute(object, "is_cuda"), where = attribute(object, "device");
    if (cuda.get() == Py_True) {
      device = c10::Device(c10::DeviceType::CUDA, c10::DeviceIndex(PyLong_AsLong(attribute(where.get(), "index").get())));
    } else if (attribute(object, "is_cpu").get() != Py_True) {
      throw c10::Error("a tensor on a device that is neither cpu nor cuda");
    }
    data = PyLong_AsVoidPtr(checked(PyObject_CallMethod(object, "data_ptr", nullptr)).get());
    Ref shape = attribute(object, "shape"), steps = checked(PyObject_CallMethod(object, "stride", nullptr));
    reserve(int64_t(PyTuple_GET_SIZE(shape.get())));
    for (int64_t i = 0; i < dims; ++i) {
      sizes[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.get(), i));
      strides[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(steps.get(), i));
    }
    if (PyErr_Occurred()) throw_python_error();
  }
  static c10::ScalarType type_of(int code, int bits, int lanes) {
    using T = c10::ScalarType;
    if (lanes == 1) {
      switch (code) {
        case 0: return bits == 8 ? T::Char : bits == 16 ? T::Short : bits == 32 ? T::Int : T::Long;
        case 1: return bits == 8 ? T::Byte : bits == 16 ? T::UInt16 : bits == 32 ? T::UInt32 : T::UInt64;
        case 2: return bits == 16 ? T::Half : bits == 32 ? T::Float : T::Double;
        case 4: return T::BFloat16;
        case 5: return bits == 32 ? T::ComplexHalf : bits == 64 ? T::ComplexFloat : T::ComplexDouble;
        case 6: return T::Bool;
        case 10: return T::Float8_e4m3fn;
        case 11: return T::Float8_e4m3fnuz;
        case 12: return T::Float8_e5m2;
        case 13: return T::Float8_e5m2fnuz;
        default: break;
      }
    }
    throw c10::Error("a tensor of an unknown element type");
  }
};

template <class... A> at::Tensor run(Function& f, const A&... arguments);
template <class... A> at::Tensor run_with(Function& f, std::initializer_list<Keyword> keywords, const A&... arguments);

}  // namespace stitch

// One method, or function, for one of torch's; the arguments are in Python's order.
#define STITCH_SELF(name, parameters, ...)                                        \
  Tensor name parameters const {                                                  \
    static ::stitch::Function f{"Tensor." #name};                                 \
    return ::stitch::run(f, __VA_ARGS__);                                         \
  }
#define STITCH_IN_PLACE(name, parameters, ...)                                    \
  Tensor& name parameters const {                                                 \
    static ::stitch::Function f{"Tensor." #name};                                 \
    ::stitch::run(f, __VA_ARGS__);                                                \
    return const_cast<Tensor&>(*this);                                            \
  }
#define STITCH_UNARY(name) STITCH_SELF(name, (), *this) STITCH_IN_PLACE(name##_, (), *this)
#define STITCH_BINARY(name)                                                                  \
  STITCH_SELF(name, (const Tensor& other), *this, other)                                     \
  STITCH_SELF(name, (const Scalar& other), *this, other)                                     \
  STITCH_IN_PLACE(name##_, (const Tensor& other), *this, other)                              \
  STITCH_IN_PLACE(name##_, (const Scalar& other), *this, other)
#define STITCH_SCALED(name)                                                                  \
  template <class B> Tensor name(const B& other, const Scalar& alpha = 1) const {            \
    static ::stitch::Function f{"Tensor." #name};                                            \
    return ::stitch::run_with(f, {{"alpha", ::stitch::to_python(alpha)}}, *this, term(other)); \
  }                                                                                          \
  template <class B> Tensor& name##_(const B& other, const Scalar& alpha = 1) const {        \
    static ::stitch::Function f{"Tensor." #name "_"};                                        \
    ::stitch::run_with(f, {{"alpha", ::stitch::to_python(alpha)}}, *this, term(other));      \
    return const_cast<Tensor&>(*this);                                                       \
  }

namespace at {

class Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor& o) : p_(o.p_) {
    if (p_) p_->references.fetch_add(1, std::memory_order_relaxed);
  }
  Tensor(Tensor&& o) noexcept : p_(o.p_) { o.p_ = nullptr; }
  Tensor& operator=(const Tensor& o) & {
    Tensor copy(o);
    std::swap(p_, copy.p_);
    return *this;
  }
  Tensor& operator=(Tensor&& o) & noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  // What an expression such as x[i] stands for is written to.
  Tensor& operator=(const Tensor& o) && { return copy_(o); }
  Tensor& operator=(const Scalar& v) && { return fill_(v); }
  ~Tensor() { reset(); }
  void reset() {
    if (p_ && p_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete p_;
    p_ = nullptr;
  }
  static Tensor wrap(PyObject* object) {
    if (object == Py_None) return Tensor();
    if (!PyObject_TypeCheck(object, ::stitch::tensor_type())) throw TypeError("a tensor was expected");
    Tensor t;
    t.p_ = new ::stitch::Described(object);
    return t;
  }
  PyObject* object() const { return known()->object; }  // borrowed

  bool defined() const { return p_ != nullptr; }
  bool is_same(const Tensor& o) const { return p_ == o.p_ || (p_ && o.p_ && p_->object == o.p_->object); }
  int64_t dim() const { return known()->dims; }
  int64_t ndimension() const { return dim(); }
  int64_t numel() const { return known()->count; }
  int64_t size(int64_t d) const { return known()->sizes[wrapped(d)]; }
  int64_t stride(int64_t d) const { return known()->strides[wrapped(d)]; }
  IntArrayRef sizes() const { return IntArrayRef(known()->sizes, size_t(dim())); }
  IntArrayRef strides() const { return IntArrayRef(known()->strides, size_t(dim())); }
  ScalarType scalar_type() const { return known()->type; }
  caffe2::TypeMeta dtype() const { return scalar_type(); }
  DeprecatedTypeProperties type() const { return DeprecatedTypeProperties(scalar_type(), is_cuda()); }
  Device device() const { return known()->device; }
  DeviceIndex get_device() const { return device().index(); }
  Layout layout() const { return Layout::Strided; }
  bool is_cuda() const { return known()->device.is_cuda(); }
  bool is_cpu() const { return known()->device.is_cpu(); }
  bool is_floating_point() const { return isFloatingType(scalar_type()); }
  bool is_complex() const { return isComplexType(scalar_type()); }
  bool is_sparse() const { return false; }
  size_t nbytes() const { return size_t(numel()) * size_t(element_size()); }
  int64_t element_size() const { return elementSize(scalar_type()); }
  int64_t itemsize() const { return element_size(); }
  TensorOptions options() const { return TensorOptions().dtype(scalar_type()).device(device()); }
  bool requires_grad() const { return ::stitch::attribute(object(), "requires_grad").get() == Py_True; }
  bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const {
    const auto* k = known();
    if (k->count == 0) return true;
    if (format == MemoryFormat::Preserve) throw Error("preserve_format says nothing about a tensor's layout");
    const bool last = format != MemoryFormat::Contiguous;
    if (last && k->dims != (format == MemoryFormat::ChannelsLast ? 4 : 5)) return false;
    int64_t expected = 1;
    for (int64_t i = k->dims - 1; i >= 0; --i) {
      const int64_t d = !last ? i : i == k->dims - 1 ? 1 : i == 0 ? 0 : i + 1;
      if (k->sizes[d] != 1 && k->strides[d] != expected) return false;
      expected *= k->sizes[d];
    }
    return true;
  }

  void* data_ptr() const { return known()->data; }
  void* mutable_data_ptr() const { return known()->data; }
  const void* const_data_ptr() const { return known()->data; }
  template <class T> T* data_ptr() const {
    using Plain = std::remove_const_t<T>;
    const ScalarType wanted = CppTypeToScalarType<Plain>::value;
    if (C10_UNLIKELY(scalar_type() != wanted))
      throw Error(::stitch::text("expected scalar type ", wanted, " but found ", scalar_type()));
    return static_cast<T*>(known()->data);
  }
  template <class T> T* mutable_data_ptr() const { return data_ptr<T>(); }
  template <class T> const T* const_data_ptr() const { return data_ptr<T>(); }
  template <class T> T* data() const { return data_ptr<T>(); }
  template <class T, size_t N> TensorAccessor<T, N> accessor() const& {
    check_dims(N);
    return TensorAccessor<T, N>(data_ptr<T>(), known()->sizes, known()->strides);
  }
  template <class T, size_t N> TensorAccessor<T, N> accessor() && = delete;
  template <class T, size_t N, template <class U> class P = DefaultPtrTraits, class I = int64_t>
  GenericPackedTensorAccessor<T, N, P, I> generic_packed_accessor() const {
    check_dims(N);
    if (sizeof(I) == 4 && numel() > int64_t(INT32_MAX))
      throw Error("numel needs to be smaller than int32_t max; otherwise, please use packed_accessor64");
    return GenericPackedTensorAccessor<T, N, P, I>(data_ptr<T>(), known()->sizes, known()->strides);
  }
  template <class T, size_t N, template <class U> class P = DefaultPtrTraits>
  PackedTensorAccessor32<T, N, P> packed_accessor32() const {
    return generic_packed_accessor<T, N, P, int32_t>();
  }
  template <class T, size_t N, template <class U> class P = DefaultPtrTraits>
  PackedTensorAccessor64<T, N, P> packed_accessor64() const {
    return generic_packed_accessor<T, N, P, int64_t>();
  }
  template <class T, size_t N, template <class U> class P = DefaultPtrTraits, class I = int64_t>
  GenericPackedTensorAccessor<T, N, P, I> packed_accessor() const {
    return generic_packed_accessor<T, N, P, I>();
  }

#include "methods.inc"

 private:
  ::stitch::Described* known() const {
    if (C10_UNLIKELY(!p_)) throw Error("an undefined tensor was used");
    return p_;
  }
  int64_t wrapped(int64_t d) const {
    const int64_t n = dim() ? dim() : 1;
    if (C10_UNLIKELY(d < -n || d >= n || !dim()))
      throw IndexError(::stitch::text("Dimension out of range (expected to be in range of [", -n, ", ", n - 1, "], but got ", d, ")"));
    return d < 0 ? d + n : d;
  }
  void check_dims(size_t n) const {
    if (int64_t(n) != dim()) throw Error(::stitch::text("TensorAccessor expected ", n, " dims but tensor has ", dim()));
  }
  static const Tensor& term(const Tensor& t) { return t; }
  template <class T> static Scalar term(const T& v) { return Scalar(v); }
  ::stitch::Described* p_ = nullptr;
};

}  // namespace at

namespace stitch {

inline Ref to_python(const at::Tensor& t) { return Ref::borrow(t.object()); }
inline Ref to_python(at::TensorList tensors) {
  Ref list = checked(PyList_New(Py_ssize_t(tensors.size())));
  for (size_t i = 0; i < tensors.size(); ++i) PyList_SET_ITEM(list.get(), Py_ssize_t(i), to_python(tensors[i]).release());
  return list;
}
inline Ref to_python(const std::optional<at::Tensor>& v) { return v && v->defined() ? to_python(*v) : Ref::borrow(Py_None); }
template <class T> Ref to_python(const std::optional<T>& v) { return v ? to_python(*v) : Ref::borrow(Py_None); }
template <class... A> Ref run_object(Function& f, std::initializer_list<Keyword> keywords, const A&... arguments) {
  PyObject* function = f.get();
  Ref values[sizeof...(A) + 1] = {to_python(arguments)...};
  return call(function, values, sizeof...(A), keywords);
}
template <class... A> at::Tensor run(Function& f, const A&... arguments) {
  return at::Tensor::wrap(run_object(f, {}, arguments...).get());
}
template <class... A> at::Tensor run_with(Function& f, std::initializer_list<Keyword> keywords, const A&... arguments) {
  return at::Tensor::wrap(run_object(f, keywords, arguments...).get());
}
inline std::vector<at::Tensor> tensors(const Ref& sequence) {
  std::vector<at::Tensor> all;
  Ref fast = checked(PySequence_Fast(sequence.get(), "a sequence of tensors was expected"));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i)
    all.push_back(at::Tensor::wrap(PySequence_Fast_GET_ITEM(fast.get(), i)));
  return all;
}
inline std::tuple<at::Tensor, at::Tensor> two(const Ref& sequence) {
  auto all = tensors(sequence);
  if (all.size() != 2) throw c10::Error("two tensors were expected");
  return {all[0], all[1]};
}
inline c10::Scalar scalar(const Ref& number) {
  if (PyBool_Check(number.get())) return c10::Scalar(number.get() == Py_True);
  if (PyLong_Check(number.get())) {
    const long long v = PyLong_AsLongLong(number.get());
    if (v == -1 && PyErr_Occurred()) throw_python_error();
    return c10::Scalar(int64_t(v));
  }
  const double v = PyFloat_AsDouble(number.get());
  if (v == -1.0 && PyErr_Occurred()) throw_python_error();
  return c10::Scalar(v);
}

}  // namespace stitch
