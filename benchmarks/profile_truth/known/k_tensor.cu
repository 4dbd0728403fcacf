// Products of 16 x 16 x 16 fp16 fragments held in registers, eight independent accumulators a warp.
#include "truth.h"

#include <mma.h>
using namespace nvcuda;

static half* operands;
static float* target;

static __global__ void k_tensor_tiles(const half* in, float* out, int rounds) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a[2];
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b[4];
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c[2][4];
    for (int i = 0; i < 2; ++i) wmma::load_matrix_sync(a[i], in + i * 256, 16);
    for (int j = 0; j < 4; ++j) wmma::load_matrix_sync(b[j], in + (2 + j) * 256, 16);
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j) wmma::fill_fragment(c[i][j], 0.0f);
    for (int r = 0; r < rounds; ++r)
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) wmma::mma_sync(c[i][j], a[i], b[j], c[i][j]);
    float* mine = out + (size_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32) * 256;
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j)
            for (int e = 0; e < c[i][j].num_elements; ++e) c[0][0].x[e] += i + j ? c[i][j].x[e] : 0.0f;
    wmma::store_matrix_sync(mine, c[0][0], 16, wmma::mem_row_major);
}

extern "C" int truth_prepare(void) {
    int status = fill_zero((void**)&operands, 6 * 256 * sizeof(half));
    return status ? status : fill_zero((void**)&target, size_t(SMS) * 4 * 8 * 256 * sizeof(float));
}

extern "C" int truth_run(void) {
    k_tensor_tiles<<<SMS * 4, 256>>>(operands, target, 2048);
    return cudaGetLastError();
}

extern "C" int truth_release(void) {
    cudaFree(operands);
    cudaFree(target);
    return cudaGetLastError();
}
