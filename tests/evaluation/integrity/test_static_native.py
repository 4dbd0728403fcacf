"""Static rules over C++ and CUDA: files, texts given to load_inline, names pasted together by macros."""

from __future__ import annotations

import pytest

from stitchcuda.evaluation.integrity.native_tokens import Macro
from stitchcuda.evaluation.integrity.static_native import native_hits, numeric_options
from stitchcuda.task.model import Precision
from tests.evaluation.integrity.support import inspected, rejected

NOTHING: dict[str, Macro] = {}


def rules(text: str, precision: Precision = "fp32") -> set[str]:
    return {hit.rule for hit in native_hits("k.cu", text, precision=precision, macros=NOTHING)}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("void f() { ptrace(0, 1, 0, 0); }", "controls_process"),
        ("void f() { if (!fork()) return; }", "controls_process"),
        ('void f() { std::system("rm x"); }', "controls_process"),
        ("#define J(a, b) a##b\nvoid f() { J(pt, race)(0); }", "controls_process"),
        ('void f() { asm volatile("syscall" : : "a"(1)); }', "controls_process"),
        ("void f() { mprotect(p, 4096, 7); }", "patches_code"),
        ("void* f() { return mmap(0, 1, PROT_EXEC, 0, 0, 0); }", "patches_code"),
        ("void f() { dlsym(RTLD_NEXT, name); }", "patches_code"),
        ("void f() { for (int fd = 3; fd < 64; ++fd) write(fd, b, 4); }", "writes_descriptors"),
        ("void f() { dup2(1, 7); }", "writes_descriptors"),
        ("void f() { _exit(0); }", "ends_process"),
        ("void f() { std::exit(0); }", "ends_process"),
        ('const char* p = "/proc/self/" "mem";', "reads_process_memory"),
        ('extern "C" int clock_gettime(int c, void* t) { return 0; }', "interposes"),
        ("cudaError_t cudaEventElapsedTime(float* ms, void* a, void* b) { *ms = 0; }", "interposes"),
        ('asm(".inc" "bin \\"/etc/passwd\\"");', "includes_files"),
        ('#include "/etc/passwd"', "includes_files"),
        ('#define H "../../secret.h"\n#include H', "includes_files"),
        ('#if __has_include("/etc/passwd")\n#endif', "includes_files"),
        ("void f() { cuptiActivityFlushAll(0); }", "replaces_measuring"),
        ("void f() { PyEval_GetFrame(); }", "walks_frames"),
    ],
)
def test_what_has_no_honest_use_is_rejected(text: str, rule: str) -> None:
    assert rule in rules(text)


