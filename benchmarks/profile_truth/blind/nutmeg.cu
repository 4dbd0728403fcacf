// Walks through a chain of records of 31 numbers and the index of the next record, one walk a warp.
#include "frame.h"

namespace {
constexpr uint32_t kRecords = 1u << 20;
constexpr int kBlocks = 132 * 2, kThreads = 256, kSteps = 768;
unsigned *records, *ends;

__global__ void __launch_bounds__(kThreads) nutmeg_fft(const unsigned* __restrict__ in, unsigned* __restrict__ out) {
    unsigned lane = threadIdx.x % 32, walk = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
    unsigned at = walk * 2654435761u % kRecords, sum = 0;
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
        unsigned value = in[at * 32 + lane];
        sum ^= value;
        at = __shfl_sync(~0u, value, 31);
    }
    out[walk * 32 + lane] = sum;
}
}  // namespace

extern "C" int truth_prepare(void) {
    std::vector<unsigned> host(static_cast<size_t>(kRecords) * 32);
    frame::Dice dice{19};
    for (unsigned& value : host) value = dice.next();
    // One cycle through all records: a full-period linear congruence.
    for (uint32_t r = 0; r < kRecords; ++r) host[r * 32 + 31] = (r * 1664525u + 1013904223u) % kRecords;
    TRY(frame::upload(&records, host));
    TRY(frame::take(&ends, kBlocks * kThreads));
    return 0;
}

extern "C" int truth_run(void) {
    nutmeg_fft<<<kBlocks, kThreads>>>(records, ends);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
