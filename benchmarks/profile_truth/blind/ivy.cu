// Softmax over 32 classes, one block a row.
#include "frame.h"

namespace {
constexpr int kRows = 2 * 1024 * 1024;
float *scores, *chances;

__global__ void ivy_imbalance(const float* __restrict__ in, float* __restrict__ out) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    float value = in[at], most = value;
    for (int step = 16; step; step >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    value = __expf(value - most);
    float sum = value;
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    out[at] = __fdividef(value, sum);
}
}  // namespace

extern "C" int truth_prepare(void) {
    TRY(frame::take(&scores, static_cast<size_t>(kRows) * 32));
    TRY(frame::take(&chances, static_cast<size_t>(kRows) * 32));
    return 0;
}

extern "C" int truth_run(void) {
    ivy_imbalance<<<kRows, 32>>>(scores, chances);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
