"""Each rule fires, does not fire, and offers a fix that is right; comments silence."""

from __future__ import annotations

import pytest

from vermilion.hipify.finding import apply_edits, without_overlaps
from vermilion.hipify.lint import CHECKS, lint, silence
from vermilion.hipify.rules.catalogue import RULES
from vermilion.hipify.tokens import tokenize

VOTE = "__any_sync(m, p); w = warpSize;"  # what says `warpSize` works on whole waves
WAVE = "w = warpSize;"
RUNTIME = "#include <hip/hip_runtime.h>\n"
GROUP = ">> (__lane_id() & 32))"
SHUFFLE = "v += __shfl_down_sync(m, v, o, 32);"  # makes a source use warps, and breaks no rule


def rules(source: str) -> list[str]:
    return sorted(finding.rule for finding in lint(source))


def fixed(source: str) -> str:
    edits = without_overlaps(edit for finding in lint(source) for edit in finding.edits)
    return apply_edits(source, edits)


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("#define WARP_SIZE 32\n", "warp-size-constant"),
        ("constexpr int kWarp = 32;", "warp-size-constant"),
        ("enum { LANES = 32 };", "warp-size-constant"),
        ("int lane = threadIdx.x & 0x1f;", "warp-lane-arithmetic"),
        (f"int a = tid % 32; {VOTE}", "warp-lane-arithmetic"),
        ("__shfl_xor(v, 16);", "warp-reduction-half"),
        ("__ballot_sync(0xffffffff, p);", "vote-width"),
        ("__match_all_sync(m, v, &p);", "vote-width"),
        ("__shfl_sync(0xffffffff, v, 0, 32);", "mask-32-bit"),
        ("void f(unsigned mask) { __shfl_sync(mask, v, 0); }", "mask-32-bit"),
        (f"__ballot_sync(0xffffffff, p); {WAVE}", "mask-32-bit"),
        (f"__any_sync(0x0000ffff, p); {WAVE}", "mask-32-bit"),
        (f"void f(unsigned mask) {{ __any_sync(mask, p); {WAVE} }}", "mask-32-bit"),
        (f"__any_sync((1u << n) - 1, p); {WAVE}", "mask-32-bit"),
        ("constexpr int w = warpSize;", "warp-size-not-constant"),
        ("__shared__ int s[4][warpSize];", "warp-size-not-constant"),
        ("static_assert(warpSize == 32);", "warp-size-not-constant"),
        ("switch (n) { case warpSize: break; }", "warp-size-not-constant"),
        ("enum { W = warpSize };", "warp-size-not-constant"),
        (f"unsigned m = __ballot(p); {WAVE}", "ballot-32-bit"),
        (f"int m; m = __activemask(); {WAVE}", "ballot-32-bit"),
        ("x = 1 << laneId;", "lane-bit-32"),
        ("volatile float* s; s[t] += s[t + 32];", "warp-synchronous"),
        ('asm("mma.sync.aligned.m16n8k16 {};");', "inline-ptx"),
        ("__nanosleep(20);", "missing-intrinsic"),
        ('o[0] = "--gpu-architecture=compute_70";', "nvcc-option"),
        (
            "__global__ void k() { w = warpSize; } void f() { k<<<(n * 32 + 9) / 256, 9>>>(); }",
            "warp-size-constant",
        ),
        (
            "#define WARP 32\ntemplate <class T> __global__ void k() { w = warpSize; }\n"
            "void f() { int threads = 4 * WARP; k<float><<<n, threads>>>(); }",
            "warp-size-constant",
        ),
        ("y = __ldg(&x[i]);", "read-only-load"),
        ("y = tex1Dfetch<float>(t, i);", "texture"),
        ("cooperative_groups::reduce(g, v, op);", "cooperative-groups"),
        ("namespace cg = cooperative_groups; cg::memcpy_async(g, a, b, n);", "cooperative-groups"),
        ("auto t = tiled_partition<32>(b);", "tile-of-32"),
        ("__shared__ double a[9000];", "shared-memory-size"),
        ("#define N 128\n__shared__ float4 a[N][N / 2];", "shared-memory-size"),
        ("k<<<1, 2, 1 << 17>>>();", "shared-memory-size"),
        ("rocwmma::fragment<A> f;", "tensor-core"),
        ("y = __expf(x);", "fast-math"),
        ("hipMallocManaged(&p, 4);", "managed-memory"),
        ("hipGraphLaunch(g, s);", "graphs"),
        ("#if __CUDA_ARCH__ >= 700\n#endif\n", "cuda-arch"),
        ("f(HIPBLAS_TENSOR_OP_MATH);", "blas-math-mode"),
        ('return "CUDAExecutionProvider";', "provider-name"),
        ("OrtKernelContext* c; k<<<g, b>>>(x);", "provider-stream"),
        ("Ort::Custom::CudaContext c;", "provider-stream"),
        ("__global__ void k() {}", "missing-runtime-include"),
    ],
)
def test_it_fires(source: str, rule: str) -> None:
    assert rule in rules(source)


