"""Which products of the last layer each half of a decoder computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir
import pytest

from small_decoders import Options, decoder_model
from vermilion.llm.engine.cut import cut_at_last_attention
from vermilion.llm.engine.description import Attention, Operation, Product, Rows
from vermilion.llm.engine.join import join_products
from vermilion.llm.engine.read_graph import read_graph

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
