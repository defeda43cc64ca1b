"""The layer-norm operator whose errors other translators leave: found, corrected, compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from vermilion.hipify.hipify import Options, hipify

SOURCE = Path(__file__).parent / "cuda" / "layernorm_op.cu"

# The five traps, by the rule that finds each: tensor-core mode, 32-bit masks, a warp of 32 lanes,
# PTX, the name of the provider.
TRAPS = {
    "blas-math-mode": 30,
    "mask-32-bit": 10,
    "warp-reduction-half": 10,
    "inline-ptx": 22,
    "provider-name": 35,
}


def test_all_five_traps_are_found_before_compiling() -> None:
    report = hipify([SOURCE], Options())
    assert not report.ok
    found = {f.rule: f.line for f in report.findings if f.is_left}
    assert TRAPS.items() <= found.items()
    # A warp of 32 is in a loop, in its shuffle and in a vote.
    assert found.keys() - TRAPS.keys() == {"vote-width", "shuffle-width"}
    assert all(f.can_be_fixed for f in report.findings if f.is_left)


@pytest.mark.needs("triton", "rocm", "llvmlite")
def test_after_the_fixes_it_compiles_and_without_them_it_does_not() -> None:
    gpus = ("gfx942", "gfx1100")
    corrected = hipify([SOURCE], Options(fix=True, check=gpus))
    assert corrected.ok
    assert [(c.architecture, c.ok, c.kernels) for c in corrected.checks] == [
        ("gfx942", True, 1),
        ("gfx1100", True, 1),
    ]
    as_it_was = hipify([SOURCE], Options(check=gpus))
    assert not any(check.ok for check in as_it_was.checks)
    said = [f for f in as_it_was.findings if f.rule == "compile"]
    assert {f.line for f in said} == {10, 21}, "the compiler's messages are on the CUDA lines"
