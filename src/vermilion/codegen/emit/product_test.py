"""Products over packed weights against numpy: formats, shapes of the tile, edges, epilogues."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels import TARGETS, Memory, isa_for
from vermilion.codegen.emit.packed_weights import pack_weights
from vermilion.codegen.emit.product import ProductSpec
from vermilion.codegen.emit.walk import Access
from vermilion.codegen.kernel import Step
from vermilion.codegen.numeric import NUMERICS, NumericName
from vermilion.codegen.tensor import Storage, View, allocate, weight
from vermilion.codegen.tile import Tile
from vermilion.ir.expression import Operand, apply

Array = NDArray[Any]
LAST = (0, 2, 3, 1)
STORAGE: dict[NumericName, Storage] = {
    "f32": "f32", "bf16": "bf16", "u8s8": "u8", "u8s8_wide": "u8",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A convolution without a border: sizes of the input, and the tile that computes it."""

    images: int
    size: tuple[int, int]
    inputs: int
    outputs: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    tile: tuple[int, int, int] = (1, 4, 2)


CASES = (
    Case(1, (5, 9), 7, 33),
    Case(2, (6, 6), 16, 64, (3, 3), 1, (2, 4, 2)),  # a patch of whole rows
    Case(1, (7, 7), 5, 20, (3, 2), 2, (1, 3, 1)),
    Case(1, (1, 40), 3, 17, (1, 5), 1, (1, 7, 2)),
    Case(3, (4, 3), 40, 100, (1, 1), 1, (2, 3, 3)),
    Case(1, (9, 21), 4, 8, (2, 2), 1, (1, 20, 1)),
)


def numerics(target: str) -> list[NumericName]:
    isa = isa_for(target)
    names: list[NumericName] = ["f32", "u8s8_wide"]
    return names + (["bf16"] if isa.has_bf16 else []) + (["u8s8"] if isa.has_vnni else [])


def operands(case: Case, numeric: NumericName) -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    shape = (case.images, case.inputs, *case.size)
    kernel = (case.outputs, *case.kernel, case.inputs)
    if STORAGE[numeric] == "u8":
        return random.integers(0, 256, shape), random.integers(-128, 128, kernel)
    x = random.standard_normal(shape, dtype=np.float32)
    w = random.standard_normal(kernel, dtype=np.float32)
    if numeric == "bf16":
        x, w = (a.astype(ml_dtypes.bfloat16).astype(np.float32) for a in (x, w))
    return x, w


def convolved(case: Case, x: Array, w: Array) -> Array:
    rows, columns = (
        (s - k) // case.stride + 1 for s, k in zip(case.size, case.kernel, strict=True)
    )
    result = np.zeros((case.images, case.outputs, rows, columns))
    for y in range(case.kernel[0]):
        for z in range(case.kernel[1]):
            part = x[:, :, y:, z:][:, :, :: case.stride, :: case.stride][:, :, :rows, :columns]
            result += np.einsum("nchw,oc->nohw", part.astype(np.float64), w[:, y, z])
    return result


def spec_of(case: Case, numeric: NumericName, source: View, out: View, **how: Any) -> ProductSpec:
    _, _, rows, columns = out.shape
    is_merged = case.kernel[1] == 1 or source.strides[3] == case.inputs
    taps_x, run = (1, case.kernel[1] * case.inputs) if is_merged else (case.kernel[1], case.inputs)
    return ProductSpec(
        numeric=numeric, images=case.images, rows=rows, columns=columns, channels=case.outputs,
        taps_y=case.kernel[0], taps_x=taps_x, run=run,
        in_image=source.strides[0], in_row=source.strides[2] * case.stride,
        in_column=source.strides[3] * case.stride, in_tap_y=source.strides[2],
        in_tap_x=source.strides[3],
        output=Access(out.storage, (out.strides[0], out.strides[2], out.strides[3], 1)),
        operands=how.get("operands", ()), expression=how.get("expression", Operand(0)),
        tile=Tile(*case.tile),
    )  # fmt: skip


