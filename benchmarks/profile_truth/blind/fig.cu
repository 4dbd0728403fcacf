// Sampling on the host: numbers drawn and sorted for every round, a few numbers to the device, a short kernel.
#include <algorithm>

#include "frame.h"

namespace {
constexpr int kItems = 100000, kPicked = 1024, kRounds = 6;
std::vector<unsigned> order;
unsigned* staged;
unsigned* picked;
float *table, *chosen;

__global__ void fig_pick(const unsigned* index, const float* from, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = from[index[i] % kItems];
}
}  // namespace

extern "C" int truth_prepare(void) {
    order.resize(kItems);
    TRY(frame::take(&picked, kPicked));
    TRY(frame::take(&table, kItems));
    TRY(frame::take(&chosen, kPicked));
    return cudaMallocHost(reinterpret_cast<void**>(&staged), kPicked * sizeof(unsigned));
}

extern "C" int truth_run(void) {
    frame::Dice dice{43};
    for (int round = 0; round < kRounds; ++round) {
        for (int i = 0; i < kItems; ++i) order[i] = dice.next();
        std::sort(order.begin(), order.end());
        for (int i = 0; i < kPicked; ++i) staged[i] = order[i * (kItems / kPicked)];
        TRY(cudaMemcpyAsync(picked, staged, kPicked * sizeof(unsigned), cudaMemcpyHostToDevice));
        fig_pick<<<kPicked / 256, 256>>>(picked, table, chosen);
        TRY(cudaStreamSynchronize(nullptr));
    }
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaError_t error = cudaFreeHost(staged);
    int other = frame::give_back();
    return error != cudaSuccess ? error : other;
}
