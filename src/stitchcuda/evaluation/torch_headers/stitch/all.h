// Everything but the binding to Python, under the names at::, c10:: and torch::.
#pragma once

#include "dispatch.h"
#include "ops.h"

#if defined(STITCH_CUDA)
#include "cuda.h"
#endif

namespace at {
constexpr ScalarType kUInt8 = kByte, kInt16 = kShort, kInt32 = kInt, kInt64 = kLong;
constexpr ScalarType kFloat16 = kHalf, kFloat32 = kFloat, kFloat64 = kDouble;
}  // namespace at
namespace torch {
using namespace at;
using Dtype = at::ScalarType;
}  // namespace torch
