// Transposes through a shared tile of 32 x 32 floats without padding: each column lies in one bank.
#include "truth.h"

static const int N = 8192;
static float *source, *target;

static __global__ void k_transpose_tile(const float* __restrict__ in, float* __restrict__ out) {
    __shared__ float tile[32][32];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) tile[threadIdx.y + j][threadIdx.x] = in[size_t(y + j) * N + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x;
    y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) out[size_t(y + j) * N + x] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" int truth_prepare(void) {
    int status = fill_zero((void**)&source, size_t(N) * N * sizeof(float));
    return status ? status : fill_zero((void**)&target, size_t(N) * N * sizeof(float));
}

extern "C" int truth_run(void) {
    k_transpose_tile<<<dim3(N / 32, N / 32), dim3(32, 8)>>>(source, target);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(source);
    cudaFree(target);
    return cudaGetLastError();
}
