// A proof of work: many rounds of add, rotate and exclusive-or on a counter, folded to one word.
#include "frame.h"

namespace {
constexpr int kCounters = 1024 * 1024, kRounds = 160;
unsigned* folds;

__device__ __forceinline__ unsigned turn(unsigned value, int bits) { return __funnelshift_l(value, value, bits); }

__device__ __forceinline__ void quarter(unsigned& a, unsigned& b, unsigned& c, unsigned& d) {
    a += b;
    d = turn(d ^ a, 15);
    c += d;
    b = turn(b ^ c, 11);
    a += b;
    d = turn(d ^ a, 9);
    c += d;
    b = turn(b ^ c, 7);
}

__global__ void __launch_bounds__(256) rowan_exp(unsigned* __restrict__ out, unsigned nonce) {
    unsigned i = blockIdx.x * 256 + threadIdx.x, s[16];
#pragma unroll
    for (int k = 0; k < 16; ++k) s[k] = (i ^ nonce) + 0x9e3779b9u * k;
#pragma unroll 1
    for (int round = 0; round < kRounds; round += 2) {
        quarter(s[0], s[4], s[8], s[12]);
        quarter(s[1], s[5], s[9], s[13]);
        quarter(s[2], s[6], s[10], s[14]);
        quarter(s[3], s[7], s[11], s[15]);
        quarter(s[0], s[5], s[10], s[15]);
        quarter(s[1], s[6], s[11], s[12]);
        quarter(s[2], s[7], s[8], s[13]);
        quarter(s[3], s[4], s[9], s[14]);
    }
    unsigned fold = 0;
#pragma unroll
    for (int k = 0; k < 16; ++k) fold ^= s[k];
    out[i] = fold;
}
}  // namespace

extern "C" int truth_prepare(void) {
    TRY(frame::take(&folds, kCounters));
    return 0;
}

extern "C" int truth_run(void) {
    rowan_exp<<<kCounters / 256, 256>>>(folds, 20240229u);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
