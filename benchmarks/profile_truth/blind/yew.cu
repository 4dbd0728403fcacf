// Steps of the Collatz sequence of each number, as many as its own limit says.
#include "frame.h"

namespace {
constexpr int kNumbers = 132 * 2048 * 2;
unsigned *limits, *steps;

__global__ void __launch_bounds__(256) yew_occupancy(const unsigned* __restrict__ limit, unsigned* __restrict__ out) {
    unsigned i = blockIdx.x * 256 + threadIdx.x, value = i | 1u, most = limit[i], odd = 0;
#pragma unroll 1
    for (unsigned step = 0; step < most; ++step) {
        unsigned low = value & 1u;
        odd += low;
        value = low ? 3u * value + 1u : (value >> 1) + (odd << 20);
    }
    out[i] = odd ^ value;
}
}  // namespace

extern "C" int truth_prepare(void) {
    std::vector<unsigned> host(kNumbers);
    frame::Dice dice{41};
    // One number of each 32, anywhere among them, goes on for long.
    for (int i = 0; i < kNumbers; i += 32) {
        for (int k = 0; k < 32; ++k) host[i + k] = 4 + dice.next() % 8;
        host[i + dice.next() % 32] = 6000;
    }
    TRY(frame::upload(&limits, host));
    TRY(frame::take(&steps, kNumbers));
    return 0;
}

extern "C" int truth_run(void) {
    yew_occupancy<<<kNumbers / 256, 256>>>(limits, steps);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
