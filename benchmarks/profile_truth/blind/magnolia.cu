// Each thread sorts 64 values by Batcher's network.
#include "frame.h"

namespace {
constexpr int kEach = 64, kThreads = 256, kLists = 512 * 1024;
float *unsorted, *sorted;

// Layers of the network from distance kStep of merges of kHalf values on.
template <int kHalf, int kStep>
__device__ __forceinline__ void merge(float (&v)[kEach]) {
#pragma unroll
    for (int a = 0; a < kEach - kStep; ++a) {
        int b = a + kStep, from = a - kStep % kHalf;
        if (from >= 0 && from / kStep % 2 == 0 && a / (2 * kHalf) == b / (2 * kHalf)) {
            float low = fminf(v[a], v[b]), high = fmaxf(v[a], v[b]);
            v[a] = low;
            v[b] = high;
        }
    }
    if constexpr (kStep > 1) {
        merge<kHalf, kStep / 2>(v);
    } else if constexpr (2 * kHalf < kEach) {
        merge<2 * kHalf, 2 * kHalf>(v);
    }
}

__global__ void __launch_bounds__(kThreads, 8) magnolia_shared(const float* __restrict__ in, float* __restrict__ out) {
    int list = blockIdx.x * kThreads + threadIdx.x;
    float v[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) v[k] = in[k * kLists + list];
    merge<1, 1>(v);
#pragma unroll
    for (int k = 0; k < kEach; ++k) out[k * kLists + list] = v[k];
}
}  // namespace

extern "C" int truth_prepare(void) {
    std::vector<float> host(static_cast<size_t>(kEach) * kLists);
    frame::Dice dice{17};
    for (float& value : host) value = dice.unit();
    TRY(frame::upload(&unsorted, host));
    TRY(frame::take(&sorted, host.size()));
    return 0;
}

extern "C" int truth_run(void) {
    magnolia_shared<<<kLists / kThreads, kThreads>>>(unsorted, sorted);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
