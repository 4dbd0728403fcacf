// For every query the sum of squares of its inner products with all keys; half precision in, fp32 sums.
#include <cuda_fp16.h>

#include "frame.h"

namespace {
constexpr int kDeep = 128, kQueries = 132 * 384, kKeys = 16384, kRows = 384, kTile = 128, kThreads = 384, kStages = 3;
constexpr int kRowBytes = kDeep * 2, kTileBytes = kTile * kRowBytes;
constexpr size_t kShared = kRows * kRowBytes + kStages * kTileBytes;
__half *queries, *keys;
float* energies;

// The matrix instruction is in sm_90a only; code for plain sm_90, should a compiler add it, must not run.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define IROKO_TRAPS
#else
constexpr int kGroupBytes = 8 * kRowBytes;

// Rows as groups of eight; in a group, 16-byte pieces of its rows lie side by side, as the matrix instruction reads them.
__device__ __forceinline__ void load(uint32_t to, const __half* from, int rows) {
    int warp = threadIdx.x / 32, row = threadIdx.x % 8, piece = threadIdx.x % 32 / 8;
    for (int unit = warp; unit < rows / 8 * 4; unit += kThreads / 32) {
        int group = unit / 4, column = unit % 4 * 4 + piece;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + group * kGroupBytes + column * 128 + row * 16),
                     "l"(from + (group * 8 + row) * kDeep + column * 8)
                     : "memory");
    }
}

// Start, distance along the depth (128 bytes), distance along the rows; no swizzle.
__device__ __forceinline__ uint64_t describe(uint32_t at) {
    return static_cast<uint64_t>((at & 0x3ffff) >> 4) | static_cast<uint64_t>(128 >> 4) << 16 |
           static_cast<uint64_t>(kGroupBytes >> 4) << 32;
}

__device__ __forceinline__ void product(float (&d)[64], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(add));
}
#endif

__global__ void __launch_bounds__(kThreads, 1) iroko_scan(const __half* __restrict__ query,
                                                         const __half* __restrict__ key, float* __restrict__ energy) {
#ifdef IROKO_TRAPS
    __trap();
#else
    extern __shared__ __align__(1024) unsigned char memory[];
    uint32_t mine = static_cast<uint32_t>(__cvta_generic_to_shared(memory)), stage = mine + kRows * kRowBytes;
    load(mine, query + static_cast<size_t>(blockIdx.x) * kRows * kDeep, kRows);
    load(stage, key, kTile);
    asm volatile("cp.async.commit_group;" ::: "memory");
    load(stage + kTileBytes, key + kTile * kDeep, kTile);
    asm volatile("cp.async.commit_group;" ::: "memory");
    uint32_t strip = mine + threadIdx.x / 128 * 16 * kGroupBytes;
    float sum[2][2] = {};
#pragma unroll 1
    for (int tile = 0; tile < kKeys / kTile; ++tile) {
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (tile + 2 < kKeys / kTile)
            load(stage + (tile + 2) % kStages * kTileBytes, key + static_cast<size_t>(tile + 2) * kTile * kDeep, kTile);
        asm volatile("cp.async.commit_group;" ::: "memory");
        uint32_t now = stage + tile % kStages * kTileBytes;
        float upper[64], lower[64];
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < kDeep / 16; ++k) {
            product(upper, describe(strip + k * 256), describe(now + k * 256), k);
            product(lower, describe(strip + 8 * kGroupBytes + k * 256), describe(now + k * 256), k);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (int k = 0; k < 64; ++k) {
            sum[0][k / 2 % 2] = fmaf(upper[k], upper[k], sum[0][k / 2 % 2]);
            sum[1][k / 2 % 2] = fmaf(lower[k], lower[k], sum[1][k / 2 % 2]);
        }
    }
    int row = blockIdx.x * kRows + threadIdx.x / 128 * 128 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        float all = sum[part / 2][part % 2];
        all += __shfl_xor_sync(~0u, all, 1);
        all += __shfl_xor_sync(~0u, all, 2);
        if (threadIdx.x % 4 == 0) energy[row + part / 2 * 64 + part % 2 * 8] = all;
    }
#endif
}
}  // namespace

extern "C" int truth_prepare(void) {
    frame::Dice dice{47};
    std::vector<__half> host(static_cast<size_t>(kQueries) * kDeep);
    for (__half& value : host) value = __float2half(dice.unit() - 0.5f);
    TRY(frame::upload(&queries, host));
    host.resize(static_cast<size_t>(kKeys) * kDeep);
    TRY(frame::upload(&keys, host));
    TRY(frame::take(&energies, kQueries));
    return cudaFuncSetAttribute(iroko_scan, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
}

extern "C" int truth_run(void) {
    iroko_scan<<<kQueries / kRows, kThreads, kShared>>>(queries, keys, energies);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
