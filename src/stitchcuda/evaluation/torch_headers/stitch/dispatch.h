// AT_DISPATCH_*: one lambda for each element type, scalar_t naming it.
#pragma once

#include "tensor.h"

namespace stitch {
inline c10::ScalarType dispatched(c10::ScalarType t) { return t; }
inline c10::ScalarType dispatched(const caffe2::TypeMeta& t) { return t.toScalarType(); }
inline c10::ScalarType dispatched(const at::DeprecatedTypeProperties& t) { return t.scalarType(); }
template <c10::ScalarType> struct CppType;
#define STITCH_TYPE(name, type) template <> struct CppType<c10::ScalarType::name> { using is = type; };
STITCH_TYPE(Byte, uint8_t)
STITCH_TYPE(Char, int8_t)
STITCH_TYPE(Short, int16_t)
STITCH_TYPE(Int, int32_t)
STITCH_TYPE(Long, int64_t)
STITCH_TYPE(Half, c10::Half)
STITCH_TYPE(Float, float)
STITCH_TYPE(Double, double)
STITCH_TYPE(Bool, bool)
STITCH_TYPE(BFloat16, c10::BFloat16)
#undef STITCH_TYPE
}  // namespace stitch

#define AT_PRIVATE_CASE_TYPE_USING_HINT(type, hint, ...)        \
  case type: {                                                  \
    using hint = typename ::stitch::CppType<type>::is;          \
    return __VA_ARGS__();                                       \
  }
#define AT_DISPATCH_CASE(type, ...) AT_PRIVATE_CASE_TYPE_USING_HINT(type, scalar_t, __VA_ARGS__)
#define AT_DISPATCH_SWITCH(type, name, ...)                                                                          \
  [&] {                                                                                                              \
    const ::c10::ScalarType stitch_type = ::stitch::dispatched(type);                                                \
    switch (stitch_type) {                                                                                           \
      __VA_ARGS__                                                                                                    \
      default:                                                                                                       \
        throw ::c10::NotImplementedError(::stitch::text('"', name, "\" not implemented for '", stitch_type, "'"));   \
    }                                                                                                                \
  }()
#define STITCH_FLOATING(...) \
  AT_DISPATCH_CASE(::c10::ScalarType::Double, __VA_ARGS__) AT_DISPATCH_CASE(::c10::ScalarType::Float, __VA_ARGS__)
#define STITCH_INTEGRAL(...)                                    \
  AT_DISPATCH_CASE(::c10::ScalarType::Byte, __VA_ARGS__)        \
  AT_DISPATCH_CASE(::c10::ScalarType::Char, __VA_ARGS__)        \
  AT_DISPATCH_CASE(::c10::ScalarType::Int, __VA_ARGS__)         \
  AT_DISPATCH_CASE(::c10::ScalarType::Long, __VA_ARGS__)        \
  AT_DISPATCH_CASE(::c10::ScalarType::Short, __VA_ARGS__)
#define STITCH_REDUCED(...) \
  AT_DISPATCH_CASE(::c10::ScalarType::Half, __VA_ARGS__) AT_DISPATCH_CASE(::c10::ScalarType::BFloat16, __VA_ARGS__)

#define AT_DISPATCH_FLOATING_TYPES(type, name, ...) AT_DISPATCH_SWITCH(type, name, STITCH_FLOATING(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(a, type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, STITCH_FLOATING(__VA_ARGS__) AT_DISPATCH_CASE(a, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(type, name, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND(::c10::ScalarType::Half, type, name, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND2(a, b, type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, STITCH_FLOATING(__VA_ARGS__) AT_DISPATCH_CASE(a, __VA_ARGS__) AT_DISPATCH_CASE(b, __VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(type, name, ...) AT_DISPATCH_SWITCH(type, name, STITCH_REDUCED(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(type, name, ...) AT_DISPATCH_SWITCH(type, name, STITCH_INTEGRAL(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, STITCH_INTEGRAL(__VA_ARGS__) STITCH_FLOATING(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND(a, type, name, ...) \
  AT_DISPATCH_SWITCH(type, name, STITCH_INTEGRAL(__VA_ARGS__) STITCH_FLOATING(__VA_ARGS__) AT_DISPATCH_CASE(a, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(a, b, type, name, ...)                                 \
  AT_DISPATCH_SWITCH(type, name, STITCH_INTEGRAL(__VA_ARGS__) STITCH_FLOATING(__VA_ARGS__) \
                     AT_DISPATCH_CASE(a, __VA_ARGS__) AT_DISPATCH_CASE(b, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND3(a, b, c, type, name, ...)                              \
  AT_DISPATCH_SWITCH(type, name, STITCH_INTEGRAL(__VA_ARGS__) STITCH_FLOATING(__VA_ARGS__) \
                     AT_DISPATCH_CASE(a, __VA_ARGS__) AT_DISPATCH_CASE(b, __VA_ARGS__) AT_DISPATCH_CASE(c, __VA_ARGS__))
#define AT_DISPATCH_INDEX_TYPES(type, name, ...)                                           \
  AT_DISPATCH_SWITCH(type, name,                                                           \
                     AT_PRIVATE_CASE_TYPE_USING_HINT(::c10::ScalarType::Int, index_t, __VA_ARGS__)  \
                     AT_PRIVATE_CASE_TYPE_USING_HINT(::c10::ScalarType::Long, index_t, __VA_ARGS__))

namespace at {
// The type that sums are kept in, by the type of the elements.
template <class T, bool cuda> struct AccumulateType { using type = std::conditional_t<std::is_integral<T>::value && !std::is_same<T, bool>::value, int64_t, std::conditional_t<cuda || !std::is_same<T, float>::value, T, double>>; };
template <bool cuda> struct AccumulateType<Half, cuda> { using type = float; };
template <bool cuda> struct AccumulateType<BFloat16, cuda> { using type = float; };
template <class T, bool cuda> using acc_type = typename AccumulateType<T, cuda>::type;
template <class T> struct OpMathType { using type = T; };
template <> struct OpMathType<Half> { using type = float; };
template <> struct OpMathType<BFloat16> { using type = float; };
template <class T> using opmath_type = typename OpMathType<T>::type;
}  // namespace at
