// The same walk with one block of 16 warps a multiprocessor and room for more: loads follow one another.
#include "truth.h"

static const size_t ROWS = size_t(1) << 20;
static unsigned* table;
static float* target;

static __global__ void k_chase_fill(unsigned* rows) {
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    rows[i] = unsigned((i / 32 * 1103515245ull + 12345) % ROWS);
}

static __global__ void k_chase_list(const unsigned* rows, float* out, int rounds) {
    unsigned row = (blockIdx.x * 16 + threadIdx.x / 32) * 977 % ROWS;
    float sum = 0;
    for (int r = 0; r < rounds; ++r) {
        unsigned next = rows[size_t(row) * 32 + threadIdx.x % 32];
        sum += next * 1e-9f;
        row = next;
    }
    out[size_t(blockIdx.x) * blockDim.x + threadIdx.x] = sum;
}

extern "C" int truth_prepare(void) {
    int status = fill_zero((void**)&table, ROWS * 32 * sizeof(unsigned));
    if (!status) status = fill_zero((void**)&target, size_t(SMS) * 512 * sizeof(float));
    if (status) return status;
    k_chase_fill<<<ROWS * 32 / 256, 256>>>(table);
    return cudaDeviceSynchronize();
}

extern "C" int truth_run(void) {
    k_chase_list<<<SMS, 512>>>(table, target, 400);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(table);
    cudaFree(target);
    return cudaGetLastError();
}
