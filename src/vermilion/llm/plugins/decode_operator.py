"""Decoding's product: one row times weights in 4 or 8 bits, by the kernel that the engine uses.

The engine stores scales in float16 where that loses nothing, in float32 otherwise; which of both
is known from the weights alone, so an object has the code for both.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.block_product import BlockProductSpec
from vermilion.codegen.emit.decoder.control import CONTROL_WORDS, LENGTH, ROWS
from vermilion.codegen.emit.decoder.weights import LANES, PANEL, BlockWeights
from vermilion.codegen.kernel import Step, function_name
from vermilion.codegen.tensor import View, allocate
from vermilion.llm.engine.read_weights import read_matrix
from vermilion.llm.plugins.identity import Identity
from vermilion.llm.plugins.kernels import Kernels, empty

Float32 = NDArray[np.float32]
Scale = Literal["f16", "f32"]

_SCALES: tuple[Scale, Scale] = ("f16", "f32")
_BITS: dict[int, Literal[4, 8]] = {4: 4, 8: 8}


def why_not(shape: dict[str, int]) -> str:
    """Say what keeps a product from being compiled for decoding, empty if nothing does."""
    if shape["bits"] not in _BITS or shape["block"] % LANES or shape["K"] % LANES:
        return f"{shape['bits']} bits in blocks of {shape['block']} along {shape['K']}"
    return ""


def decode_spec(identity: Identity, scale: Scale) -> BlockProductSpec:
    """Return the kernel of one row for scales of a type."""
    shape = identity.shape
    weights = BlockWeights(
        shape["K"], shape["N"], _BITS[shape["bits"]], shape["block"], scale,
        has_zeros="zero_points" in shape,
    )  # fmt: skip
    rows = ActivationLayout("int8", shape["K"], shape["block"], weights.zero)
    return BlockProductSpec(weights, rows, weights.panels * PANEL, 1, has_bias=False)


def decode_steps(identity: Identity) -> tuple[tuple[Step, ...], tuple[View, ...], View]:
    """Return a step for each type of scale, with what they read and write."""
    specs = [decode_spec(identity, scale) for scale in _SCALES]
    form = specs[0].rows
    control = allocate("control", "i64", (CONTROL_WORDS,), place="input")
    row = allocate("row", "s8", (form.row_bytes,), place="input")
    size = max(spec.weights.size_bytes for spec in specs)
    weights = allocate("weights", "u8", (size,), place="input")
    out = allocate("out", "f32", (specs[0].out_row,), place="output")
    arguments = (control, row, weights, out)
    steps = tuple(Step(spec, arguments, (out,), ("decode",)) for spec in specs)
    return steps, (control, row, weights), out


class DecodeOperator:
    """A product for one row, loaded."""

    def __init__(self, identity: Identity, data: bytes) -> None:
        """Load the object code.

        Raises: DeviceError for a chip that this machine is not; ArtifactError for code that is
        not this operator's.
        """
        self._identity = identity
        self._names = {scale: function_name(decode_spec(identity, scale)) for scale in _SCALES}
        self._kernels = Kernels(identity, data, self._names.values())

    def multiply(self, row: Float32, node: ir.Node) -> Float32:
        """Return one row (K,) times the weights of a graph's product: (N,)."""
        matrix, _ = read_matrix(node, self._identity.shape["K"])
        form = matrix.form()
        assert isinstance(form, BlockWeights), "decoding multiplies codes"
        assert form.scale in ("f16", "f32"), "a graph's scales are floats"
        spec = decode_spec(self._identity, form.scale)
        weights = empty((form.size_bytes,), np.uint8)
        matrix.pack(form, weights)
        control = np.zeros(CONTROL_WORDS, np.int64)
        control[[ROWS, LENGTH]] = 1
        out: Float32 = empty((spec.out_row,), np.float32)
        arguments = (control, _prepared(row, spec.rows), weights, out)
        self._kernels.call(self._names[form.scale], arguments, spec.units)
        return out[: self._identity.shape["N"]]


def _prepared(row: Float32, form: ActivationLayout) -> NDArray[np.uint8]:
    """Write a row as the engine's own kernel does: signed bytes, scales, and what is taken off."""
    blocks = np.zeros((form.blocks, form.block), np.float32)
    blocks.reshape(-1)[: row.size] = row
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    codes = np.rint(np.divide(blocks * 127, largest, where=largest > 0, out=np.zeros_like(blocks)))
    made = empty((form.row_bytes,), np.uint8)
    size = 4 * form.blocks
    made[: codes.size] = codes.astype(np.int8).view(np.uint8).reshape(-1)
    made[form.scales_at :][:size] = (largest[:, 0] / 127).astype(np.float32).view(np.uint8)
    taken = (-form.zero * codes.sum(axis=1)).astype(np.int32)
    made[form.zeros_at :][:size] = taken.view(np.uint8)
    return made
