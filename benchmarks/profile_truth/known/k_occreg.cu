// Row after row of a table, each row naming the next, with 192 values of each thread in registers.
#include "truth.h"

static const size_t ROWS = size_t(1) << 20;
static unsigned* table;
static float* target;

static __global__ void k_occreg_fill(unsigned* rows) {
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    rows[i] = unsigned((i / 32 * 1103515245ull + 12345) % ROWS);
}

static __global__ void __launch_bounds__(256, 1) k_occreg_walk(const unsigned* rows, float* out, int rounds) {
    float held[192];
#pragma unroll
    for (int j = 0; j < 192; ++j) held[j] = threadIdx.x * 0.5f + j;
    unsigned row = (blockIdx.x * 8 + threadIdx.x / 32) * 977 % ROWS;
    for (int r = 0; r < rounds; ++r) {
#pragma unroll
        for (int part = 0; part < 12; ++part) {
            unsigned next = rows[size_t(row) * 32 + threadIdx.x % 32];
            float factor = next * 1e-9f;
#pragma unroll
            for (int j = 0; j < 16; ++j) held[part * 16 + j] = fmaf(held[part * 16 + j], factor, 1.0f);
            row = next;
        }
    }
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 192; ++j) sum += held[j];
    out[size_t(blockIdx.x) * blockDim.x + threadIdx.x] = sum;
}

extern "C" int truth_prepare(void) {
    int status = fill_zero((void**)&table, ROWS * 32 * sizeof(unsigned));
    if (!status) status = fill_zero((void**)&target, size_t(SMS * 8) * 256 * sizeof(float));
    if (status) return status;
    k_occreg_fill<<<ROWS * 32 / 256, 256>>>(table);
    return cudaDeviceSynchronize();
}

extern "C" int truth_run(void) {
    k_occreg_walk<<<SMS * 8, 256>>>(table, target, 8);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(table);
    cudaFree(target);
    return cudaGetLastError();
}
