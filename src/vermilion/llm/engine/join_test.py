"""Which operations of a decoder become one step."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir
import pytest

from small_decoders import Options, decoder_model
from vermilion.codegen.emit.decoder.activation_layout import ActivationKind
from vermilion.codegen.emit.decoder.panel_product import PanelProductSpec
from vermilion.codegen.tensor import Buffer
from vermilion.llm.engine.description import Product
from vermilion.llm.engine.join import join_products
from vermilion.llm.engine.lower import lower
from vermilion.llm.engine.lowering import Lowered, PackedMatrix, Shape, Weighed
from vermilion.llm.engine.read_graph import read_graph


def lowered(options: Options, codes: ActivationKind, *, is_single: bool = False) -> Lowered:
    description = read_graph(ir.from_proto(decoder_model(options)))
    operations = join_products(description.operations)
    forms = {one.output: one.matrix.form() for one in operations if isinstance(one, Product)}
    matrices = {
        output: PackedMatrix(form, Buffer(output, form.size_bytes, "input"))
        for output, form in forms.items()
    }
    shape = Shape(16 if is_single else 64, codes, "f32", "bf16", 1, is_single)
    first = {description.first: description.embedding.width}
    return lower(Weighed(operations, matrices), shape, first, [operations[-1].output])


def gates(found: Lowered) -> Counter[str]:
    """Count the gates that are steps, and those at the end of a product."""
    specs = [step.spec for step in found.steps]
    return Counter(
        "joined" if isinstance(spec, PanelProductSpec) else "apart"
        for spec in specs
        if getattr(spec, "gate", None) or getattr(spec, "source", "") == "silu"
    )


@pytest.mark.parametrize("codes", ["bf16", "bfp16", "f32"])
def test_a_gate_is_the_end_of_its_product(codes: ActivationKind) -> None:
    assert gates(lowered(Options(), codes)) == {"joined": 2}  # of two layers


def test_whole_numbers_and_single_rows_are_gated_apart() -> None:
    assert gates(lowered(Options(), "int8")) == {"apart": 2}
    assert gates(lowered(Options(bits=32), "f32", is_single=True)) == {"apart": 2}
