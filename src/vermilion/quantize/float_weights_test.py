"""Weights in 16 bits: numbers of the format, and errors that cancel on samples not seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from vermilion.ir.execute import open_session, run_session
from vermilion.quantize.algorithms.compensate import floats_compensated
from vermilion.quantize.blocks import round_to
from vermilion.quantize.options import Rounding
from vermilion.quantize.quantize import quantize_model
from vermilion.quantize.result import Quantized

Float32 = NDArray[np.float32]
FORMATS = [("bf16", 8), ("fp16", 11)]


@pytest.mark.parametrize(("number", "bits"), FORMATS)
def test_rows_are_numbers_of_the_format_and_do_less_damage(number: str, bits: int) -> None:
    random = np.random.default_rng(0)
    weights = random.standard_normal((2, 70, 24)).astype(np.float32)
    rows = (random.standard_normal((2, 500, 6)) @ random.standard_normal((2, 6, 24))).astype(
        np.float32
    )
    rows[..., -1] = 1.0
    gram = rows.transpose(0, 2, 1) @ rows / np.float32(rows.shape[1])
    found = floats_compensated(weights, gram, bits)
    near = round_to(weights, number, 0)
    assert np.array_equal(found, round_to(found, number, 0))
    assert np.array_equal(found[..., -1], near[..., -1]), "the bias is rounded to the nearest"

    def damage(made: Float32) -> float:
        off = np.asarray(made - weights, np.float64)
        return float(np.einsum("gok,gkl,gol->", off, gram, off))

    assert damage(found) < 0.3 * damage(near)


def normed() -> ir.Model:
    """LayerNormalization → MatMul + bias → Relu → MatMul + bias, for 12 tokens of 32 numbers."""
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17]>
        g (float[1,12,32] x) => (float[1,12,8] y) {
        n = LayerNormalization <axis = -1> (x, scale, shift)
        h = MatMul(n, w)
        k = Add(b, h)
        r = Relu(k)
        o = MatMul(r, v)
        y = Add(o, c) }""")
    random = np.random.default_rng(3)
    shapes = {"scale": (32,), "shift": (32,), "w": (32, 48), "b": (48,), "v": (48, 8), "c": (8,)}
    for name, shape in shapes.items():
        array = {"scale": 1.0, "shift": 1.0}.get(name, 0.0) + random.standard_normal(shape) / 4.0
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(array), name))
    return ir.from_proto(proto)


def drawn(count: int, seed: int) -> list[dict[str, Float32]]:
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((1, 12, 32)).astype(np.float32)} for _ in range(count)]


def quantized(model: ir.Model, number: str, rounding: Rounding, **more: Sequence[str]) -> Quantized:
    return quantize_model(model, drawn(16, 1), scheme=number, rounding=rounding, **more)


def noise(made: ir.Model, model: ir.Model) -> float:
    """Return the mean square error of the outputs, averaged over samples: what stays the same."""
    ours, theirs = open_session(made), open_session(model)
    off = [run_session(ours, one)["y"] - run_session(theirs, one)["y"] for one in drawn(200, 2)]
    return float(np.square(np.mean(off, axis=0)).mean())


@pytest.mark.parametrize("number", ["bf16", "fp16"])
def test_what_weights_biases_and_normalizations_are_off_by_cancels(number: str) -> None:
    model = normed()
    near, made = (quantized(model, number, r).model for r in ("nearest", "compensated"))
    assert noise(made, model) < 0.4 * noise(near, model)


def test_nothing_is_rounded_between_a_product_and_its_bias() -> None:
    made = quantized(normed(), "bf16", "compensated").model
    kinds = [node.op_type for node in made.graph]
    assert kinds.count("Gemm") == 2
    assert "MatMul" not in kinds
    assert [str(v.name) for v in made.graph.outputs] == ["y"]


@pytest.mark.parametrize("pattern", ["k", ":Relu"])
def test_what_is_named_is_left_as_it_is(pattern: str) -> None:
    """By its own name, or by a kind, which other nodes then keep as well."""
    model = normed()
    for node in model.graph:
        node.name = str(node.outputs[0].name)
    made = quantized(model, "bf16", "compensated", exclude=(pattern,)).model
    assert sum(node.op_type == "Add" for node in made.graph) == (1 if pattern == "k" else 2)


def test_one_sample_is_enough() -> None:
    done = quantize_model(normed(), drawn(1, 1), scheme="bf16")
    assert done.samples == 1
    assert done.outputs[0].sqnr_db > 40.0
