// Element types, devices and errors under PyTorch's names: what a Tensor is described by. No Tensor here.
// Numbers of ScalarType and names are PyTorch's public interface.
#pragma once

#include <Python.h>

#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#define C10_HOST_DEVICE __host__ __device__
#define C10_DEVICE __device__
#define C10_HOST __host__
#else
#define C10_HOST_DEVICE
#define C10_DEVICE
#define C10_HOST
#endif
#define C10_LIKELY(e) (__builtin_expect(static_cast<bool>(e), 1))
#define C10_UNLIKELY(e) (__builtin_expect(static_cast<bool>(e), 0))
#define C10_RESTRICT __restrict__
#define C10_ALWAYS_INLINE __attribute__((__always_inline__)) inline

#include "half.h"

namespace c10 {

using DeviceIndex = int8_t;

enum class ScalarType : int8_t {
  Byte = 0, Char = 1, Short = 2, Int = 3, Long = 4, Half = 5, Float = 6, Double = 7,
  ComplexHalf = 8, ComplexFloat = 9, ComplexDouble = 10, Bool = 11, BFloat16 = 15,
  Float8_e5m2 = 23, Float8_e4m3fn = 24, Float8_e5m2fnuz = 25, Float8_e4m3fnuz = 26,
  UInt16 = 27, UInt32 = 28, UInt64 = 29, Undefined = 127
};

constexpr ScalarType kByte = ScalarType::Byte, kChar = ScalarType::Char, kShort = ScalarType::Short;
constexpr ScalarType kInt = ScalarType::Int, kLong = ScalarType::Long, kHalf = ScalarType::Half;
constexpr ScalarType kFloat = ScalarType::Float, kDouble = ScalarType::Double, kBool = ScalarType::Bool;
constexpr ScalarType kBFloat16 = ScalarType::BFloat16;

inline const char* toString(ScalarType t) {
  switch (t) {
    case ScalarType::Byte: return "Byte";
    case ScalarType::Char: return "Char";
    case ScalarType::Short: return "Short";
    case ScalarType::Int: return "Int";
    case ScalarType::Long: return "Long";
    case ScalarType::Half: return "Half";
    case ScalarType::Float: return "Float";
    case ScalarType::Double: return "Double";
    case ScalarType::ComplexHalf: return "ComplexHalf";
    case ScalarType::ComplexFloat: return "ComplexFloat";
    case ScalarType::ComplexDouble: return "ComplexDouble";
    case ScalarType::Bool: return "Bool";
    case ScalarType::BFloat16: return "BFloat16";
    case ScalarType::Float8_e5m2: return "Float8_e5m2";
    case ScalarType::Float8_e4m3fn: return "Float8_e4m3fn";
    case ScalarType::Float8_e5m2fnuz: return "Float8_e5m2fnuz";
    case ScalarType::Float8_e4m3fnuz: return "Float8_e4m3fnuz";
    case ScalarType::UInt16: return "UInt16";
    case ScalarType::UInt32: return "UInt32";
    case ScalarType::UInt64: return "UInt64";
    default: return "Undefined";
  }
}

inline int64_t elementSize(ScalarType t) {
  switch (t) {
    case ScalarType::Byte: case ScalarType::Char: case ScalarType::Bool:
    case ScalarType::Float8_e5m2: case ScalarType::Float8_e4m3fn:
    case ScalarType::Float8_e5m2fnuz: case ScalarType::Float8_e4m3fnuz: return 1;
    case ScalarType::Short: case ScalarType::Half: case ScalarType::BFloat16: case ScalarType::UInt16: return 2;
    case ScalarType::Int: case ScalarType::Float: case ScalarType::UInt32: case ScalarType::ComplexHalf: return 4;
    case ScalarType::Long: case ScalarType::Double: case ScalarType::UInt64: case ScalarType::ComplexFloat: return 8;
    case ScalarType::ComplexDouble: return 16;
    default: return 0;
  }
}

inline bool isFloatingType(ScalarType t) {
  return t == kDouble || t == kFloat || t == kHalf || t == kBFloat16 ||
         (t >= ScalarType::Float8_e5m2 && t <= ScalarType::Float8_e4m3fnuz);
}
inline bool isComplexType(ScalarType t) { return t >= ScalarType::ComplexHalf && t <= ScalarType::ComplexDouble; }
inline bool isIntegralType(ScalarType t, bool include_bool = false) {
  return t <= kLong || (t >= ScalarType::UInt16 && t <= ScalarType::UInt64) || (include_bool && t == kBool);
}

// Only the types that PyTorch gives data_ptr<T>() for; any other does not compile.
template <class T> struct CppTypeToScalarType;
#define STITCH_CPP_TYPE(type, name)                                                    \
  template <> struct CppTypeToScalarType<type> {                                       \
    static constexpr ScalarType value = ScalarType::name;                              \
  };
STITCH_CPP_TYPE(uint8_t, Byte)
STITCH_CPP_TYPE(int8_t, Char)
STITCH_CPP_TYPE(int16_t, Short)
STITCH_CPP_TYPE(int32_t, Int)
STITCH_CPP_TYPE(int64_t, Long)
STITCH_CPP_TYPE(float, Float)
STITCH_CPP_TYPE(double, Double)
STITCH_CPP_TYPE(bool, Bool)
STITCH_CPP_TYPE(Half, Half)
STITCH_CPP_TYPE(BFloat16, BFloat16)
#undef STITCH_CPP_TYPE

enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;
enum class Layout : int8_t { Strided };
constexpr Layout kStrided = Layout::Strided;
enum class MemoryFormat : int8_t { Contiguous, Preserve, ChannelsLast, ChannelsLast3d };

struct Device {
  Device(DeviceType type, DeviceIndex index = -1) : type_(type), index_(index) {}
  bool operator==(const Device& o) const { return type_ == o.type_ && index_ == o.index_; }
  bool operator!=(const Device& o) const { return !(*this == o); }
  DeviceType type() const { return type_; }
  DeviceIndex index() const { return index_; }
  bool has_index() const { return index_ >= 0; }
  void set_index(DeviceIndex index) { index_ = index; }
  bool is_cuda() const { return type_ == DeviceType::CUDA; }
  bool is_cpu() const { return type_ == DeviceType::CPU; }
  std::string str() const {
    std::string name = is_cuda() ? "cuda" : "cpu";
    return has_index() ? name + ":" + std::to_string(int(index_)) : name;
  }

