// Histograms of 216 bins, one private column a thread, joined at the end of a block.
#include "frame.h"

namespace {
constexpr int kBins = 216, kThreads = 128, kBlocks = 132 * 2 * 2, kSteps = 600;
constexpr size_t kShared = sizeof(unsigned) * kBins * kThreads;
uint2* samples;
unsigned* counts;

__global__ void __launch_bounds__(kThreads) hazel_spill(const uint2* __restrict__ in, unsigned* __restrict__ out) {
    extern __shared__ unsigned column[];
    unsigned* mine = column + threadIdx.x;
    for (int bin = 0; bin < kBins; ++bin) mine[bin * kThreads] = 0;
    const uint2* from = in + static_cast<size_t>(blockIdx.x) * kThreads * kSteps + threadIdx.x;
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
        uint2 pair = from[step * kThreads];
        ++mine[(pair.x >> 24) % kBins * kThreads];
        ++mine[(pair.y >> 24) % kBins * kThreads];
    }
    __syncthreads();
    for (int bin = threadIdx.x / 32; bin < kBins; bin += kThreads / 32) {
        unsigned sum = 0;
        for (int k = threadIdx.x % 32; k < kThreads; k += 32) sum += column[bin * kThreads + k];
        sum = __reduce_add_sync(~0u, sum);
        if (threadIdx.x % 32 == 0) out[blockIdx.x * kBins + bin] = sum;
    }
}
}  // namespace

extern "C" int truth_prepare(void) {
    std::vector<uint2> host(static_cast<size_t>(kBlocks) * kThreads * kSteps);
    frame::Dice dice{11};
    for (uint2& pair : host) pair = make_uint2(dice.next(), dice.next());
    TRY(frame::upload(&samples, host));
    TRY(frame::take(&counts, kBlocks * kBins));
    return cudaFuncSetAttribute(hazel_spill, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
}

extern "C" int truth_run(void) {
    hazel_spill<<<kBlocks, kThreads, kShared>>>(samples, counts);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
