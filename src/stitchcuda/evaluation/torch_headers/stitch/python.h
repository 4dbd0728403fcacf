// Talking to Python: owned references, errors that cross both ways, the exchange table that torch.Tensor offers, and
// calls of torch's functions. The interpreter lock is held wherever Python is touched.
#pragma once

#include "base.h"

#include <atomic>

namespace stitch {

class Ref {  // an owned reference
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : p_(owned) {}
  Ref(Ref&& o) noexcept : p_(o.p_) { o.p_ = nullptr; }
  Ref& operator=(Ref&& o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  Ref(const Ref& o) : p_(o.p_) { Py_XINCREF(p_); }
  Ref& operator=(const Ref& o) {
    Ref copy(o);
    std::swap(p_, copy.p_);
    return *this;
  }
  ~Ref() { Py_XDECREF(p_); }
  static Ref borrow(PyObject* p) {
    Py_XINCREF(p);
    return Ref(p);
  }
  PyObject* get() const { return p_; }
  PyObject* release() {
    PyObject* p = p_;
    p_ = nullptr;
    return p;
  }
  explicit operator bool() const { return p_ != nullptr; }

 private:
  PyObject* p_ = nullptr;
};

// A Python exception on its way through C++; goes back as the object that it was.
class PythonError : public c10::Error {
 public:
  PythonError(std::string message, Ref type, Ref value, Ref trace)
      : c10::Error(std::move(message)), type_(std::move(type)), value_(std::move(value)), trace_(std::move(trace)) {}
  void restore() const { PyErr_Restore(Ref(type_).release(), Ref(value_).release(), Ref(trace_).release()); }

