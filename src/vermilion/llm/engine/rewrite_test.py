"""Which operations of a decoder become one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir
import pytest

from small_decoders import Options, decoder_model
from vermilion.codegen.emit.decoder.activation_layout import ActivationKind
from vermilion.codegen.emit.decoder.panel_product import PanelProductSpec
from vermilion.codegen.tensor import Buffer
from vermilion.llm.engine.description import Attention, Operation, Product, Rows
from vermilion.llm.engine.lower import lower
from vermilion.llm.engine.lowering import Lowered, PackedMatrix, Shape, Weighed
from vermilion.llm.engine.read_graph import read_graph
from vermilion.llm.engine.rewrite import cut_at_last_attention, join_products


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


# Columns of queries, of keys and of values.
WIDTHS = [64, 32, 32]


def described(*, is_joined: bool) -> list[Operation]:
    operations = read_graph(ir.from_proto(decoder_model(Options(is_split=not is_joined)))).body
    return list(join_products(operations) if is_joined else operations)


def last_attention(operations: Sequence[Operation]) -> Attention:
    return [one for one in operations if isinstance(one, Attention)][-1]


def columns(operations: Sequence[Operation], *rows: Rows) -> list[int]:
    """Return the columns of the products that make some rows, each product once."""
    wanted = {one.buffer for one in rows}
    makers = [one for one in operations if isinstance(one, Product) and one.output in wanted]
    return [one.columns.count if one.columns else one.matrix.columns for one in makers]


@pytest.mark.parametrize("is_joined", [True, False])
def test_queries_are_computed_for_asked_for_positions_alone(is_joined: bool) -> None:
    operations = described(is_joined=is_joined)
    halves = cut_at_last_attention(operations)
    keys, queries = last_attention(halves.before), last_attention(halves.after)
    assert (keys.part, queries.part) == ("keys", "queries")
    assert columns(halves.after, queries.query) == WIDTHS[:1]
    apart = columns(halves.before, keys.key, keys.value)
    assert apart == ([sum(WIDTHS[1:])] if is_joined else WIDTHS[1:])
    whole = last_attention(operations).query.buffer
    assert whole not in {one.output for one in halves.before if isinstance(one, Product)}


def test_columns_that_do_not_lie_apart_are_computed_twice() -> None:
    operations = described(is_joined=True)
    attention = last_attention(operations)
    keys, queries = attention.key, attention.query
    mixed = replace(
        attention, query=replace(queries, offset=keys.width), key=replace(keys, offset=0)
    )
    operations[operations.index(attention)] = mixed
    halves = cut_at_last_attention(operations)
    for half in (halves.before, halves.after):
        assert columns(half, mixed.query) == [sum(WIDTHS)]


def test_what_goes_from_half_to_half_is_one_buffer_of_rows() -> None:
    operations = described(is_joined=True)
    halves = cut_at_last_attention(operations)
    assert len(halves.crossing) == 1
    assert halves.crossing[0] not in {one.output for one in halves.after}
