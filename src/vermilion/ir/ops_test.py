from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest

from vermilion.ir.ops import OPERATORS, dimensions, elements, find_operator

Shape = tuple[int | str, ...]


def operations(
    op_type: str,
    inputs: list[Shape | None],
    output: Shape,
    domain: str = "",
    **attributes: Any,
) -> int:
    values = [
        None if shape is None else ir.Value(name=f"i{at}", shape=ir.Shape(shape))
        for at, shape in enumerate(inputs)
    ]
    node = ir.node(op_type, values, attributes, domain=domain)
    node.outputs[0].shape = ir.Shape(output)
    found = find_operator(node)
    assert found is not None
    return found.rule(node)


CONV = [(1, 3, 8, 8), (4, 3, 3, 3)]
TABLE: list[tuple[str, list[Shape | None], Shape, dict[str, Any], int]] = [
    # Products, one multiply-accumulate being two.
    ("Conv", CONV, (1, 4, 6, 6), {}, 2 * 144 * 27),
    ("Conv", [*CONV, (4,)], (1, 4, 6, 6), {}, 2 * 144 * 27 + 144),
    ("Conv", [*CONV, None], (1, 4, 6, 6), {}, 2 * 144 * 27),
    ("Conv", [(1, 8, 4, 4), (8, 1, 3, 3)], (1, 8, 4, 4), {"group": 8}, 2 * 128 * 9),
    ("ConvInteger", [*CONV, (), ()], (1, 4, 6, 6), {}, 2 * 144 * 27),
    (
        "QLinearConv",
        [CONV[0], (), (), CONV[1], (), (), (), (), (4,)],
        (1, 4, 6, 6),
        {},
        2 * 144 * 27 + 144,
    ),
    ("ConvTranspose", [(1, 3, 4, 4), (3, 5, 2, 2)], (1, 5, 8, 8), {}, 2 * 48 * 20),
    ("Gemm", [(2, 3), (3, 4), (4,)], (2, 4), {}, 2 * 8 * 3 + 8),
    ("Gemm", [(3, 2), (3, 4)], (2, 4), {"transA": 1}, 2 * 8 * 3),
    ("MatMul", [(5, 2, 3), (3, 4)], (5, 2, 4), {}, 2 * 40 * 3),
    ("MatMul", [(3,), (3,)], (), {}, 2 * 3),
    ("Einsum", [(2, 3), (3, 4)], (2, 4), {"equation": "ij,jk->ik"}, 2 * 24),
    ("Einsum", [(7, 2, 3), (7, 3, 4)], (7, 2, 4), {"equation": "bij, bjk -> bik"}, 2 * 168),
    ("LSTM", [(10, 1, 8), (1, 64, 8), (1, 64, 16)], (10, 1, 1, 16), {}, 10 * (128 * 24 + 16 * 9)),
    ("GRU", [(10, 1, 8), (1, 48, 8), (1, 48, 16)], (10, 1, 1, 16), {}, 10 * (96 * 24 + 16 * 10)),
    ("LSTM", [(10, 8), (64, 8)], (10, 16), {}, 0),
    (
        "Attention",
        [(1, 4, 10, 16), (1, 4, 12, 16), (1, 4, 12, 16)],
        (1, 4, 10, 16),
        {},
        4 * 10 * 12 * (4 * 16 + 5),
    ),
    (
        "Attention",
        [(1, 10, 64), (1, 12, 64)],
        (1, 10, 64),
        {"q_num_heads": 4},
        10 * 12 * (4 * 64 + 5 * 4),
    ),
    # Element by element: the output's size counts, also where an input was broadcast.
    ("Add", [(2, 1), (3,)], (2, 3), {}, 6),
    ("Relu", [()], (), {}, 1),
    ("Relu", [(0, 5)], (0, 5), {}, 0),
    ("Relu", [("n", 5)], ("n", 5), {}, 5),
    ("Sum", [(4,), (4,), (4,)], (4,), {}, 8),
    ("Max", [(4,)], (4,), {}, 0),
    ("Sigmoid", [(4,)], (4,), {}, 12),
    ("QuantizeLinear", [(4,), (), ()], (4,), {}, 12),
    ("DequantizeLinear", [(4,), ()], (4,), {}, 8),
    # Reductions go by the input, pools by the window.
    ("ReduceMean", [(2, 8)], (2, 1), {}, 16),
    ("GlobalAveragePool", [(1, 3, 7, 7)], (1, 3, 1, 1), {}, 147),
    ("MaxPool", [(1, 3, 8, 8)], (1, 3, 4, 4), {"kernel_shape": [2, 2]}, 48 * 4),
    ("Softmax", [(2, 5)], (2, 5), {}, 50),
    ("LRN", [(1, 4, 2, 2)], (1, 4, 2, 2), {"size": 5}, 16 * 13),
    # Movement is free, unless it computes.
    ("Transpose", [(2, 3)], (3, 2), {}, 0),
    ("Resize", [(1, 1, 4, 4)], (1, 1, 8, 8), {"mode": "nearest"}, 0),
    ("Resize", [(1, 1, 4, 4)], (1, 1, 8, 8), {"mode": "linear"}, 2 * 64 * 4),
    ("Resize", [(1, 1, 4, 4)], (1, 1, 4, 8), {"mode": "cubic"}, 2 * 32 * 4),
    ("Resize", [(1, 1, 4, 4)], (1, 1, 4, 4), {"mode": "linear"}, 0),
]


