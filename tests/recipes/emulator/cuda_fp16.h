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
struct HalfTable {
  float values[65536];
  HalfTable() {
    for (unsigned i = 0; i < 65536; ++i) {
      const uint16_t bits = (uint16_t)i;
      _Float16 value;
      std::memcpy(&value, &bits, 2);
      values[i] = (float)value;
    }
  }
};
inline const HalfTable half_table;
inline float __half2float(__half value) { return half_table.values[value.bits]; }
inline uint16_t __half_as_ushort(__half value) { return value.bits; }
