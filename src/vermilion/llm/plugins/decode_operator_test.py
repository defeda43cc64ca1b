"""Decoding's product against float64 on the graph's own weights: bits, blocks, zero points."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.errors import ArtifactError
from vermilion.llm.plugins.compile_plugin import compile_operator
from vermilion.llm.plugins.decode_operator import DecodeOperator, why_not
from vermilion.llm.plugins.identity import DECODE, Identity
from vermilion.llm.plugins.verify import weights_of

SHAPE = {"K": 64, "N": 48, "bits": 4, "block": 32}
# A row is rounded to 8 bits in each block: a part in 254 of its largest number, half at random.
ROUNDED = 0.01


def node_of(shape: dict[str, int], scale: type = np.float32, spread: float = 1.0) -> ir.Node:
    """Return a product of random codes, as the model builder writes it."""
    random = np.random.default_rng(0)
    depth, columns, bits, block = (shape[name] for name in ("K", "N", "bits", "block"))
    blocks = -(-depth // block)
    tensors = [
        random.integers(0, 256, (columns, blocks, block * bits // 8), dtype=np.uint8),
        (spread * random.uniform(0.5, 1, (columns, blocks))).astype(scale),
    ]
    if "zero_points" in shape:
        tensors.append(random.integers(0, 256, (columns, -(-blocks * bits // 8)), dtype=np.uint8))
    values = [ir.Value(name="x", shape=ir.Shape([1, depth]))]
    values += [ir.val(f"w{i}", const_value=ir.tensor(a)) for i, a in enumerate(tensors)]
    sizes = {"K": depth, "N": columns, "bits": bits, "block_size": block}
    return ir.node("MatMulNBits", values, sizes, domain="com.microsoft", name="product")


@pytest.mark.parametrize(
    ("shape", "scale", "spread"),
    [
        (SHAPE, np.float32, 1.0),
        (SHAPE, np.float32, 1e-9),  # scales that float16 does not hold
        (SHAPE, np.float16, 1.0),
        ({**SHAPE, "block": 64, "K": 192}, np.float32, 1.0),
        ({**SHAPE, "bits": 8, "N": 33}, np.float32, 1.0),
        ({**SHAPE, "zero_points": 1, "N": 31}, np.float32, 1.0),
    ],
)
def test_one_row_times_codes(shape: dict[str, int], scale: type, spread: float) -> None:
    assert why_not(shape) == ""
    identity = Identity("MatMulNBits", shape, 1, DECODE, "cpu")
    node = node_of(shape, scale, spread)
    row = np.random.default_rng(1).standard_normal(shape["K"], dtype=np.float32)
    row[:32] = 0
    got = DecodeOperator(identity, compile_operator(identity)).multiply(row, node)
    wanted = weights_of(node).astype(np.float64) @ row
    error = np.sqrt(np.mean((got - wanted) ** 2)) / np.sqrt(np.mean(wanted**2))
    assert got.shape == (shape["N"],)
    assert error < ROUNDED


def test_what_is_not_compiled_for_decoding_says_why() -> None:
    assert why_not(SHAPE) == ""
    assert "2 bits in blocks of 32" in why_not({**SHAPE, "bits": 2})
    assert "along 72" in why_not({**SHAPE, "K": 72})


def test_code_of_another_operator_is_refused() -> None:
    identity = Identity("MatMulNBits", SHAPE, 1, DECODE, "cpu")
    data = compile_operator(identity)
    other = Identity("MatMulNBits", {**SHAPE, "N": 80}, 1, DECODE, "cpu")
    with pytest.raises(ArtifactError, match="not that of MatMulNBits K 64 N 80"):
        DecodeOperator(other, data)
