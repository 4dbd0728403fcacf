// One step of AdamW over sixteen million parameters.
#include "frame.h"

namespace {
constexpr int kQuads = 4 * 1024 * 1024;
float4 *weights, *grads, *first, *second;

__device__ void step(float& w, float g, float& m, float& v) {
    m = 0.9f * m + 0.1f * g;
    v = 0.999f * v + 0.001f * g * g;
    w = w * 0.9999f - 1e-4f * m * __frsqrt_rn(v + 1e-8f);
}

__global__ void __launch_bounds__(256) aspen_update(float4* __restrict__ w, const float4* __restrict__ g,
                                                    float4* __restrict__ m, float4* __restrict__ v, int count) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= count) return;
    float4 weight = w[i], grad = g[i], mean = m[i], square = v[i];
    step(weight.x, grad.x, mean.x, square.x);
    step(weight.y, grad.y, mean.y, square.y);
    step(weight.z, grad.z, mean.z, square.z);
    step(weight.w, grad.w, mean.w, square.w);
    w[i] = weight;
    m[i] = mean;
    v[i] = square;
}
}  // namespace

extern "C" int truth_prepare(void) {
    TRY(frame::take(&weights, kQuads));
    TRY(frame::take(&grads, kQuads));
    TRY(frame::take(&first, kQuads));
    TRY(frame::take(&second, kQuads));
    return 0;
}

extern "C" int truth_run(void) {
    aspen_update<<<kQuads / 256, 256>>>(weights, grads, first, second, kQuads);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
