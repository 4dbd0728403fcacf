// What pybind11 does for an extension: functions to Python callables, arguments and results both ways, exceptions.
// Only what is here compiles; anything else that pybind11 offers does not.
#pragma once

#include "ops.h"

namespace stitch {

// Python to C++: load() is false when the object does not fit; ``convert`` allows what pybind11 allows in its second
// round.
template <class T, class Enable = void> struct From;

template <> struct From<at::Tensor> {
  at::Tensor value;
  bool load(PyObject* o, bool) {
    if (!PyObject_TypeCheck(o, tensor_type())) return false;
    value = at::Tensor::wrap(o);
    return true;
  }
  at::Tensor& get() { return value; }
};
template <> struct From<bool> {
  bool value = false;
  bool load(PyObject* o, bool convert) {
    if (o == Py_True || o == Py_False) {
      value = o == Py_True;
      return true;
    }
    if (!convert && std::strcmp(Py_TYPE(o)->tp_name, "numpy.bool_") && std::strcmp(Py_TYPE(o)->tp_name, "numpy.bool")) return false;
    if (o == Py_None) return true;
    if (!Py_TYPE(o)->tp_as_number || !Py_TYPE(o)->tp_as_number->nb_bool) return false;
    const int truth = PyObject_IsTrue(o);
    if (truth < 0) {
      PyErr_Clear();
      return false;
    }
    value = truth == 1;
    return true;
  }
  bool& get() { return value; }
};
template <class T> struct From<T, std::enable_if_t<std::is_integral<T>::value && !std::is_same<T, bool>::value && !std::is_same<T, char>::value>> {
  T value = 0;
  bool load(PyObject* o, bool convert) {
    if (PyFloat_Check(o)) return false;
    if (!convert && !PyLong_Check(o) && !PyIndex_Check(o)) return false;
    Ref number(PyLong_Check(o) ? Ref::borrow(o) : PyIndex_Check(o) ? Ref(PyNumber_Index(o)) : Ref(PyNumber_Long(o)));
    if (!number) {
      PyErr_Clear();
      return false;
    }
    if (std::is_signed<T>::value) {
      const long long v = PyLong_AsLongLong(number.get());
      if (v < static_cast<long long>(std::numeric_limits<T>::min()) || v > static_cast<long long>(std::numeric_limits<T>::max()) || PyErr_Occurred()) {
        PyErr_Clear();
        return false;
      }
      value = static_cast<T>(v);
    } else {
      const unsigned long long v = PyLong_AsUnsignedLongLong(number.get());
      if (PyErr_Occurred() || v > static_cast<unsigned long long>(std::numeric_limits<T>::max())) {
        PyErr_Clear();
        return false;
      }
      value = static_cast<T>(v);
    }
    return true;
  }
  T& get() { return value; }
};
template <class T> struct From<T, std::enable_if_t<std::is_floating_point<T>::value>> {
  T value = 0;
  bool load(PyObject* o, bool convert) {
    if (!convert && !PyFloat_Check(o)) return false;
    const double v = PyFloat_AsDouble(o);
    if (v == -1.0 && PyErr_Occurred()) {
      PyErr_Clear();
      return false;
    }
    value = static_cast<T>(v);
    return true;
  }
  T& get() { return value; }
};
template <> struct From<std::string> {
  std::string value;
  bool load(PyObject* o, bool) {
    if (!PyUnicode_Check(o)) return false;
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(o, &size);
    if (!text) {
      PyErr_Clear();
      return false;
    }
    value.assign(text, size_t(size));
    return true;
  }
  std::string& get() { return value; }
};
template <> struct From<c10::ScalarType> {
  c10::ScalarType value = c10::ScalarType::Undefined;
  bool load(PyObject* o, bool) { return dtype_of(o, &value); }
  c10::ScalarType& get() { return value; }
};
template <> struct From<c10::Scalar> {
  c10::Scalar value;
  bool load(PyObject* o, bool) {
    if (!PyBool_Check(o) && !PyLong_Check(o) && !PyFloat_Check(o)) return false;
    value = scalar(Ref::borrow(o));
    return true;
  }
  c10::Scalar& get() { return value; }
};
template <class T> struct From<std::optional<T>> {
  std::optional<T> value;
  bool load(PyObject* o, bool convert) {
    if (o == Py_None) return true;
    From<T> inner;
    if (!inner.load(o, convert)) return false;
    value = inner.get();
    return true;
  }
  std::optional<T>& get() { return value; }
};
template <class T> struct From<std::vector<T>> {
  std::vector<T> value;
  bool load(PyObject* o, bool convert) {
    if (!PySequence_Check(o) || PyUnicode_Check(o) || PyBytes_Check(o) || PyObject_TypeCheck(o, tensor_type())) return false;
    const Py_ssize_t n = PySequence_Size(o);
    for (Py_ssize_t i = 0; i < n; ++i) {
      Ref item = checked(PySequence_GetItem(o, i));
      From<T> inner;
      if (!inner.load(item.get(), convert)) return false;
      value.push_back(inner.get());
    }
    return n >= 0;
  }
  std::vector<T>& get() { return value; }
};
template <> struct From<c10::IntArrayRef> {
  std::vector<int64_t> held;
  c10::IntArrayRef value;
  bool load(PyObject* o, bool convert) {
    if (!PyTuple_Check(o) && !PyList_Check(o)) return false;
    From<std::vector<int64_t>> inner;
    if (!inner.load(o, convert)) return false;
    held = std::move(inner.value);
    value = c10::IntArrayRef(held);
    return true;
  }
  c10::IntArrayRef& get() { return value; }
};
template <> struct From<at::TensorList> {
  From<std::vector<at::Tensor>> held;
  at::TensorList value;
  bool load(PyObject* o, bool convert) {
    if ((!PyTuple_Check(o) && !PyList_Check(o)) || !held.load(o, convert)) return false;
    value = at::TensorList(held.value);
    return true;
  }
  at::TensorList& get() { return value; }
};

// C++ to Python, for results.
template <class T> Ref to_result(const T& v) { return to_python(v); }
inline Ref to_result(const at::Tensor& v) { return Ref::borrow(v.defined() ? v.object() : Py_None); }
template <class T> Ref to_result(const std::vector<T>& v) {
  Ref list = checked(PyList_New(Py_ssize_t(v.size())));
  for (size_t i = 0; i < v.size(); ++i) PyList_SET_ITEM(list.get(), Py_ssize_t(i), to_result(T(v[i])).release());
  return list;
}
template <class Tuple, size_t... I> Ref tuple_result(const Tuple& v, std::index_sequence<I...>) {
  Ref tuple = checked(PyTuple_New(Py_ssize_t(sizeof...(I))));
  (PyTuple_SET_ITEM(tuple.get(), Py_ssize_t(I), to_result(std::get<I>(v)).release()), ...);
  return tuple;
}
template <class... T> Ref to_result(const std::tuple<T...>& v) { return tuple_result(v, std::index_sequence_for<T...>()); }
template <class A, class B> Ref to_result(const std::pair<A, B>& v) { return tuple_result(v, std::index_sequence_for<A, B>()); }

inline void set_python_error() noexcept {
  try {
    throw;
  } catch (const PythonError& e) {
    e.restore();
  } catch (const c10::IndexError& e) {
    PyErr_SetString(PyExc_IndexError, e.what());
  } catch (const c10::ValueError& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const c10::TypeError& e) {
    PyErr_SetString(PyExc_TypeError, e.what());
  } catch (const c10::NotImplementedError& e) {
    PyErr_SetString(PyExc_NotImplementedError, e.what());
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError, "std::bad_alloc");
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "Caught an unknown exception!");
  }
}

