// A relaxation whose damping is found anew for every sweep, by one warp from the first value, and used by all.
#include "frame.h"

namespace {
constexpr int kBlocks = 132 * 2 * 4, kThreads = 1024, kSweeps = 400, kNewton = 12;
float* field;

__global__ void __launch_bounds__(kThreads, 2) poplar_pipe(float* values) {
    __shared__ float damping;
    float value = values[blockIdx.x * kThreads + threadIdx.x];
#pragma unroll 1
    for (int sweep = 0; sweep < kSweeps; ++sweep) {
        if (threadIdx.x < 32) {
            float root = 1.0f, target = 1.0f + fabsf(value);
#pragma unroll
            for (int k = 0; k < kNewton; ++k) root = 0.5f * (root + __fdividef(target, root));
            if (threadIdx.x == 0) damping = 1.0f / root;
        }
        __syncthreads();
        value = fmaf(value, damping, 0.001f);
        __syncthreads();
    }
    values[blockIdx.x * kThreads + threadIdx.x] = value;
}
}  // namespace

extern "C" int truth_prepare(void) {
    TRY(frame::take(&field, kBlocks * kThreads));
    return 0;
}

extern "C" int truth_run(void) {
    poplar_pipe<<<kBlocks, kThreads>>>(field);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