 private:
  Ref type_, value_, trace_;
};

[[noreturn]] inline void throw_python_error() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Ref t(type), v(value), b(trace);
  std::string message = "a Python call failed";
  if (value) {
    Ref shown(PyObject_Str(value));
    const char* c = shown ? PyUnicode_AsUTF8(shown.get()) : nullptr;
    if (c) message = c;
    PyErr_Clear();
  }
  throw PythonError(message, t, v, b);
}
inline Ref checked(PyObject* owned) {
  if (C10_UNLIKELY(!owned)) throw_python_error();
  return Ref(owned);
}
inline void need_lock() {
  if (C10_UNLIKELY(!PyGILState_Check()))
    throw c10::Error("a tensor operation was called in a thread of the program's own; only data pointers, sizes and "
                     "accessors may be used there");
}

inline Ref attribute(PyObject* of, const char* name) { return checked(PyObject_GetAttrString(of, name)); }
inline PyObject* torch() {
  static PyObject* module = checked(PyImport_ImportModule("torch")).release();
  return module;
}

// What torch.Tensor offers to C under ``__dlpack_c_exchange_api__`` (DLPack 1.x), as far as it is used here.
struct ExchangedTensor {
  void* data;
  struct { int32_t type, index; } device;
  int32_t ndim;
  struct { uint8_t code, bits; uint16_t lanes; } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct Exchange {
  struct { uint32_t major, minor; void* previous; } header;
  int (*allocate)(void*, void**, void*, void (*)(void*, const char*, const char*));
  int (*managed_from)(void*, void**);
  int (*managed_to)(void*, void**);
  int (*view)(void* tensor, ExchangedTensor* out);
  int (*stream)(int32_t device_type, int32_t device, void** out);
};
// nullptr where this torch has none: then attributes are read one by one, which is slower.
inline const Exchange* exchange() {
  static const Exchange* table = [] {
    Ref type = attribute(torch(), "Tensor");
    Ref capsule(PyObject_GetAttrString(type.get(), "__dlpack_c_exchange_api__"));
    const Exchange* found = nullptr;
    if (capsule)
      found = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
    PyErr_Clear();
    return found && found->header.major == 1 && found->view && found->stream ? found : nullptr;
  }();
  return table;
}

inline PyObject* dtype_object(c10::ScalarType t) {  // borrowed
  static PyObject* known[128] = {};
  PyObject*& place = known[int(t) & 127];
  if (!place) {
    const char* name = nullptr;
    switch (t) {
      case c10::ScalarType::Byte: name = "uint8"; break;
      case c10::ScalarType::Char: name = "int8"; break;
      case c10::ScalarType::Short: name = "int16"; break;
      case c10::ScalarType::Int: name = "int32"; break;
      case c10::ScalarType::Long: name = "int64"; break;
      case c10::ScalarType::Half: name = "float16"; break;
      case c10::ScalarType::Float: name = "float32"; break;
      case c10::ScalarType::Double: name = "float64"; break;
      case c10::ScalarType::ComplexHalf: name = "complex32"; break;
      case c10::ScalarType::ComplexFloat: name = "complex64"; break;
      case c10::ScalarType::ComplexDouble: name = "complex128"; break;
      case c10::ScalarType::Bool: name = "bool"; break;
      case c10::ScalarType::BFloat16: name = "bfloat16"; break;
      case c10::ScalarType::Float8_e5m2: name = "float8_e5m2"; break;
      case c10::ScalarType::Float8_e4m3fn: name = "float8_e4m3fn"; break;
      case c10::ScalarType::Float8_e5m2fnuz: name = "float8_e5m2fnuz"; break;
      case c10::ScalarType::Float8_e4m3fnuz: name = "float8_e4m3fnuz"; break;
      case c10::ScalarType::UInt16: name = "uint16"; break;
      case c10::ScalarType::UInt32: name = "uint32"; break;
      case c10::ScalarType::UInt64: name = "uint64"; break;
      default: throw c10::Error("a tensor without an element type");
    }
    place = attribute(torch(), name).release();
  }
  return place;
}
inline bool dtype_of(PyObject* object, c10::ScalarType* out) {
  for (int t = 0; t < 30; ++t) {
    const auto type = c10::ScalarType(t);
    if (!c10::elementSize(type)) continue;
    if (dtype_object(type) == object) {
      *out = type;
      return true;
    }
  }
  return false;
}
inline Ref device_object(const c10::Device& device) {
  static PyObject* type = attribute(torch(), "device").release();
  static PyObject* known[2][17] = {};
  const int index = device.index() + 1;
  if (index < 0 || index > 16) return checked(PyObject_CallFunction(type, "s", device.str().c_str()));
  PyObject*& place = known[device.is_cuda()][index];
  if (!place) place = checked(PyObject_CallFunction(type, "s", device.str().c_str())).release();
  return Ref::borrow(place);
}
inline Ref memory_format_object(c10::MemoryFormat format) {
  const char* names[] = {"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"};
  return attribute(torch(), names[int(format)]);
}

// C++ to Python. Overloads for Tensor, Scalar and lists of tensors are in ops.h.
inline Ref to_python(bool v) { return Ref::borrow(v ? Py_True : Py_False); }
inline Ref to_python(double v) { return checked(PyFloat_FromDouble(v)); }
inline Ref to_python(float v) { return to_python(double(v)); }
template <class T, std::enable_if_t<std::is_integral<T>::value && std::is_signed<T>::value, int> = 0> Ref to_python(T v) {
  return checked(PyLong_FromLongLong(v));
}
template <class T, std::enable_if_t<std::is_integral<T>::value && std::is_unsigned<T>::value && !std::is_same<T, bool>::value, int> = 0>
Ref to_python(T v) {
  return checked(PyLong_FromUnsignedLongLong(v));
}
inline Ref to_python(const std::string& v) { return checked(PyUnicode_FromStringAndSize(v.data(), Py_ssize_t(v.size()))); }
inline Ref to_python(const char* v) { return checked(PyUnicode_FromString(v)); }
inline Ref to_python(c10::ScalarType v) { return Ref::borrow(dtype_object(v)); }
inline Ref to_python(const c10::Device& v) { return device_object(v); }
inline Ref to_python(c10::MemoryFormat v) { return memory_format_object(v); }
inline Ref to_python(std::nullopt_t) { return Ref::borrow(Py_None); }
inline Ref to_python(const Ref& v) { return v; }
inline Ref to_python(c10::IntArrayRef v) {
  Ref tuple = checked(PyTuple_New(Py_ssize_t(v.size())));
  for (size_t i = 0; i < v.size(); ++i) PyTuple_SET_ITEM(tuple.get(), Py_ssize_t(i), to_python(v[i]).release());
  return tuple;
}

struct Keyword {  // a keyword argument; a null value is left out
  const char* name;
  Ref value;
};
constexpr size_t MOST_ARGUMENTS = 16;

// The Python string of a keyword, by the address of its literal. Under the interpreter lock.
inline PyObject* keyword_name(const char* name) {
  static const char* known[64];
  static PyObject* strings[64];
  const size_t start = (reinterpret_cast<uintptr_t>(name) >> 2) % 64;
  for (size_t i = 0; i < 64; ++i) {
    const size_t at = (start + i) % 64;
    if (known[at] == name) return Ref::borrow(strings[at]).release();
    if (known[at]) continue;
    strings[at] = checked(PyUnicode_InternFromString(name)).release();
    known[at] = name;
    return Ref::borrow(strings[at]).release();
  }
  return checked(PyUnicode_InternFromString(name)).release();
}

inline Ref call(PyObject* function, const Ref* values, size_t count, std::initializer_list<Keyword> keywords = {}) {
  PyObject* all[MOST_ARGUMENTS + 1];
  PyObject* names[MOST_ARGUMENTS];
  size_t n = 0, named = 0;
  for (; n < count; ++n) all[n + 1] = values[n].get();
  for (const Keyword& k : keywords) {
    if (!k.value) continue;
    all[1 + n + named] = k.value.get();
    names[named++] = keyword_name(k.name);
  }
  Ref tuple;
  if (named) {
    tuple = checked(PyTuple_New(Py_ssize_t(named)));
    for (size_t i = 0; i < named; ++i) PyTuple_SET_ITEM(tuple.get(), Py_ssize_t(i), names[i]);
  }
  return checked(PyObject_Vectorcall(function, all + 1, n | PY_VECTORCALL_ARGUMENTS_OFFSET, tuple.get()));
}

// A function found once by its dotted name under torch: "empty", "ops.aten.slice.Tensor".
struct Function {
  const char* path;
  PyObject* found = nullptr;
  PyObject* get() {
    need_lock();
    if (!found) {
      Ref at = Ref::borrow(torch());
      const char* p = path;
      while (const char* dot = std::strchr(p, '.')) {
        at = attribute(at.get(), std::string(p, size_t(dot - p)).c_str());
        p = dot + 1;
      }
      found = attribute(at.get(), p).release();
    }
    return found;
  }
};

// References that were let go of where Python may not be touched; dropped at the next call.
class Dropped {
 public:
  static void put(PyObject* p) {
    while (lock().test_and_set(std::memory_order_acquire)) {}
    list().push_back(p);
    waiting().store(true, std::memory_order_relaxed);
    lock().clear(std::memory_order_release);
  }
  static void drain() {
    if (C10_LIKELY(!waiting().load(std::memory_order_relaxed))) return;
    while (lock().test_and_set(std::memory_order_acquire)) {}
    std::vector<PyObject*> taken;
    taken.swap(list());
    waiting().store(false, std::memory_order_relaxed);
    lock().clear(std::memory_order_release);
    for (PyObject* p : taken) Py_DECREF(p);
  }

 private:
  static std::vector<PyObject*>& list() {
    static auto* l = new std::vector<PyObject*>();
    return *l;
  }
  static std::atomic_flag& lock() {
    static std::atomic_flag f = ATOMIC_FLAG_INIT;
    return f;
  }
  static std::atomic<bool>& waiting() {
    static std::atomic<bool> w{false};
    return w;
  }
};

}  // namespace stitch
