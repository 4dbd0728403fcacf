// float16 for the emulator, by the host compiler's own type.
#pragma once
#include <cstdint>
#include <cstring>

struct __half { uint16_t bits; };

inline __half __float2half_rn(float value) {
  const _Float16 rounded = (_Float16)value;
  __half result;
  std::memcpy(&result.bits, &rounded, 2);
  return result;
}
inline float __half2float(__half value) {
  _Float16 wide;
  std::memcpy(&wide, &value.bits, 2);
  return (float)wide;
}
inline uint16_t __half_as_ushort(__half value) { return value.bits; }