struct Parameter {
  std::string name;
  Ref fallback;
};

// One bound function.
class Callable {
 public:
  virtual ~Callable() = default;
  // False when the arguments do not fit; throws what the function throws.
  virtual bool run(PyObject* const* given, bool convert, Ref* result) = 0;
  std::vector<Parameter> parameters;
  size_t count = 0;
  Callable* next = nullptr;

  // Arguments by position and name, with what is not given from the defaults; false when they do not fit.
  bool arrange(PyObject* const* given, Py_ssize_t positional, PyObject* names, PyObject** into) const {
    if (size_t(positional) > count) return false;
    for (size_t i = 0; i < count; ++i) into[i] = i < size_t(positional) ? given[i] : nullptr;
    const Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    for (Py_ssize_t k = 0; k < named; ++k) {
      size_t i = 0;
      while (i < parameters.size() && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, k), parameters[i].name.c_str())) ++i;
      if (i >= parameters.size() || into[i]) return false;
      into[i] = given[positional + k];
    }
    for (size_t i = 0; i < count; ++i) {
      if (into[i]) continue;
      if (i >= parameters.size() || !parameters[i].fallback) return false;
      into[i] = parameters[i].fallback.get();
    }
    return true;
  }
};

template <class R, class F, class... A> class Bound final : public Callable {
  static_assert(sizeof...(A) <= 64, "too many parameters");

 public:
  explicit Bound(F f) : f_(std::move(f)) { count = sizeof...(A); }
  bool run(PyObject* const* given, bool convert, Ref* result) override {
    return run_each(given, convert, result, std::index_sequence_for<A...>());
  }

 private:
  template <size_t... I> bool run_each([[maybe_unused]] PyObject* const* given, [[maybe_unused]] bool convert, Ref* result, std::index_sequence<I...>) {
    std::tuple<From<std::decay_t<A>>...> arguments;
    if (!(std::get<I>(arguments).load(given[I], convert) && ...)) return false;
    if constexpr (std::is_void<R>::value) {
      f_(static_cast<A>(std::get<I>(arguments).get())...);
      *result = Ref::borrow(Py_None);
    } else {
      *result = to_result(f_(static_cast<A>(std::get<I>(arguments).get())...));
    }
    return true;
  }
  F f_;
};

