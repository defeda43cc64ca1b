"""Products of codes and scales are what a multiplication gives, rounded to bfloat16."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.decoder.unpack import OddMultiples
from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.codegen.isa import isa_of
from vermilion.codegen.load import KERNEL, load_functions
from vermilion.codegen.object import compile_object
from vermilion.hardware.targets.find import find_target

Floats = NDArray[np.float32]
# Values of 32 bits.
EIGHT = 8


def products(codes: NDArray[np.uint8], scales: Floats) -> Floats:
    """Return (blocks, 16 columns, 8 values) of codes of that shape and scales (blocks, 16)."""
    isa = isa_of(find_target("cpu"))
    if not (isa.has_vnni and isa.has_bf16):
        pytest.skip("this machine has no AVX-512 VNNI and BF16")
    module = Module(has_scale=True)
    f = Function(module, "kernel", [("args", "ptr"), ("begin", "i64"), ("end", "i64")])
    args, begin, end = f.arguments
    packed_at, scales_at, out = (f.load("ptr", args, 8 * i, align=8) for i in range(3))
    arithmetic = Arithmetic(f, LANES)
    with f.loop(begin, end) as block:
        line = f.multiply(block, 64)
        multiples = OddMultiples(f, arithmetic, arithmetic.load("f32", f.at(scales_at, line)))
        packed = f.load(f"<{LANES} x i32>", f.at(packed_at, line), align=1)
        for number, pair in enumerate(multiples.pairs(packed)):
            f.store(pair, f.at(out, f.multiply(line, 4)), 64 * number, align=1)
    f.finish()
    module.export("kernel")
    functions = load_functions(compile_object(module.text(), isa), {"kernel": KERNEL}, isa)
    # The first four values in the low halves of a lane's bytes, the next four in the high ones.
    lanes = np.ascontiguousarray(codes[..., :4] | codes[..., 4:] << 4)
    result = np.empty((len(codes), 4, LANES, 2), ml_dtypes.bfloat16)
    places = np.array([one.ctypes.data for one in (lanes, scales, result)], np.int64)
    functions["kernel"](places.ctypes.data, 0, len(codes))
    return result.astype(np.float32).transpose(0, 2, 1, 3).reshape(codes.shape)


def codes_of(blocks: int) -> NDArray[np.uint8]:
    random = np.random.default_rng(1)
    return random.integers(0, 16, (blocks, LANES, EIGHT), dtype=np.uint8)


@pytest.mark.parametrize("first", [0, EIGHT])
def test_every_code_of_every_half_scale_rounds_as_its_product(first: int) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves) & (halves != 0)]
    scales = np.resize(halves, (-(-halves.size // LANES), LANES)).astype(np.float32)
    codes = np.zeros((len(scales), LANES, EIGHT), np.uint8)
    codes += np.arange(first, first + EIGHT, dtype=np.uint8)
    wanted = (scales[..., None] * (codes.astype(np.float32) - 8)).astype(ml_dtypes.bfloat16)
    assert np.array_equal(products(codes, scales), wanted.astype(np.float32))


def test_scales_of_32_bits() -> None:
    random = np.random.default_rng(2)
    scales = random.standard_normal((500, LANES)).astype(np.float32)
    codes = codes_of(500)
    wanted = (scales[..., None] * (codes.astype(np.float32) - 8)).astype(ml_dtypes.bfloat16)
    assert np.array_equal(products(codes, scales), wanted.astype(np.float32))


def test_a_scale_of_0_gives_next_to_nothing() -> None:
    found = products(codes_of(4), np.zeros((4, LANES), np.float32))
    assert np.abs(found).max() < 2.0**-120