@pytest.mark.parametrize(
    "source",
    [
        "constexpr int TILE = 32;",
        "int x = threadIdx.x % 32;",  # no warps here: 32 may be the width of a tile
        "int c = blockIdx.x * 32;",
        f"{SHUFFLE}",
        "int i = s[warpSize]; x = a[j + warpSize]; if (l < warpSize) f(warpSize);",
        "void f(uint64_t m) { __any_sync(m, p); }",
        "void f() { for (int o = 16; o; o /= 2) v += tile.shfl_xor(v, o); int l = tid % 32; }",
        "struct CudaContext { hipStream_t s; };",
        "__device__ Half __shfl_up_sync(unsigned long long mask, Half v, unsigned delta);",
        "for (int o = 16; o > 0; o /= 2) v += __shfl_down_sync(m, v, o, 32);",
        "__ballot_sync(0xffffffffffffffffull, p);",
        "__shfl_sync(__activemask(), v, 0, 32);",
        "unsigned long long m = __ballot(p);",
        f"unsigned m = (unsigned)(__ballot(p) {GROUP}; n = __popc(m); x = 1u << lane;",
        "#define WARP_SIZE 32\n__shfl_sync(__activemask(), v, 0, WARP_SIZE);",
        "__syncwarp();",
        'asm volatile("" ::: "memory");',
        "unsigned long long m = __ballot_sync(__activemask(), p);",
        f"{RUNTIME}__global__ void k() {{ t = tid; }} void f() {{ k<<<n * 32 / 256, 9>>>(); }}",
        "int x = 1 << shift;",
        "1ull << lane;",
        "__shared__ float a[128][32];",
        "extern __shared__ float a[];",
        "k<<<1, 2, 65536>>>();",
        "k<<<1, 2, bytes>>>();",
        "// asm(\"membar.gl;\") and CUDAExecutionProvider in a comment",
        'const char* s = "__expf(x)";',
        "#include <hip/hip_runtime.h>\n__global__ void k() {}",
        "OrtKernelContext* c; k<<<g, b, 0, stream>>>(x);",
        "k<<<g, b>>>(x);",
        "std::reduce(a, b);",
        "__device__ Own __ldcs(const Own* p) { return *p; }",
    ],
)  # fmt: skip
def test_it_does_not_fire(source: str) -> None:
    assert rules(source) == []


