// What the cases of this folder share: allocation, errors, the three functions of a case's plain C interface.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

static const int SMS = 132;  // of the H200 that the sizes are chosen for

static inline int fill_zero(void** buffer, size_t bytes) {
    cudaError_t status = cudaMalloc(buffer, bytes);
    if (status == cudaSuccess) status = cudaMemset(*buffer, 0, bytes);
    return status;
}

