#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

// Scalar functions that the compiler turns into vector code without -ffast-math: no branches, no library
// calls, a few ulp from the exact value over the whole range, NaN and infinity as in IEEE arithmetic.
namespace own {

template <class To, class From>
static inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  return __builtin_bit_cast(To, from);
}

// 2 to the power of n for n from -126 to 127; some number for others. Shifts are unsigned, since those of negative
// numbers are not defined.
static inline float power_of_two(int32_t n) { return bits<float>(static_cast<uint32_t>(n + 127) << 23); }

static inline float exp(float x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer kept in the low bits
  const float y = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
  const float t = y * 1.44269504f + magic;
  const float n = t - magic;
  const float r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
  float q = 1.395080704e-03f;
  q = q * r + 8.369073272e-03f;
  q = q * r + 4.166620225e-02f;
  q = q * r + 1.666651666e-01f;
  q = q * r + 5.000000000e-01f;
  const float e = 1.0f + (r + r * r * q);
  const int32_t i = bits<int32_t>(t) - bits<int32_t>(magic);
  const int32_t h = i >> 1;
  return e * power_of_two(h) * power_of_two(i - h);
}

static inline float log(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const float scaled = tiny ? x * 8388608.0f : x;
  const uint32_t raw = bits<uint32_t>(scaled);
  const uint32_t shifted = raw - 0x3f3504f3u;  // sqrt(1/2), so that the mantissa lies in [sqrt(1/2), sqrt(2))
  const int32_t exponent = static_cast<int32_t>(shifted) >> 23;
  const float f = bits<float>(raw - (static_cast<uint32_t>(exponent) << 23)) - 1.0f;
  float q = 6.915149093e-02f;
  q = q * f + -1.178968549e-01f;
  q = q * f + 1.187300980e-01f;
  q = q * f + -1.238437146e-01f;
  q = q * f + 1.421865672e-01f;
  q = q * f + -1.666924953e-01f;
  q = q * f + 2.000222653e-01f;
  q = q * f + -2.499998659e-01f;
  q = q * f + 3.333331048e-01f;
  const float k = static_cast<float>(exponent) - (tiny ? 23.0f : 0.0f);
  const float z = f * f;
  float r = k * -2.12194440e-4f + f * z * q;
  r = r - 0.5f * z;
  r = k * 0.693359375f + (f + r);
  r = x == 0.0f ? -std::numeric_limits<float>::infinity() : r;
  r = x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : r;
  return x > 3.40282347e+38f || x != x ? x : r;
}

static inline float log1p(float x) {
  const float u = 1.0f + x;
  const float d = u - 1.0f;
  const float r = own::log(u) * (x / (d == 0.0f ? 1.0f : d));
  return d == 0.0f || x > 3.40282347e+38f ? x : r;
}

static inline float tanh(float x) {
  const float a = x < 0.0f ? -x : x;
  const float z = x * x;
  float q = 2.064664150e-03f;
  q = q * z + -8.091966622e-03f;
  q = q * z + 2.166634612e-02f;
  q = q * z + -5.394056439e-02f;
  q = q * z + 1.333315820e-01f;
  q = q * z + -3.333332837e-01f;
  const float near = x + x * (z * q);
  const float far = 1.0f - 2.0f / (own::exp(2.0f * a) + 1.0f);
  return a < 0.625f ? near : (x < 0.0f ? -far : far);
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + own::exp(-x)); }

static inline float erf(float x) {
  const float a = x < 0.0f ? -x : x;
  const float z = x * x;
  float q = -9.680135008e-06f;
  q = q * z + 1.127054420e-04f;
  q = q * z + -8.484711288e-04f;
  q = q * z + 5.221074913e-03f;
  q = q * z + -2.686544508e-02f;
  q = q * z + 1.128378287e-01f;
  q = q * z + -3.761263788e-01f;
  q = q * z + 1.283791671e-01f;
  const float near = x + x * q;
  const float b = a > 4.0f ? 4.0f : a;
  float t = -1.971826277e-04f;
  t = t * b + 3.055615583e-03f;
  t = t * b + -2.227711678e-02f;
  t = t * b + 1.040374190e-01f;
  t = t * b + 6.370596886e-01f;
  t = t * b + 1.127749562e+00f;
  t = t * b + 1.774872508e-04f;
  const float far = 1.0f - own::exp(-t);
  return a < 0.95f ? near : (x < 0.0f ? -far : far);
}

static inline float sqrt(float x) { return __builtin_sqrtf(x); }
static inline double sqrt(double x) { return __builtin_sqrt(x); }
static inline float floor(float x) { return __builtin_floorf(x); }
static inline double floor(double x) { return __builtin_floor(x); }
static inline float ceil(float x) { return __builtin_ceilf(x); }
static inline double ceil(double x) { return __builtin_ceil(x); }
static inline float trunc(float x) { return __builtin_truncf(x); }
static inline double trunc(double x) { return __builtin_trunc(x); }
static inline float rint(float x) { return __builtin_rintf(x); }
static inline double rint(double x) { return __builtin_rint(x); }
static inline double exp(double x) { return std::exp(x); }
static inline double log(double x) { return std::log(x); }
static inline double log1p(double x) { return std::log1p(x); }
static inline double tanh(double x) { return std::tanh(x); }
static inline double erf(double x) { return std::erf(x); }
static inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
template <class T> static inline T pow(T x, T y) { return std::pow(x, y); }
template <class T> static inline T sin(T x) { return std::sin(x); }
template <class T> static inline T cos(T x) { return std::cos(x); }
template <class T> static inline T expm1(T x) { return std::expm1(x); }

// Narrow floating types: kept as bits in memory, computed in float.
struct bfloat16 { uint16_t raw; };
struct float16 { uint16_t raw; };

static inline float load(float x) { return x; }
static inline double load(double x) { return x; }
static inline int64_t load(int64_t x) { return x; }
static inline int32_t load(int32_t x) { return x; }
static inline int32_t load(int16_t x) { return x; }
static inline int32_t load(int8_t x) { return x; }
static inline int32_t load(uint8_t x) { return x; }
static inline bool load(bool x) { return x; }
static inline float load(bfloat16 x) { return bits<float>(static_cast<uint32_t>(x.raw) << 16); }
static inline float load(float16 x) {
  _Float16 value = bits<_Float16>(x.raw);
  return static_cast<float>(value);
}

template <class T, class V> static inline T store(V value) { return static_cast<T>(value); }
template <> inline bfloat16 store<bfloat16, float>(float value) {
  const uint32_t raw = bits<uint32_t>(value);
  const uint32_t rounded = (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16;
  return bfloat16{static_cast<uint16_t>(value != value ? 0x7fc0u : rounded)};
}
template <> inline float16 store<float16, float>(float value) {
  return float16{bits<uint16_t>(static_cast<_Float16>(value))};
}

}  // namespace own
