"""A product's weights in floats: both layouts of scales, zero points, odd sizes, plain floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from vermilion.errors import ModelError
from vermilion.llm.plugins.verify import weights_of

CODES = np.arange(3 * 2 * 32, dtype=np.uint8).reshape(3, 2, 32) % 16
SCALES = np.linspace(0.5, 1.5, 6, dtype=np.float32).reshape(3, 2)
PACKED = (CODES[..., 0::2] | (CODES[..., 1::2] << 4)).astype(np.uint8)


def node(*weights: NDArray[Any], depth: int = 64, op_type: str = "MatMulNBits") -> ir.Node:
    values = [ir.Value(name="x")]
    values += [ir.val(f"w{i}", const_value=ir.tensor(array)) for i, array in enumerate(weights)]
    sizes = {"K": depth, "N": 3, "bits": 4, "block_size": 32} if op_type == "MatMulNBits" else {}
    return ir.node(op_type, values, sizes, name="product")


def expected(zeros: NDArray[Any] | float = 8.0, depth: int = 64) -> NDArray[np.float32]:
    floats = (CODES.astype(np.float32) - zeros) * SCALES[..., None]
    return floats.reshape(3, 64)[:, :depth]


@pytest.mark.parametrize("scales", [SCALES, SCALES.reshape(-1), SCALES.astype(np.float16)])
def test_scales_by_rows_or_all_in_one(scales: NDArray[Any]) -> None:
    found = weights_of(node(PACKED, scales))
    assert np.allclose(found, expected(), rtol=1e-3)
    assert (found.shape, found.dtype) == ((3, 64), np.float32)


def test_a_depth_that_ends_inside_a_block() -> None:
    assert np.array_equal(weights_of(node(PACKED, SCALES, depth=50)), expected(depth=50))


def test_zero_points_packed_and_plain() -> None:
    zeros = np.array([[1, 15], [0, 7], [8, 3]], np.uint8)
    packed = (zeros[:, :1] | (zeros[:, 1:] << 4)).astype(np.uint8)
    wanted = expected(zeros[..., None].astype(np.float32))
    assert np.array_equal(weights_of(node(PACKED, SCALES, packed)), wanted)
    plain = zeros.astype(np.float32)
    assert np.array_equal(weights_of(node(PACKED, SCALES, plain)), wanted)


def test_plain_floats() -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert np.array_equal(weights_of(node(matrix, op_type="MatMul")), matrix.T)


def test_weights_of_another_shape_and_none() -> None:
    with pytest.raises(ModelError, match="not of K 64, N 3"):
        weights_of(node(PACKED[:, :1], SCALES))
    with pytest.raises(ModelError, match="no stored weights"):
        weights_of(ir.node("Add", [ir.Value(name="a"), ir.Value(name="b")]))
