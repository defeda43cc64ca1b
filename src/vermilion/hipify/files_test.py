"""Build files: what in them is nvcc's, and the fragments for HIP."""

from __future__ import annotations

import ast
from pathlib import Path

from vermilion.hipify.files import lint_build_file
from vermilion.hipify.hipify import Options, hipify


def test_options_of_nvcc_are_found_on_their_lines() -> None:
    text = (
        "find_package(CUDAToolkit REQUIRED)\n"
        "project(x LANGUAGES CXX CUDA)\n"
        "set(CMAKE_CUDA_FLAGS --use_fast_math)\n"
        "# nvcc in a comment\n"
        "set(F -arch=sm_80)  # hipify: allow(nvcc-option)\n"
    )
    found = lint_build_file(text, "CMakeLists.txt")
    assert [(f.line, f.message.split("`")[1]) for f in found] == [
        (1, "find_package(CUDAToolkit"),
        (2, "LANGUAGES CXX CUDA"),
        (3, "--use_fast_math"),
        (3, "CMAKE_CUDA_FLAGS"),
    ]
    assert all(f.hint and f.rule == "nvcc-option" for f in found)


def test_the_fragments_name_sources_libraries_and_gpus(tmp_path: Path) -> None:
    source = tmp_path / "op.cu"
    source.write_text("#include <cublas_v2.h>\n#include <cub/cub.cuh>\n", "utf-8")
    out = tmp_path / "out"
    report = hipify([source], Options(output=out, build_files=True))
    assert [p.name for p in report.written] == ["op.hip", "CMakeLists.txt", "hip_setup.py"]
    cmake = (out / "CMakeLists.txt").read_text("utf-8")
    assert 'CMAKE_HIP_ARCHITECTURES "gfx942;gfx1100"' in cmake
    assert "find_package(hipblas REQUIRED)" in cmake
    assert "roc::hipblas hip::hipcub" in cmake
    assert cmake.count("op.hip") == 2
    setup = (out / "hip_setup.py").read_text("utf-8")
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(setup).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert values == {
        "SOURCES": ["op.hip"],
        "LIBRARIES": ["hipblas"],
        "ARCHITECTURES": ["gfx942", "gfx1100"],
    }
