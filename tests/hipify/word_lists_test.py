"""Our tables name only what AMD's headers declare."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

import pytest

from hipify.word_lists import folder_of, word_lists
from model_wheels import wheel_folder
from vermilion.hipify.names import (
    RENAME_FILES,
    hip_words,
    includes,
    renames,
)

HIPIFY = Path(__file__).parents[2] / "src" / "vermilion" / "hipify"
STUBS = HIPIFY / "check" / "stubs"


@pytest.mark.needs("triton", "rocm")
def test_the_word_lists_are_those_of_the_headers() -> None:
    for path, text in word_lists().items():
        assert path.read_text("utf-8") == text, f"run tests/hipify/word_lists.py: {path.name}"


def test_each_name_of_the_tables_is_declared_somewhere() -> None:
    # What no word list has stands in a header that no package brings: then our stub has it.
    stubs = "\n".join(path.read_text("utf-8") for path in STUBS.rglob("*.h"))
    stubs += "\n".join(path.read_text("utf-8") for path in STUBS.rglob("*.hpp"))
    stubbed = set(re.findall(r"\w+", stubs))
    made = re.findall(r"VERMILION_(?:HANDLE|STATE)\((\w+)\)", stubs)
    stubbed |= {f"{name}_t" for name in made}
    # Macros of the compiler and types of C; rocTX, whose header the triton package has.
    known = {"__HIPCC__", "__HIPCC_RTC__", "HIP_VERSION", "uint32_t", "uint64_t"}
    # Guards of headers: HIP's own begin alike, and the libraries' are in their documentation.
    known |= {r.hip for r in renames().values() if r.hip.startswith("HIP_INCLUDE_HIP_HIP_")}
    known |= {"HIP_MATH_CONSTANTS_H", "HIPBLAS_H", "HIPFFT_H_", "HIPRAND_H_", "HIPSPARSE_H",
              "MIOPEN_GUARD_MIOPEN_H_"}  # fmt: skip
    missing = {
        rename.hip
        for rename in renames().values()
        if rename.hip and not rename.hip.startswith("roctx")
    } - (hip_words() | stubbed | known)
    # Complex arithmetic is declared by a macro, for two types at once.
    missing = {name for name in missing if not re.fullmatch(r"hipC[a-z]+f?", name)}
    assert missing == set()


@pytest.mark.needs("triton")
def test_roctx_has_the_names_that_we_give() -> None:
    header = folder_of("triton") / "backends" / "amd" / "include" / "roctracer" / "roctx.h"
    text = header.read_text("utf-8")
    names = {r.hip for r in renames().values() if r.hip.startswith("roctx")}
    assert names
    assert {name for name in names if not re.search(rf"\b{name}A?\b", text)} == set()


def test_what_has_no_counterpart_has_a_hint() -> None:
    for table in (renames(), includes()):
        for name, row in table.items():
            assert row.hip or row.hint, name


def test_no_row_says_what_the_rule_says() -> None:
    from vermilion.hipify.names import _by_rule

    # A second `_v2` row or a row that equals its rule is noise; cuRAND's device functions are in
    # no word list, so their rows stay.
    same = {
        name
        for name, row in renames().items()
        if row.hip and not row.parameters_differ and _by_rule(name) == row.hip
    }
    assert same == set()
    assert len(RENAME_FILES) == len(set(RENAME_FILES))


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="this system has no wheel with CUDA's headers",
)
def test_most_names_of_the_cuda_runtime_are_translated() -> None:
    from vermilion.hipify.names import Names, Rename

    header = "nvidia/cuda_runtime/include/cuda_runtime_api.h"
    text = (wheel_folder("nvidia-cuda-runtime-cu12") / header).read_text("utf-8")
    declared = set(re.findall(r"__host__[\w\s]*?cudaError_t CUDARTAPI (cuda\w+)\(", text))
    names = Names()
    done = {name for name in declared if isinstance(names.look_up(name), Rename)}
    assert len(declared) > 250
    assert len(done) / len(declared) > 0.8
