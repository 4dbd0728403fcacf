// TensorOptions: what a new tensor is to be; Scalar: one number of any type; TypeMeta: what dtype() gives.
#pragma once

#include "python.h"

namespace caffe2 {
// An element type as Tensor::dtype() gives it; converts to the enumeration.
class TypeMeta {
 public:
  TypeMeta(c10::ScalarType type) : type_(type) {}
  operator c10::ScalarType() const { return type_; }
  c10::ScalarType toScalarType() const { return type_; }
  size_t itemsize() const { return size_t(c10::elementSize(type_)); }
  std::string name() const {
    switch (type_) {
      case c10::kFloat: return "float";
      case c10::kDouble: return "double";
      case c10::kInt: return "int";
      case c10::kLong: return "long";
      case c10::kBool: return "bool";
      case c10::kHalf: return "c10::Half";
      case c10::kBFloat16: return "c10::BFloat16";
      default: throw c10::Error("the name of this element type is not known here");
    }
  }

 private:
  c10::ScalarType type_;
};
inline bool operator==(const TypeMeta& a, const TypeMeta& b) { return a.toScalarType() == b.toScalarType(); }
inline bool operator!=(const TypeMeta& a, const TypeMeta& b) { return a.toScalarType() != b.toScalarType(); }
inline bool operator==(const TypeMeta& a, c10::ScalarType b) { return a.toScalarType() == b; }
inline bool operator!=(const TypeMeta& a, c10::ScalarType b) { return a.toScalarType() != b; }
inline bool operator==(c10::ScalarType a, const TypeMeta& b) { return a == b.toScalarType(); }
inline bool operator!=(c10::ScalarType a, const TypeMeta& b) { return a != b.toScalarType(); }
}  // namespace caffe2

namespace stitch {
inline void put(std::string& s, const caffe2::TypeMeta& v) { s += v.name(); }
}

namespace c10 {
inline ScalarType typeMetaToScalarType(caffe2::TypeMeta t) { return t; }

struct TensorOptions {
  TensorOptions() = default;
  TensorOptions(ScalarType dtype) : dtype_(dtype) {}
  TensorOptions(caffe2::TypeMeta dtype) : dtype_(dtype.toScalarType()) {}
  TensorOptions(Device device) : device_(device) {}
  TensorOptions(DeviceType type) : device_(Device(type)) {}
  TensorOptions(Layout) {}
  TensorOptions(MemoryFormat format) : format_(format) {}
  TensorOptions dtype(ScalarType v) const { return with(&TensorOptions::dtype_, v); }
  TensorOptions dtype(caffe2::TypeMeta v) const { return dtype(v.toScalarType()); }
  template <class T> TensorOptions dtype() const { return dtype(CppTypeToScalarType<T>::value); }
  TensorOptions device(Device v) const { return with(&TensorOptions::device_, v); }
  TensorOptions device(DeviceType type, DeviceIndex index = -1) const { return device(Device(type, index)); }
  TensorOptions device_index(DeviceIndex index) const { return device(Device(DeviceType::CUDA, index)); }
  TensorOptions layout(Layout) const { return *this; }
  TensorOptions requires_grad(bool v = true) const { return with(&TensorOptions::grad_, v); }
  TensorOptions pinned_memory(bool v = true) const { return with(&TensorOptions::pinned_, v); }
  TensorOptions memory_format(MemoryFormat v) const { return with(&TensorOptions::format_, v); }
  // The default is torch's default type, which only Python knows.
  ScalarType scalar_type() const {
    if (dtype_) return *dtype_;
    throw Error("the element type was not given in these options");
  }
  caffe2::TypeMeta dtype() const { return scalar_type(); }
  Device device() const { return device_.value_or(Device(DeviceType::CPU)); }
  bool has_dtype() const { return dtype_.has_value(); }
  bool has_device() const { return device_.has_value(); }
  bool requires_grad_set() const { return grad_.value_or(false); }

  std::optional<ScalarType> dtype_;
  std::optional<Device> device_;
  std::optional<bool> grad_, pinned_;
  std::optional<MemoryFormat> format_;

 private:
  template <class T, class V> TensorOptions with(std::optional<T> TensorOptions::* field, const V& v) const {
    TensorOptions copy(*this);
    copy.*field = v;
    return copy;
  }
};
inline TensorOptions dtype(ScalarType v) { return TensorOptions().dtype(v); }
inline TensorOptions dtype(caffe2::TypeMeta v) { return TensorOptions().dtype(v); }
template <class T> TensorOptions dtype() { return TensorOptions().template dtype<T>(); }
inline TensorOptions device(Device v) { return TensorOptions().device(v); }
inline TensorOptions layout(Layout) { return TensorOptions(); }
inline TensorOptions requires_grad(bool v = true) { return TensorOptions().requires_grad(v); }

class Scalar {
 public:
  Scalar() : Scalar(int64_t(0)) {}
  template <class T, std::enable_if_t<std::is_arithmetic<T>::value, int> = 0> Scalar(T v) {
    if (std::is_floating_point<T>::value) {
      kind_ = 'f';
      d_ = double(v);
    } else {
      kind_ = std::is_same<T, bool>::value ? 'b' : 'i';
      i_ = int64_t(v);
    }
  }
  Scalar(Half v) : Scalar(float(v)) {}
  Scalar(BFloat16 v) : Scalar(float(v)) {}
  bool isFloatingPoint() const { return kind_ == 'f'; }
  bool isIntegral(bool include_bool) const { return kind_ == 'i' || (include_bool && kind_ == 'b'); }
  bool isBoolean() const { return kind_ == 'b'; }
  template <class T> T to() const { return kind_ == 'f' ? T(d_) : T(i_); }
  double toDouble() const { return to<double>(); }
  float toFloat() const { return to<float>(); }
  int64_t toLong() const { return to<int64_t>(); }
  int toInt() const { return to<int>(); }
  bool toBool() const { return to<bool>(); }
  stitch::Ref object() const {
    return kind_ == 'f' ? stitch::to_python(d_) : kind_ == 'b' ? stitch::to_python(i_ != 0) : stitch::to_python(i_);
  }

 private:
  char kind_;
  union {
    int64_t i_;
    double d_;
  };
};
}  // namespace c10

namespace stitch {
inline Ref to_python(const c10::Scalar& v) { return v.object(); }
}
