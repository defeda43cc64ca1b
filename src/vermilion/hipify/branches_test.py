"""Sources that know of HIP: the branch for CUDA and the tests stay as they are."""

from __future__ import annotations

import pytest

from vermilion.hipify.branches import find_branches, is_hip_macro
from vermilion.hipify.tokens import tokenize
from vermilion.hipify.translate import translate


def kinds(source: str) -> dict[str, str | None]:
    """Return whose part each line that is one word is in."""
    branches = find_branches(tokenize(source))
    at, found = 0, {}
    for line in source.splitlines(keepends=True):
        if line.strip().isidentifier():
            found[line.strip()] = branches.at(at)
        at += len(line)
    return found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("#ifdef USE_ROCM\na\n#else\nb\n#endif\nc\n", {"a": "hip", "b": "cuda", "c": None}),
        ("#ifndef USE_ROCM\na\n#else\nb\n#endif\n", {"a": "cuda", "b": "hip"}),
        ("#if !defined(USE_ROCM) && X\na\n#endif\n", {"a": "cuda"}),
        ("#if defined(USE_ROCM) && X\na\n#else\nb\n#endif\n", {"a": None, "b": None}),
        ("#if defined(__CUDACC__) || defined(__HIPCC__)\na\n#endif\n", {"a": "hip"}),
        ("#ifdef __CUDACC__\na\n#elif defined(__HIP__)\nb\n#endif\n", {"a": "cuda", "b": "hip"}),
        ("#if USE_HIP\na\n#if X\nb\n#endif\n#else\n#if X\nc\n#endif\n#endif\n",
         {"a": "hip", "b": "hip", "c": "cuda"}),
        ("#if defined(CUDA_VERSION) && !defined(HIP_VERSION)\na\n#endif\n", {"a": "cuda"}),
        ("#if HIP_VERSION >= 50000\na\n#else\nb\n#endif\n", {"a": None, "b": None}),
        ("#ifndef MY_HIP_H\n#define MY_HIP_H\na\n#endif\n", {"a": None}),
        ("#ifdef __CUDACC__\na\n#else\nb\n#endif\n", {"a": None, "b": None}),
        ("#if defined(GGML_USE_HIP) /* c */ \\\n && 1\na\n#endif", {"a": "hip"}),
    ],
)  # fmt: skip
def test_whose_lines_are_whose(source: str, expected: dict[str, str | None]) -> None:
    assert kinds(source) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("USE_ROCM", True), ("__HIPCC__", True), ("ENABLE_HIP", True), ("SHIP_IT", False),
     ("HIP_VERSION", False), ("__HIP_DEVICE_COMPILE__", False), ("USE_CUDA", False)],
)  # fmt: skip
def test_macros_that_stand_for_hip(name: str, expected: bool) -> None:
    assert is_hip_macro(name) is expected


def test_an_aware_source_is_left_alone_where_it_is_cudas() -> None:
    source = (
        "#if defined(USE_ROCM)\n#include <hipcub/hipcub.hpp>\nnamespace cub = hipcub;\n#else\n"
        "#include <cub/cub.cuh>\n#include <cuda_fp16.h>\n#endif\n"
        "using R = cub::BlockReduce<int, 8>;\n"
    )
    done = translate(source)
    assert done.text == source
    assert done.branches.macros == {"USE_ROCM"}