@pytest.mark.parametrize(
    "text",
    [
        "// fork(); kill(0, 9)\n/* _exit(0) */ int x;",
        'printf("do not kill() or fork()");',
        '#define CHECK(x) if (x) { fprintf(stderr, "%s", #x); exit(EXIT_FAILURE); }\nvoid f() { CHECK(g()); abort(); }',
        "struct Lock { void kill(); }; void f(Lock& l) { l.kill(); p->fork(); my::system(1); }",
        "static inline int fork(int tiles) { return tiles; } void f() { fork(2); }",
        "void f() { write(1, b, 2); write(STDERR_FILENO, b, 2); out.write(b, 4); }",
        'asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0}, {%1};" : "+f"(d) : "r"(a));',
        'asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(s), "l"(g));',
        "inline void cudaCheck(cudaError_t e) { if (e) throw e; }",
        "static cudaError_t free(void* p) { return cudaSuccess; }",
        "__global__ void k() { __syncthreads(); clock64(); __nanosleep(20); }",
        '#pragma unroll\n#pragma omp parallel for\n#pragma GCC optimize("O3,unroll-loops")\nint x;',
        "std::unordered_map<int64_t, float> sizes; std::map<std::string, int> names;",
        "static float* workspace = nullptr; void f() { if (workspace == nullptr) cudaMalloc(&workspace, 4); }",
        "static bool ready = false; void f() { if (!ready) { cudaFuncSetAttribute(k, a, 1); ready = true; } }",
        "__device__ unsigned int done; __global__ void k() { if (atomicAdd(&done, 1) == gridDim.x - 1) g(); }",
        '#if __has_include(<cuda_fp8.h>)\n#include <cuda_fp8.h>\n#include "sub/own.h"\n#endif',
        "void f() { cudaStreamCreate(&s); cudaStreamWaitEvent(main_stream, e, 0); }",
        "void f() { #pragma omp parallel\n { omp_get_thread_num(); } }",
    ],
)
def test_honest_native_code_is_not(text: str) -> None:
    found = rules(text, "fp16")
    assert found == set()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("std::unordered_map<const void*, float*> seen;", "keyed_cache"),
        ("static const float* last; void f(const float* x) { if (x == last) return; last = x; }", "keyed_cache"),
        ("static uintptr_t last; int f(uintptr_t x) { return last != x; }", "keyed_cache"),
        ("static int calls; void f() { if (++calls > 5) return; }", "call_counter"),
        ("int calls = 0; void f() { calls += 1; if (calls > 5) g(); }", "call_counter"),
        ("void f() { std::thread t(g); t.join(); }", "background_work"),
        ("void f() { cudaLaunchHostFunc(s, g, 0); }", "host_callback"),
        ("void f() { cudaStreamCreateWithFlags(&s, 1); k<<<1, 1, 0, s>>>(); }", "side_stream"),
        ("void f() { cublasSgemm_v2(h, a); }", "library_compute"),
        ("at::Tensor f(at::Tensor x) { return at::matmul(x, x); }", "library_compute"),
        ("void f() { p.accessPolicyWindow.num_bytes = 1; }", "persisting_l2"),
        ("__global__ void k() { __expf(x); }", "fast_math"),
        ("auto m = CUBLAS_COMPUTE_32F_FAST_TF32;", "precision_switch"),
        ('asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0};");', "reduced_precision"),
        ("__attribute__((constructor)) static void init() {}", "static_initialiser"),
        ("void f() { dlopen(name, 1); }", "runtime_loading"),
        ("void f() { cudaIpcOpenMemHandle(&p, h, 1); }", "shares_memory"),
        ("void f() { clock_gettime(1, &t); }", "reads_clock"),
        ("int f() { return memcmp(a, b, 64); }", "keyed_cache"),
    ],
)
def test_what_is_worth_knowing_is_flagged(text: str, rule: str) -> None:
    assert rule in rules(text)


def test_texts_in_python_are_read_with_their_lines() -> None:
    source = '''
    from torch.utils.cpp_extension import load_inline

    SOURCE = r"""
    #include <torch/extension.h>
    #define GLUE(a, b) a##b
    torch::Tensor f(torch::Tensor x) {
      GLUE(fo, rk)();
      return x;
    }
    """
    module = load_inline("m", [SOURCE], functions=["f"])
    '''
    found = inspected(source)
    assert rejected(found) == {"controls_process"}
    assert "program.py:8: fork" in found["controls_process"].evidence
    assert "no_own_kernel" not in found


def test_macros_of_a_header_are_known_in_every_source() -> None:
    header = "#define GLUE(a, b) a##b\n"
    found = inspected("x = 1", kernels_cpp='#include "glue.h"\nvoid f() { GLUE(pt, race)(0); }\n', glue_h=header)
    assert rejected(found) == {"controls_process"}


@pytest.mark.parametrize(
    "text",
    [
        '#pragma GCC optimize("Ofast")',
        '#pragma GCC optimize "fast-math"',
        '_Pragma("GCC optimize(\\"-ffast-math\\")")',
        '#define P(x) _Pragma(#x)\nP(GCC optimize("unsafe-math-optimizations"))',
        '__attribute__((optimize("Ofast"))) void f() {}',
        '__attribute__((__optimize__("no-signed-zeros"))) void f() {}',
        '#define A __attribute__((optimize("fast" "-math")))\nA void f() {}',
    ],
)
def test_inexact_arithmetic_asked_for_inside_a_source_is_found(text: str) -> None:
    assert numeric_options("k.cpp", text, native_macros_of(text))


def native_macros_of(text: str) -> dict[str, Macro]:
    from stitchcuda.evaluation.integrity.static_native import native_macros

    return native_macros([text])


@pytest.mark.parametrize("text", ['#pragma GCC optimize("O3")', "#pragma omp simd", "int optimize(int x);", "// Ofast"])
def test_other_pragmas_are_left_alone(text: str) -> None:
    assert not numeric_options("k.cpp", text, NOTHING)