template <class R, class... A> Callable* bind(R (*f)(A...)) { return new Bound<R, R (*)(A...), A...>(f); }
template <class F, class C, class R, class... A> Callable* bind_object(F f, R (C::*)(A...) const) {
  return new Bound<R, F, A...>(std::move(f));
}
template <class F, class = decltype(&F::operator())> Callable* bind(F f) { return bind_object(std::move(f), &F::operator()); }

struct Overloads {
  std::string name, doc;
  Callable* first = nullptr;
  PyMethodDef method{};
};

inline PyObject* dispatch(PyObject* self, PyObject* const* given, Py_ssize_t positional, PyObject* names) noexcept {
  try {
    Dropped::drain();
    auto* overloads = static_cast<Overloads*>(PyCapsule_GetPointer(self, nullptr));
    PyObject* arranged[64];
    Ref result;
    for (const bool convert : {false, true}) {
      for (Callable* each = overloads->first; each; each = each->next) {
        if (each->arrange(given, positional, names, arranged) && each->run(arranged, convert, &result)) return result.release();
      }
    }
    PyErr_Format(PyExc_TypeError, "%s(): incompatible function arguments", overloads->name.c_str());
  } catch (...) {
    set_python_error();
  }
  return nullptr;
}

}  // namespace stitch

namespace pybind11 {

struct none {};
struct arg {
  explicit constexpr arg(const char* n) : name(n) {}
  template <class T> struct with_default;
  template <class T> stitch::Parameter operator=(const T& value) const { return {name, stitch::to_result(value)}; }
  stitch::Parameter operator=(const none&) const { return {name, stitch::Ref::borrow(Py_None)}; }
  const char* name;
};
namespace literals {
constexpr arg operator"" _a(const char* name, size_t) { return arg(name); }
}

class module_ {
 public:
  explicit module_(PyObject* borrowed) : module_object_(borrowed) {}
  template <class F, class... Extra> module_& def(const char* name, F&& f, const Extra&... extra) {
    stitch::Callable* callable = stitch::bind(std::forward<F>(f));
    std::string doc;
    (take(callable, doc, extra), ...);
    add(name, callable, doc);
    return *this;
  }
  std::string& doc() { return doc_; }

 private:
  static void take(stitch::Callable*, std::string& doc, const char* text) { doc = text; }
  static void take(stitch::Callable* c, std::string&, const arg& a) { c->parameters.push_back({a.name, stitch::Ref()}); }
  static void take(stitch::Callable* c, std::string&, const stitch::Parameter& p) { c->parameters.push_back(p); }
  void add(const char* name, stitch::Callable* callable, const std::string& doc) {
    for (stitch::Overloads* known : all_) {
      if (known->name != name) continue;
      stitch::Callable* last = known->first;
      while (last->next) last = last->next;
      last->next = callable;
      return;
    }
    auto* overloads = new stitch::Overloads{name, doc, callable};
    overloads->method = {overloads->name.c_str(),
                         reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&stitch::dispatch)),
                         METH_FASTCALL | METH_KEYWORDS, overloads->doc.c_str()};
    all_.push_back(overloads);
    stitch::Ref self = stitch::checked(PyCapsule_New(overloads, nullptr, nullptr));
    stitch::Ref function = stitch::checked(PyCFunction_New(&overloads->method, self.get()));
    if (PyObject_SetAttrString(module_object_, name, function.get())) stitch::throw_python_error();
  }
  PyObject* module_object_;
  std::string doc_;
  std::vector<stitch::Overloads*> all_;
};
using module = module_;

}  // namespace pybind11
namespace py = pybind11;

// Whatever the module is called, the library exports one entry, and the loader gives the module its name.
#define PYBIND11_MODULE(name, variable)                                                                      \
  static void stitch_define(::pybind11::module_& variable);                                                  \
  extern "C" __attribute__((visibility("default"))) PyObject* PyInit_stitch_extension() {                    \
    static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "stitch_extension", nullptr, -1, nullptr,        \
                                     nullptr, nullptr, nullptr, nullptr};                                    \
    PyObject* created = PyModule_Create(&definition);                                                        \
    if (!created) return nullptr;                                                                            \
    try {                                                                                                    \
      ::pybind11::module_ bound(created);                                                                    \
      stitch_define(bound);                                                                                  \
      return created;                                                                                        \
    } catch (...) {                                                                                          \
      ::stitch::set_python_error();                                                                          \
    }                                                                                                        \
    Py_DECREF(created);                                                                                      \
    return nullptr;                                                                                          \
  }                                                                                                          \
  static void stitch_define(::pybind11::module_& variable)
