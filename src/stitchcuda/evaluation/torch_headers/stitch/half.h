// c10::Half and c10::BFloat16: 16-bit storage that computes in float, on host and device.
#pragma once

#if defined(__CUDACC__) && defined(STITCH_WITH_HALF)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace stitch {

C10_HOST_DEVICE inline float bits_to_float(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
#endif
}
C10_HOST_DEVICE inline uint32_t float_to_bits(float f) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(f);
#else
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
#endif
}
C10_HOST_DEVICE inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
  if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent) return bits_to_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float small = float(mantissa) * 5.9604644775390625e-08f;  // 2^-24
  return sign ? -small : small;
}
// Round to nearest, ties to even.
C10_HOST_DEVICE inline uint16_t float_to_half(float f) {
  const uint32_t bits = float_to_bits(f), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // a subnormal half: let the adder round to multiples of 2^-24
    const float rounded = bits_to_float(magnitude) + 0.5f;
    return uint16_t(sign | (float_to_bits(rounded) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return uint16_t(sign | ((magnitude + 0xc8000fffu + odd) >> 13));
}
C10_HOST_DEVICE inline uint16_t float_to_bfloat16(float f) {
  const uint32_t bits = float_to_bits(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace stitch

namespace c10 {

struct alignas(2) Half {
  uint16_t x;
  struct from_bits_t {};
  static constexpr C10_HOST_DEVICE from_bits_t from_bits() { return from_bits_t(); }
  Half() = default;
  constexpr C10_HOST_DEVICE Half(uint16_t bits, from_bits_t) : x(bits) {}
#if defined(__CUDACC__) && defined(STITCH_WITH_HALF)
  C10_HOST_DEVICE Half(float v) : x(__half_as_ushort_any(__float2half_rn(v))) {}
  C10_HOST_DEVICE operator float() const { return __half2float(as_cuda()); }
  C10_HOST_DEVICE Half(const __half& v) : x(__half_as_ushort_any(v)) {}
  C10_HOST_DEVICE operator __half() const { return as_cuda(); }

 private:
  static C10_HOST_DEVICE uint16_t __half_as_ushort_any(__half v) { return static_cast<__half_raw>(v).x; }
  C10_HOST_DEVICE __half as_cuda() const {
    __half_raw raw;
    raw.x = x;
    return __half(raw);
  }
#else
  C10_HOST_DEVICE Half(float v) : x(stitch::float_to_half(v)) {}
  C10_HOST_DEVICE operator float() const { return stitch::half_to_float(x); }
#endif
};

struct alignas(2) BFloat16 {
  uint16_t x;
  struct from_bits_t {};
  static constexpr C10_HOST_DEVICE from_bits_t from_bits() { return from_bits_t(); }
  BFloat16() = default;
  constexpr C10_HOST_DEVICE BFloat16(unsigned short bits, from_bits_t) : x(bits) {}
  C10_HOST_DEVICE BFloat16(float v) : x(stitch::float_to_bfloat16(v)) {}
  C10_HOST_DEVICE operator float() const { return stitch::bits_to_float(uint32_t(x) << 16); }
#if defined(__CUDACC__) && defined(STITCH_WITH_HALF)
  C10_HOST_DEVICE explicit BFloat16(const __nv_bfloat16& v) : x(static_cast<__nv_bfloat16_raw>(v).x) {}
  C10_HOST_DEVICE explicit operator __nv_bfloat16() const {
    __nv_bfloat16_raw raw;
    raw.x = x;
    return __nv_bfloat16(raw);
  }
#endif
};

#define STITCH_ARITHMETIC(T)                                                                    \
  C10_HOST_DEVICE inline T operator+(const T& a, const T& b) { return T(float(a) + float(b)); } \
  C10_HOST_DEVICE inline T operator-(const T& a, const T& b) { return T(float(a) - float(b)); } \
  C10_HOST_DEVICE inline T operator*(const T& a, const T& b) { return T(float(a) * float(b)); } \
  C10_HOST_DEVICE inline T operator/(const T& a, const T& b) { return T(float(a) / float(b)); } \
  C10_HOST_DEVICE inline T operator-(const T& a) { return T(-float(a)); }                       \
  C10_HOST_DEVICE inline T& operator+=(T& a, const T& b) { return a = a + b; }                  \
  C10_HOST_DEVICE inline T& operator-=(T& a, const T& b) { return a = a - b; }                  \
  C10_HOST_DEVICE inline T& operator*=(T& a, const T& b) { return a = a * b; }                  \
  C10_HOST_DEVICE inline T& operator/=(T& a, const T& b) { return a = a / b; }                  \
  STITCH_MIXED(T, float)                                                                        \
  STITCH_MIXED(T, double)                                                                       \
  C10_HOST_DEVICE inline T operator+(T a, int b) { return a + T(float(b)); }                    \
  C10_HOST_DEVICE inline T operator-(T a, int b) { return a - T(float(b)); }                    \
  C10_HOST_DEVICE inline T operator*(T a, int b) { return a * T(float(b)); }                    \
  C10_HOST_DEVICE inline T operator/(T a, int b) { return a / T(float(b)); }                    \
  C10_HOST_DEVICE inline T operator+(int a, T b) { return T(float(a)) + b; }                    \
  C10_HOST_DEVICE inline T operator-(int a, T b) { return T(float(a)) - b; }                    \
  C10_HOST_DEVICE inline T operator*(int a, T b) { return T(float(a)) * b; }                    \
  C10_HOST_DEVICE inline T operator/(int a, T b) { return T(float(a)) / b; }                    \
  C10_HOST_DEVICE inline T operator+(T a, int64_t b) { return a + T(float(b)); }                \
  C10_HOST_DEVICE inline T operator-(T a, int64_t b) { return a - T(float(b)); }                \
  C10_HOST_DEVICE inline T operator*(T a, int64_t b) { return a * T(float(b)); }                \
  C10_HOST_DEVICE inline T operator/(T a, int64_t b) { return a / T(float(b)); }
#define STITCH_MIXED(T, F)                                                \
  C10_HOST_DEVICE inline F operator+(T a, F b) { return F(float(a)) + b; } \
  C10_HOST_DEVICE inline F operator-(T a, F b) { return F(float(a)) - b; } \
  C10_HOST_DEVICE inline F operator*(T a, F b) { return F(float(a)) * b; } \
  C10_HOST_DEVICE inline F operator/(T a, F b) { return F(float(a)) / b; } \
  C10_HOST_DEVICE inline F operator+(F a, T b) { return a + F(float(b)); } \
  C10_HOST_DEVICE inline F operator-(F a, T b) { return a - F(float(b)); } \
  C10_HOST_DEVICE inline F operator*(F a, T b) { return a * F(float(b)); } \
  C10_HOST_DEVICE inline F operator/(F a, T b) { return a / F(float(b)); }
STITCH_ARITHMETIC(Half)
STITCH_ARITHMETIC(BFloat16)
C10_HOST_DEVICE inline float& operator+=(float& a, const Half& b) { return a += float(b); }
C10_HOST_DEVICE inline float& operator+=(float& a, const BFloat16& b) { return a += float(b); }
#undef STITCH_ARITHMETIC
#undef STITCH_MIXED

}  // namespace c10

namespace std {
template <> class numeric_limits<c10::Half> {
 public:
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;
  static constexpr bool has_infinity = true, has_quiet_NaN = true;
  static constexpr int digits = 11, digits10 = 3, radix = 2;
  static constexpr c10::Half min() { return c10::Half(0x0400, c10::Half::from_bits()); }
  static constexpr c10::Half lowest() { return c10::Half(0xFBFF, c10::Half::from_bits()); }
  static constexpr c10::Half max() { return c10::Half(0x7BFF, c10::Half::from_bits()); }
  static constexpr c10::Half epsilon() { return c10::Half(0x1400, c10::Half::from_bits()); }
  static constexpr c10::Half infinity() { return c10::Half(0x7C00, c10::Half::from_bits()); }
  static constexpr c10::Half quiet_NaN() { return c10::Half(0x7E00, c10::Half::from_bits()); }
};
template <> class numeric_limits<c10::BFloat16> {
 public:
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;
  static constexpr bool has_infinity = true, has_quiet_NaN = true;
  static constexpr int digits = 8, digits10 = 2, radix = 2;
  static constexpr c10::BFloat16 min() { return c10::BFloat16(0x0080, c10::BFloat16::from_bits()); }
  static constexpr c10::BFloat16 lowest() { return c10::BFloat16(0xFF7F, c10::BFloat16::from_bits()); }
  static constexpr c10::BFloat16 max() { return c10::BFloat16(0x7F7F, c10::BFloat16::from_bits()); }
  static constexpr c10::BFloat16 epsilon() { return c10::BFloat16(0x3C00, c10::BFloat16::from_bits()); }
  static constexpr c10::BFloat16 infinity() { return c10::BFloat16(0x7F80, c10::BFloat16::from_bits()); }
  static constexpr c10::BFloat16 quiet_NaN() { return c10::BFloat16(0x7FC0, c10::BFloat16::from_bits()); }
};
}  // namespace std
