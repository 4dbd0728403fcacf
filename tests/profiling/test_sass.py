"""Techniques are found in the machine code of real kernels, compiled here, and only where they are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stitchcuda.errors import ProfilerError, ToolMissing
from stitchcuda.evaluation.build_tools import find_nvcc
from stitchcuda.evaluation.jail import jail
from stitchcuda.profiling.sass import KernelSass, bare_name, find_cuobjdump, parse, precision, read, unproven

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <mma.h>
using namespace nvcuda;
template <typename T, typename U, int K> __device__ void product(const T* a, U* c) {
    wmma::fragment<wmma::matrix_a, 16, 16, K, T, wmma::row_major> x;
    wmma::fragment<wmma::matrix_b, 16, 16, K, T, wmma::col_major> y;
    wmma::fragment<wmma::accumulator, 16, 16, K, U> z;
    wmma::fill_fragment(z, U(0));
    wmma::load_matrix_sync(x, a, 16);
    wmma::load_matrix_sync(y, a + 256, 16);
    wmma::mma_sync(z, x, y, z);
    wmma::store_matrix_sync(c, z, 16, wmma::mem_row_major);
}
extern "C" {
__global__ void half_product(const half* a, float* c) { product<half, float, 16>(a, c); }
__global__ void bfloat_product(const __nv_bfloat16* a, float* c) { product<__nv_bfloat16, float, 16>(a, c); }
__global__ void byte_product(const signed char* a, int* c) { product<signed char, int, 16>(a, c); }
__global__ void plain_add(const float* a, float* c) { c[threadIdx.x] = a[threadIdx.x] + 1.0f; }
__global__ void wide_copy(const float4* a, float4* c) { c[threadIdx.x] = a[threadIdx.x]; }
__global__ void async_copy(const float4* a, float4* c) {
    __shared__ float4 s[256];
    __pipeline_memcpy_async(&s[threadIdx.x], a + threadIdx.x, 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    c[threadIdx.x] = s[threadIdx.x ^ 1];
}
__global__ void bulk_copy(const float* a, float* c) {
    __shared__ alignas(128) float s[256];
    __shared__ unsigned long long bar;
    unsigned b = __cvta_generic_to_shared(&bar), d = __cvta_generic_to_shared(s);
    if (threadIdx.x == 0)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];"
                     ::"r"(d), "l"(a), "r"(b) : "memory");
    __syncthreads();
    c[threadIdx.x] = s[threadIdx.x];
}
__global__ void warpgroup_product(float* c, unsigned long long a, unsigned long long b) {
    float w = 0, x = 0, y = 0, z = 0;
    asm volatile("wgmma.fence.sync.aligned;");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%0, %1, %2, %3}, %4, %5, 1, 1, 1;"
                 : "+f"(w), "+f"(x), "+f"(y), "+f"(z) : "l"(a), "l"(b));
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;");
    c[threadIdx.x] = w + x + y + z;
}
__global__ void indexed_array(float* c, int n, int at) {
    float held[64];
    for (int i = 0; i < 64; ++i) held[i] = 0;
    for (int i = 0; i < n; ++i) held[(i * at) & 63] += c[i];
    c[threadIdx.x] = held[at & 63] + held[n & 63];
}
}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KernelSass]:
    try:
        find_cuobjdump(), find_nvcc()
    except ToolMissing as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("sass")
    (folder / "k.cu").write_text(SOURCE)
    words = [find_nvcc(), "-std=c++17", "-arch=sm_90a", "-cubin", "-o", str(folder / "k.cubin"), str(folder / "k.cu")]
    subprocess.run(words, check=True, capture_output=True, timeout=200)
    return {kernel.name: kernel for kernel in read(folder / "k.cubin")}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("half_product", "fp16"), ("bfloat_product", "bf16"), ("byte_product", "int8"), ("warpgroup_product", "tf32")],
)
def test_tensor_instructions_and_their_precision(kernels: dict[str, KernelSass], name: str, kind: str) -> None:
    assert list(kernels[name].matrix) == [kind]
    assert kernels[name].shows("tensor_cores")
    assert kernels[name].shows("wgmma") == (name == "warpgroup_product")


def test_a_kernel_without_them_shows_none(kernels: dict[str, KernelSass]) -> None:
    plain = kernels["plain_add"]
    assert plain.matrix == {}
    assert plain.barriers == 0
    assert plain.widest("global load") == 32
    for technique in ("tensor_cores", "vector_loads", "async_copy", "tma", "warp_shuffles"):
        assert not plain.shows(technique)


def test_widths_of_loads_and_stores(kernels: dict[str, KernelSass]) -> None:
    wide = kernels["wide_copy"]
    assert wide.accesses == {"global load": {128: 1}, "global store": {128: 1}}
    assert wide.shows("vector_loads")


def test_async_copies_of_both_kinds(kernels: dict[str, KernelSass]) -> None:
    assert kernels["async_copy"].shows("async_copy")
    assert not kernels["async_copy"].shows("tma")
    assert kernels["async_copy"].barriers == 1
    assert kernels["bulk_copy"].shows("tma")


def test_local_memory_and_resources(kernels: dict[str, KernelSass]) -> None:
    local = kernels["indexed_array"]
    assert local.local_accesses > 0
    assert local.stack_bytes >= 256
    assert not local.shows("no_spills")
    assert kernels["plain_add"].shows("no_spills")
    assert kernels["async_copy"].shared_bytes >= 4096
    assert kernels["plain_add"].registers > 0


def test_claims_without_proof_are_named(kernels: dict[str, KernelSass]) -> None:
    some = [kernels["half_product"], kernels["wide_copy"]]
    assert unproven(some, ["tensor_cores", "vector_loads", "tma", "no_spills"]) == ["tma"]
    assert unproven([*some, kernels["indexed_array"]], ["no_spills"]) == ["no_spills"]


def test_a_file_without_machine_code_is_refused(tmp_path: Path, kernels: dict[str, KernelSass]) -> None:
    (tmp_path / "x").write_text("no code")
    with pytest.raises(ProfilerError, match="cannot read"):
        read(tmp_path / "x")
    with pytest.raises(ProfilerError, match="cannot be read: No such file"):
        read(tmp_path / "none")


@pytest.mark.skipif(not jail().level, reason="nothing can be confined here")
def test_what_reads_a_programs_binary_sees_no_other_file(tmp_path: Path) -> None:
    """The tool is confined: a binary that takes it over finds nothing."""
    for name in ("tool/bin", "home", "built"):
        (tmp_path / name).mkdir(parents=True)
    secret, tool = tmp_path / "home" / "secret", tmp_path / "tool" / "bin" / "cuobjdump"
    secret.write_text("planted")
    (tmp_path / "built" / "k.so").write_text("code")
    tool.write_text(
        f"#!/bin/sh\ntest -r {secret} && exit 3\necho x > {tmp_path}/made && exit 4\ntest -r $2 || exit 5\n"
        "echo 'Function : k'; echo '        /*0010*/   FFMA R1, R2, R3, R4 ;'\n"
    )
    tool.chmod(0o755)
    (kernel,) = read(tmp_path / "built" / "k.so", tool)
    assert (kernel.name, kernel.ffma) == ("k", 1)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("HMMA.16816.F32", "fp16"),
        ("HMMA.1684.F32.TF32", "tf32"),
        ("HGMMA.64x256x16.F32.BF16", "bf16"),
        ("QGMMA.64x8x32.F32.E4M3.E4M3", "fp8"),
        ("IMMA.16816.S8.S8", "int8"),
        ("IMMA.8832.U4.U4", "int4"),
        ("DMMA.8x8x4", "fp64"),
        ("BMMA.168256.AND.POPC", "int1"),
    ],
)
def test_precision_of_an_opcode(opcode: str, kind: str) -> None:
    assert precision(opcode) == kind


def test_moves_that_merely_look_like_products_are_none() -> None:
    listing = "\tFunction : k\n        /*0010*/                   HFMA2.MMA R4, -RZ, RZ, 1.875, 0 ;   /* 0x0 */\n"
    (kernel,) = parse(listing)
    assert kernel.matrix == {}
    assert kernel.instructions == 1


def test_predication_counts_guarded_instructions_but_not_branches() -> None:
    listing = (
        "\tFunction : k\n        /*0000*/              @!P0 LDG.E.64 R4, [R2] ;  /* 0x0 */\n"
        "        /*0010*/                   FADD R4, R4, R5 ;  /* 0x0 */\n"
        "        /*0020*/               @P0 BRA 0x10 ;  /* 0x0 */\n"
        "        /*0030*/                   NOP ;  /* 0x0 */\n"
    )
    (kernel,) = parse(listing)
    assert kernel.predicated == pytest.approx(0.5)
    assert kernel.accesses == {"global load": {64: 1}}


@pytest.mark.parametrize(
    ("mangled", "bare"),
    [
        ("_Z12k_spill_sumsPKfPfi", "k_spill_sums"),
        ("_ZN3own5inner3addIfEEvPT_", "add"),
        ("_ZN45_GLOBAL__N__2ab3ee37_4_k_cu_e1b8d2f1_1234567814kernel_of_fileEPf", "kernel_of_file"),
        ("_ZL3addPf", "add"),
        ("plain_c", "plain_c"),
    ],
)
def test_the_function_in_a_mangled_name(mangled: str, bare: str) -> None:
    assert bare_name(mangled) == bare