@pytest.mark.parametrize(
    ("op_type", "inputs", "output", "attributes", "expected"),
    TABLE,
    ids=[f"{at}-{row[0]}" for at, row in enumerate(TABLE)],
)
def test_operations_by_hand(
    op_type: str,
    inputs: list[Shape | None],
    output: Shape,
    attributes: dict[str, Any],
    expected: int,
) -> None:
    assert operations(op_type, inputs, output, **attributes) == expected


def test_a_nibble_product_goes_by_its_attribute() -> None:
    found = operations("MatMulNBits", [(1, 64), (32, 2, 16)], (1, 32), "com.microsoft", K=64)
    assert found == 2 * 32 * 64


def test_every_rule_survives_a_node_of_which_nothing_is_known() -> None:
    for row in OPERATORS.values():
        node = ir.node(row.name, [ir.Value(name="x")], domain=row.domain)
        assert row.rule(node) >= 0, row.name


def test_every_row_is_an_operator_that_exists() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    # A contrib operator that ONNX Runtime registers in the default domain.
    known.add("SimplifiedLayerNormalization")
    assert {row.name for row in OPERATORS.values() if row.domain == ""} <= known


def test_what_the_newest_opset_has_and_the_table_has_not() -> None:
    # Training losses, text, windows, pictures: none of it is in a network that is deployed here.
    schemas = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    rows = {row.name for row in OPERATORS.values()}
    network = {"Conv", "MatMul", "Gemm", "LSTM", "Attention", "Softmax", "Resize", "GridSample"}
    assert network <= rows
    assert len(schemas - rows) < 25, sorted(schemas - rows)


def test_the_standard_domain_has_two_spellings() -> None:
    assert find_operator(ir.node("Relu", [], domain="ai.onnx")) is OPERATORS["", "Relu"]
    assert find_operator(ir.node("Relu", [], domain="acme")) is None


def test_each_row_says_where_its_definition_is() -> None:
    assert OPERATORS["", "Conv"].specification.endswith("/onnx__Conv.html")
    assert OPERATORS["com.microsoft", "MatMulNBits"].specification.endswith(
        "#com.microsoft.MatMulNBits"
    )
    assert all(row.counting for row in OPERATORS.values())


def test_unknown_sizes_count_one() -> None:
    assert dimensions(ir.Value(name="v", shape=ir.Shape(["n", 3, None]))) == (1, 3, 1)
    assert elements(ir.Value(name="v")) == 1
    assert elements(None) == 0
