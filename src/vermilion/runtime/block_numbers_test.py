from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import models
from vermilion.api import compile_model
from vermilion.errors import OptionError
from vermilion.hardware.targets.find import find_target
from vermilion.inspection import inspect_model
from vermilion.ir.load import load_model
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.quark import DOMAIN, OPERATOR
from vermilion.quantize.quantize import quantize_model
from vermilion.runtime.block_numbers import BlockNumbers, recognise, settled_numbers

STRIX, PHOENIX = find_target("strix"), find_target("phoenix")


@pytest.fixture(scope="module")
def quantized() -> ir.Model:
    """A network with two convolutions and a fully connected layer, as `quantize` writes it."""
    data = np.random.default_rng(0).standard_normal((2, 1, 3, 16, 16), dtype=np.float32)
    done = quantize_model(models.small_cnn(), [{"input": x} for x in data], scheme="bfp16")
    return done.model


def with_quark_s_operators(path: Path) -> Path:
    """Write a network as Quark does: its operator before each input of a product."""
    ir.save(models.small_cnn(), path)
    proto = onnx.load(path)
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        for place, name in enumerate(node.input):
            if node.op_type in ("Conv", "Gemm"):
                made = f"{name}_{place}_{node.name}_rounded"
                axis = 0 if place == 2 else 1
                nodes.append(
                    onnx.helper.make_node(
                        OPERATOR, [name], [made], domain=DOMAIN, axis=axis, bit_width=16,
                        block_size=8, rounding_mode=2, bfp_method="to_bfp",
                    )
                )  # fmt: skip
                node.input[place] = made
        nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    onnx.save(proto, path)
    return path


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


PLAIN = ["Conv", "Relu", "MaxPool", "Conv", "Relu", "GlobalAveragePool", "Flatten", "Gemm"]


def test_what_quantize_writes_is_recognised(quantized: ir.Model) -> None:
    simplified = simplify(quantized).model
    assert len(operators(simplified)) > 60
    found = recognise(simplified)
    assert isinstance(found, BlockNumbers)
    assert (found.groups, operators(found.model)) == (3, PLAIN)
    assert len(operators(simplified)) > 60, "what was given stays as it is"


def test_what_quark_writes_is_recognised(tmp_path: Path) -> None:
    simplified = simplify(load_model(with_quark_s_operators(tmp_path / "m.onnx"))).model
    found = recognise(simplified)
    assert isinstance(found, BlockNumbers)
    assert operators(found.model) == PLAIN


def test_it_is_placed_whole_computed_in_blocks_and_proven(
    quantized: ir.Model, tmp_path: Path
) -> None:
    compiled = compile_model(quantized, target="strix", cache_dir=tmp_path)
    summary = compiled.report.summary
    assert (summary.operators, summary.offloaded_operators) == (8, 8)
    (row,) = compiled.report.verification
    assert row["modelled_in"] == "bfp16"
    assert float(str(row["cosine"])) > 0.999
    assert "the model is BFP16" in compiled.report.notes[0]
    # What is packed is the file's own graph: whoever compiles again finds the rounding in it.
    assert len(load_model(compiled.artifact / "model.onnx").graph) > 60
    inspected = inspect_model(quantized, target="strix").prediction
    assert inspected is not None
    assert inspected.summary.offloaded_operators == 8
    x = np.random.default_rng(1).standard_normal((1, 3, 16, 16), dtype=np.float32)
    (found,) = compiled.session().run(None, {"input": x})
    (right,) = compile_model(quantized, cache_dir=tmp_path).session().run(None, {"input": x})
    assert np.allclose(found, right, atol=0.02 * np.abs(right).max())


def test_another_precision_is_refused(quantized: ir.Model, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the model is bfp16, which strix computes as it is"):
        compile_model(quantized, target="strix", precision="bf16", cache_dir=tmp_path)
    assert compile_model(quantized, target="strix", precision="bfp16", cache_dir=tmp_path)


def test_a_chip_without_such_numbers_takes_nothing(quantized: ir.Model) -> None:
    simplified = simplify(quantized).model
    assert settled_numbers(simplified, PHOENIX, "auto") == (simplified, "auto", ())
    assert settled_numbers(simplified, find_target("cpu"), "auto") == (simplified, "auto", ())


CHANGES = {
    "another number of bits": ("unit", 2.0**-5),
    "another largest": ("high", 63.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_rounding_to_something_else_is_none(change: str, quantized: ir.Model) -> None:
    name, number = CHANGES[change]
    simplified = simplify(quantized).model
    for value in simplified.graph.initializers.values():
        if value.name == name:
            value.const_value = ir.tensor(np.array(number, np.float32), name=name)
    assert recognise(simplified) == ""


def test_products_that_are_not_rounded_keep_the_file_as_it_is(quantized: ir.Model) -> None:
    simplified = simplify(quantized).model
    weight = next(
        node.inputs[1] for node in simplified.graph if node.op_type == "Gemm" and node.inputs[1]
    )
    assert weight.const_value is not None
    numbers = weight.const_value.numpy() * np.float32(1.001)
    weight.const_value = ir.tensor(numbers, name=weight.name)
    assert recognise(simplified) == "1 of 3 products are not in BFP16"
    kept, precision, notes = settled_numbers(simplified, STRIX, "auto")
    assert (kept, precision) == (simplified, "auto")
    assert "which stay: 1 of 3" in notes[0]


def test_a_float_model_is_left_alone() -> None:
    assert recognise(simplify(models.small_cnn()).model) == ""