@pytest.mark.parametrize(
    ("source", "result"),
    [
        (f"int l = threadIdx.x & 31; {VOTE}", f"int l = threadIdx.x & (warpSize - 1); {VOTE}"),
        (f"int warp = threadIdx.x >> 5; {VOTE}", f"int warp = threadIdx.x / warpSize; {VOTE}"),
        # A mask names lanes that take part: no number is right for both halves of a wave.
        ("__shfl_sync(~0, v, 0, 32);", "__shfl_sync(__activemask(), v, 0, 32);"),
        ("__shfl_sync((unsigned)-1, v, 0, 8);", "__shfl_sync(__activemask(), v, 0, 8);"),
        ("void f(unsigned m) { __shfl_sync(m, v, 0, 8); }",
         "void f(unsigned m) { __shfl_sync(__activemask(), v, 0, 8); }"),
        ("__syncwarp(0xffffffff);", "__syncwarp();"),
        ("__syncwarp(1u << n);", "__syncwarp();"),
        (f"__any_sync(UINT_MAX, p); {WAVE}", f"__any_sync(__activemask(), p); {WAVE}"),
        (f"__any_sync(uint32_t(-1), p); {WAVE}", f"__any_sync(__activemask(), p); {WAVE}"),
        (f"__all_sync(static_cast<unsigned>(-1), p); {WAVE}",
         f"__all_sync(__activemask(), p); {WAVE}"),
        (f"constexpr unsigned A = ~0u; __any_sync(A, p); {WAVE}",
         f"constexpr unsigned A = ~0u; __any_sync(__activemask(), p); {WAVE}"),
        (f"#define A 0xffffffffu\nvoid f() {{ __any_sync(A, p); {WAVE} }}",
         f"#define A 0xffffffffu\nvoid f() {{ __any_sync(__activemask(), p); {WAVE} }}"),
        # A vote is one of 32 lanes, on waves of 64 too.
        ("u = __ballot_sync(~0, a > b);", f"u = (unsigned)(__ballot(a > b) {GROUP};"),
        ("u = __ballot(p);", f"u = (unsigned)(__ballot(p) {GROUP};"),
        ("if (__any(p)) f();", f"if (((unsigned)(__ballot(p) {GROUP} != 0)) f();"),
        ("b = __all_sync(-1, x || y);", f"b = ((unsigned)(__ballot(!(x || y)) {GROUP} == 0);"),
        ("u = __match_any_sync(~0u, v);", f"u = (unsigned)(__match_any(v) {GROUP};"),
        ("u = __activemask();", f"u = (unsigned)(__activemask() {GROUP};"),
        ("u = __ballot_sync(__activemask(), p);", f"u = (unsigned)(__ballot(p) {GROUP};"),
        ("u = __match_any_sync(__activemask(), v);", f"u = (unsigned)(__match_any(v) {GROUP};"),
        ("u = __ballot_sync(m, p);", f"u = ((unsigned)(__ballot(p) {GROUP} & (m));"),
        ("b = __any_sync(0xff, p);", f"b = (((unsigned)(__ballot(p) {GROUP} & (0xff)) != 0);"),
        ("b = __all_sync(m, p);", f"b = (((unsigned)(__ballot(!(p)) {GROUP} & (m)) == 0);"),
        # What a variable says at first is not what it says later.
        ("unsigned m = ~0u; m &= x; b = __any_sync(m, p);",
         f"unsigned m = ~0u; m &= x; b = (((unsigned)(__ballot(p) {GROUP} & (m)) != 0);"),
        # Lanes and loops go together, or neither does.
        ("void f() { int l = tid % 32; for (int o = 16; o; o /= 2) v += __shfl_xor(v, o); }",
         "void f() { int l = tid % 32; for (int o = 16; o; o /= 2) v += __shfl_xor(v, o, 32); }"),
        (f"uint32_t m = __ballot(p); n = __popc(m); {WAVE}",
         f"unsigned long long m = __ballot(p); n = __popcll(m); {WAVE}"),
        (f"unsigned int m = __ballot(p); unsigned b = m & x; __ffs(b); {WAVE}",
         f"unsigned long long m = __ballot(p); unsigned long long b = m & x; __ffsll(b); {WAVE}"),
        (f"__popc(__activemask()); {WAVE}", f"__popcll(__activemask()); {WAVE}"),
        ("1u << lane_id", "1ull << lane_id"),
        ('asm volatile("membar.gl;" ::: "memory");', "__threadfence();"),
        ('asm("mov.u32 %0, %%laneid;" : "=r"(x[1]));', "x[1] = (__lane_id() & 31);"),
        ('asm("mov.u32 %0, %laneid;" : "=r"(x));', "x = (__lane_id() & 31);"),
        ('asm("mov.u32 %0, %%lanemask_lt;" : "=r"(x));', "x = ((1u << (__lane_id() & 31)) - 1);"),
        ("x = __ldcg(p + i);", "x = *(p + i);"),
        ("__stcs(p + i, f(a, b));", "*(p + i) = (f(a, b));"),
        ("#ifdef __CUDA_ARCH__\n#endif\n", "#ifdef __HIP_DEVICE_COMPILE__\n#endif\n"),
        ('"CUDAExecutionProvider"', '"MIGraphXExecutionProvider"'),
        ("for (int o = 1; o <= 16; o *= 2) { v += __shfl_xor(v, o); }",
         "for (int o = 1; o <= 16; o *= 2) { v += __shfl_xor(v, o, 32); }"),
    ],
)  # fmt: skip
def test_fixes(source: str, result: str) -> None:
    assert fixed(source) == result


@pytest.mark.parametrize("number", ["0128", "0x", "1.5", "0b2", "1e3", "'a'", "0xffu", "077"])
def test_odd_numbers_are_no_reason_to_fail(number: str) -> None:
    assert isinstance(lint(f"#define WARP {number}\nx = tid & {number};"), list)


@pytest.mark.parametrize(
    "source",
    [
        f"int w = base + threadIdx.x >> 5; {VOTE}",  # `/` would bind before the `+`
        f"__any_sync(0x00ff00ff, p); {WAVE}",  # which lanes were meant, only a person knows
        "__match_all_sync(0xffffffff, v, &p);",
        f'asm("mov.u32 %0, %%lanemask_lt;" : "=r"(x)); {VOTE}',
        "#if __CUDA_ARCH__ >= 700\n#endif\n",
        'asm("ld.global.nc.f32 %0, [%1];" : "=f"(x) : "l"(p));',
    ],
)
def test_no_fix_is_offered_where_it_could_be_wrong(source: str) -> None:
    findings = [f for f in lint(source) if f.level != "note"]
    assert findings
    assert not [f for f in findings if f.edits]


def test_a_fix_of_several_lines_keeps_them() -> None:
    source = 'asm volatile(\n  "membar.gl;"\n);\nint x;\n'
    assert fixed(source) == "__threadfence()\n\n;\nint x;\n"


def test_a_comment_silences_its_line_or_the_next() -> None:
    source = (
        "f(__expf(x));  // hipify: allow(fast-math) measured\n"
        "// hipify: allow(fast-math, graphs)\n"
        "f(__expf(x));\n"
        "f(__expf(x));  // hipify: allow(graphs)\n"
    )
    kept, silenced = silence(lint(source), tokenize(source))
    assert [(f.rule, f.line) for f in kept] == [("fast-math", 4)]
    assert silenced == 2


def test_every_check_has_a_rule_and_every_rule_says_what_to_do() -> None:
    assert len(CHECKS) == len(set(CHECKS))
    for rule in RULES.values():
        assert rule.why
        assert rule.fix
        assert not rule.fix.endswith(".")
