// Device memory of one case: taken in truth_prepare, given back in truth_release. Holds nothing about what a case does.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace frame {

static std::vector<void*> held;

// Allocate `count` items and set every byte; 0x3c repeated reads as the float 0.0115.
template <typename T>
static cudaError_t take(T** out, size_t count, int byte = 0x3c) {
    cudaError_t error = cudaMalloc(reinterpret_cast<void**>(out), count * sizeof(T));
    if (error != cudaSuccess) return error;
    held.push_back(*out);
    return cudaMemset(*out, byte, count * sizeof(T));
}

// Allocate what `values` needs and copy it there.
template <typename T>
static cudaError_t upload(T** out, const std::vector<T>& values) {
    cudaError_t error = take(out, values.size());
    return error != cudaSuccess ? error
                                : cudaMemcpy(*out, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
}

static int give_back() {
    cudaError_t first = cudaSuccess;
    for (void* pointer : held) {
        cudaError_t error = cudaFree(pointer);
        if (first == cudaSuccess) first = error;
    }
    held.clear();
    return first;
}

// The same numbers in every process.
struct Dice {
    uint32_t state;
    uint32_t next() {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        return state;
    }
    float unit() { return static_cast<float>(next() >> 8) * (1.0f / 16777216.0f); }
};

}  // namespace frame

#define TRY(call)                                   \
    do {                                            \
        cudaError_t try_error = (call);             \
        if (try_error != cudaSuccess) return try_error; \
    } while (0)