def packed(spec: ProductSpec, w: Array, lanes: int) -> View:
    flat = w.reshape(w.shape[0], spec.taps_y, spec.taps_x, spec.run)
    return weight("w", pack_weights(flat, NUMERICS[spec.numeric], spec.tile.vectors, lanes), "f32")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_format(case: Case, target: str) -> None:
    isa = isa_for(target)
    for numeric in numerics(target):
        memory = Memory()
        x, w = operands(case, numeric)
        wanted = convolved(case, x, w)
        source = memory.tensor("x", x, STORAGE[numeric], LAST)
        out = allocate("y", "f32", wanted.shape, LAST)
        spec = spec_of(case, numeric, source, out)
        spec = replace(spec, channel_blocks=spec.blocks(isa))
        step = Step(spec, (source, packed(spec, w, isa.lanes), out), (out,))
        memory.run([step], isa)
        got = memory.array(out).astype(np.float64)
        error = np.abs(got - wanted).max() / np.abs(wanted).max()
        # Integers are exact until they become floats of 24 bits.
        assert error < (6e-8 if STORAGE[numeric] == "u8" else 2e-6), numeric


@pytest.mark.parametrize("target", TARGETS)
def test_the_epilogue_reads_bias_residual_and_a_number_for_each_pixel(target: str) -> None:
    isa, case, memory = isa_for(target), CASES[1], Memory()
    x, w = operands(case, "f32")
    product = convolved(case, x, w)
    random = np.random.default_rng(5)
    bias = random.standard_normal((1, 64, 1, 1), dtype=np.float32)
    residual = random.standard_normal(product.shape, dtype=np.float32)
    pixel = random.standard_normal((2, 1, 4, 4), dtype=np.float32)
    views = [
        memory.tensor("b", bias), memory.tensor("r", residual, order=LAST),
        memory.tensor("p", pixel),
    ]  # fmt: skip
    source, out = memory.tensor("x", x, order=LAST), allocate("y", "bf16", product.shape, LAST)
    r = views[1].strides
    expression = apply("mul", apply("add", apply("add", Operand(0), Operand(1)), Operand(2)),
                       Operand(3))  # fmt: skip
    spec = spec_of(
        case, "f32", source, out, expression=expression,
        operands=(
            Access("f32", (0, 0, 0, 1)), Access("f32", (r[0], r[2], r[3], 1)),
            Access("f32", (16, 4, 1, 0)),
        ),
    )  # fmt: skip
    spec = replace(spec, channel_blocks=spec.blocks(isa))
    memory.run([Step(spec, (source, packed(spec, w, isa.lanes), out, *views), (out,))], isa)
    wanted = (product + bias + residual) * pixel
    got = memory.array(out).astype(np.float64)
    assert np.abs(got - wanted).max() / np.abs(wanted).max() < 2**-8


@settings(max_examples=60, deadline=None)
@given(
    channels=st.integers(1, 40), taps=st.integers(1, 3), run=st.integers(1, 9),
    vectors=st.integers(1, 4), numeric=st.sampled_from(sorted(NUMERICS)),
)  # fmt: skip
def test_weights_are_packed_block_by_block(
    channels: int, taps: int, run: int, vectors: int, numeric: NumericName
) -> None:
    lanes, group, parts = 8, NUMERICS[numeric].group, NUMERICS[numeric].parts
    weights = np.arange(channels * taps * run).reshape(channels, taps, 1, run) % 100 + 1
    flat = pack_weights(weights, NUMERICS[numeric], vectors, lanes)
    if numeric.startswith("bf16"):
        flat = flat.view(ml_dtypes.bfloat16).astype(np.float32)
    groups = -(-run // group)
    assert flat.size == taps * groups * group * -(-channels // lanes) * lanes
    in_block = vectors * lanes
    for channel in range(channels):
        block, rest = divmod(channel, in_block)
        width = min(in_block, -(-(channels - block * in_block) // lanes) * lanes)
        start = block * in_block * taps * groups * group
        for tap in range(taps):
            for k in range(run):
                # [tap][group][vector][part][lane][of part]
                vector, lane = divmod(rest, lanes)
                of_part, part = divmod(k % group, parts)
                at = start + (tap * groups + k // group) * width * group
                at += ((vector * parts + part) * lanes + lane) * (group // parts) + of_part
                assert flat[at] == weights[channel, tap, 0, k]
    assert np.count_nonzero(flat) == weights.size, "all else is zeros"
