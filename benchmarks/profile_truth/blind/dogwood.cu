// Integral images of 64 x 64 tiles: running sums along the rows, then down the columns.
#include "frame.h"

namespace {
constexpr int kSide = 64, kTiles = 20000;
float *images, *sums;

__global__ void __launch_bounds__(kSide) dogwood_copy(const float* __restrict__ in, float* __restrict__ out) {
    __shared__ float tile[kSide][kSide];
    const float* from = in + static_cast<size_t>(blockIdx.x) * kSide * kSide;
    float* to = out + static_cast<size_t>(blockIdx.x) * kSide * kSide;
    int mine = threadIdx.x;
#pragma unroll 16
    for (int row = 0; row < kSide; ++row) tile[row][mine] = from[row * kSide + mine];
    __syncthreads();
    float sum = 0.0f;
#pragma unroll 4
    for (int column = 0; column < kSide; ++column) {
        sum += tile[mine][column];
        tile[mine][column] = sum;
    }
    __syncthreads();
    sum = 0.0f;
#pragma unroll 8
    for (int row = 0; row < kSide; ++row) {
        sum += tile[row][mine];
        to[row * kSide + mine] = sum;
    }
}
}  // namespace

extern "C" int truth_prepare(void) {
    TRY(frame::take(&images, static_cast<size_t>(kTiles) * kSide * kSide));
    TRY(frame::take(&sums, static_cast<size_t>(kTiles) * kSide * kSide));
    return 0;
}

extern "C" int truth_run(void) {
    dogwood_copy<<<kTiles, kSide>>>(images, sums);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