 private:
  DeviceType type_;
  DeviceIndex index_;
};

template <class T> class ArrayRef {
 public:
  using value_type = T;
  using iterator = const T*;
  using const_iterator = const T*;
  constexpr ArrayRef() : data_(nullptr), size_(0) {}
  constexpr ArrayRef(const T& one) : data_(&one), size_(1) {}
  constexpr ArrayRef(const T* data, size_t size) : data_(data), size_(size) {}
  constexpr ArrayRef(const T* begin, const T* end) : data_(begin), size_(size_t(end - begin)) {}
  template <class A> ArrayRef(const std::vector<T, A>& v) : data_(v.data()), size_(v.size()) {}
  template <size_t N> constexpr ArrayRef(const T (&a)[N]) : data_(a), size_(N) {}
  // A list lives as long as the expression that it stands in, as for PyTorch's own.
  constexpr ArrayRef(const std::initializer_list<T>& l) : data_(l.begin() == l.end() ? nullptr : l.begin()), size_(l.size()) {}
  template <class C, class = std::enable_if_t<std::is_same<decltype(std::declval<const C&>().data()), const T*>::value &&
                                              !std::is_same<C, ArrayRef>::value && (sizeof(C) > 0) && (std::tuple_size<C>::value > 0)>>
  ArrayRef(const C& array) : data_(array.data()), size_(array.size()) {}
  constexpr const T* begin() const { return data_; }
  constexpr const T* end() const { return data_ + size_; }
  constexpr const T* data() const { return data_; }
  constexpr size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr const T& operator[](size_t i) const { return data_[i]; }
  const T& at(size_t i) const;
  const T& front() const { return at(0); }
  const T& back() const { return at(size_ - 1); }
  ArrayRef slice(size_t from, size_t count) const { return ArrayRef(data_ + from, count); }
  ArrayRef slice(size_t from) const { return ArrayRef(data_ + from, size_ - from); }
  std::vector<T> vec() const { return std::vector<T>(begin(), end()); }
  bool equals(ArrayRef o) const {
    if (size_ != o.size_) return false;
    for (size_t i = 0; i < size_; ++i)
      if (!(data_[i] == o.data_[i])) return false;
    return true;
  }

 private:
  const T* data_;
  size_t size_;
};
template <class T> bool operator==(ArrayRef<T> a, ArrayRef<T> b) { return a.equals(b); }
template <class T> bool operator!=(ArrayRef<T> a, ArrayRef<T> b) { return !a.equals(b); }
template <class T> bool operator==(const std::vector<T>& a, ArrayRef<T> b) { return ArrayRef<T>(a).equals(b); }
template <class T> bool operator==(ArrayRef<T> a, const std::vector<T>& b) { return a.equals(b); }
template <class T> bool operator!=(ArrayRef<T> a, const std::vector<T>& b) { return !a.equals(b); }
using IntArrayRef = ArrayRef<int64_t>;

template <class T> using optional = std::optional<T>;
using std::nullopt;
using std::nullopt_t;
using OptionalIntArrayRef = std::optional<IntArrayRef>;

// Errors. Which Python exception one becomes is decided where a function returns to Python.
class Error : public std::exception {
 public:
  explicit Error(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& msg() const { return message_; }
  const char* what_without_backtrace() const noexcept { return message_.c_str(); }

 private:
  std::string message_;
};
class IndexError : public Error { using Error::Error; };
class ValueError : public Error { using Error::Error; };
class TypeError : public Error { using Error::Error; };
class NotImplementedError : public Error { using Error::Error; };

}  // namespace c10

namespace stitch {

// What a message may be put together from; any other type does not compile.
inline void put(std::string& s, const char* v) { s += v ? v : "(null)"; }
inline void put(std::string& s, const std::string& v) { s += v; }
inline void put(std::string& s, char v) { s += v; }
inline void put(std::string& s, bool v) { s += v ? '1' : '0'; }
inline void put(std::string& s, c10::ScalarType v) { s += c10::toString(v); }
inline void put(std::string& s, c10::DeviceType v) { s += v == c10::DeviceType::CUDA ? "cuda" : "cpu"; }
inline void put(std::string& s, const c10::Device& v) { s += v.str(); }
inline void put(std::string& s, double v) {
  char text[40];
  std::snprintf(text, sizeof text, "%g", v);
  s += text;
}
inline void put(std::string& s, float v) { put(s, double(v)); }
template <class T, std::enable_if_t<std::is_integral<T>::value, int> = 0> void put(std::string& s, T v) { s += std::to_string(v); }
template <class T> void put(std::string& s, const c10::ArrayRef<T>& v) {
  s += '[';
  for (size_t i = 0; i < v.size(); ++i) {
    if (i) s += ", ";
    put(s, v[i]);
  }
  s += ']';
}
template <class T> void put(std::string& s, const std::vector<T>& v) { put(s, c10::ArrayRef<T>(v)); }
template <class... A> std::string text(const A&... parts) {
  std::string s;
  (put(s, parts), ...);
  return s;
}
// With no message given, the condition is the message.
template <class... A> std::string message(const char* condition, const A&... parts) {
  if (sizeof...(A) == 0) return std::string("Expected ") + condition + " to be true, but got false.";
  return text(parts...);
}

}  // namespace stitch

namespace c10 {
template <class... A> std::string str(const A&... parts) { return stitch::text(parts...); }
template <class T> const T& ArrayRef<T>::at(size_t i) const {
  if (i >= size_) throw Error(stitch::text("ArrayRef: invalid index Index = ", i, "; Length = ", size_));
  return data_[i];
}
}  // namespace c10

#define STITCH_CHECK(type, cond, ...)                                                                  \
  do {                                                                                                 \
    if (C10_UNLIKELY(!(cond))) throw type(::stitch::message(#cond, ##__VA_ARGS__));                    \
  } while (false)
#define TORCH_CHECK(cond, ...) STITCH_CHECK(::c10::Error, cond, ##__VA_ARGS__)
#define TORCH_CHECK_INDEX(cond, ...) STITCH_CHECK(::c10::IndexError, cond, ##__VA_ARGS__)
#define TORCH_CHECK_VALUE(cond, ...) STITCH_CHECK(::c10::ValueError, cond, ##__VA_ARGS__)
#define TORCH_CHECK_TYPE(cond, ...) STITCH_CHECK(::c10::TypeError, cond, ##__VA_ARGS__)
#define TORCH_CHECK_NOT_IMPLEMENTED(cond, ...) STITCH_CHECK(::c10::NotImplementedError, cond, ##__VA_ARGS__)
#define TORCH_INTERNAL_ASSERT(cond, ...) STITCH_CHECK(::c10::Error, cond, ##__VA_ARGS__)
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY(cond, ...) do { } while (false)
#define AT_ASSERTM(cond, ...) STITCH_CHECK(::c10::Error, cond, ##__VA_ARGS__)
#define AT_ASSERT(cond, ...) STITCH_CHECK(::c10::Error, cond, ##__VA_ARGS__)
#define TORCH_WARN(...) std::fprintf(stderr, "Warning: %s\n", ::stitch::text(__VA_ARGS__).c_str())
#define AT_ERROR(...) throw ::c10::Error(::stitch::text(__VA_ARGS__))

namespace at {
using namespace c10;
constexpr auto kInt8 = kChar;
}
