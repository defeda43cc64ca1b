"""Which elementwise nodes are computed together, and with which product."""

from __future__ import annotations

from typing import Any

from float_graphs import families
from native_text import normal, read
from vermilion.codegen.lower.elementwise import extent_of
from vermilion.codegen.lower.groups import find_groups
from vermilion.codegen.lower.rules import is_elementwise, is_product

W = {"w": normal(8, 8, seed=1), "v": normal(8, 8, seed=2)}
DECLARED = "float[4,8] x, float[8,8] w, float[8,8] v"


def groups(text: str) -> list[tuple[str, set[str], str | None]]:
    """Return (root, members, anchor) of each group."""
    model = read(f"({DECLARED}) => {text}", **W)
    found: Any = find_groups(model.graph, is_elementwise, is_product, extent_of)
    unique = {id(group): group for group in found.values()}
    return sorted(
        (
            g.root.op_type, {m.op_type for m in g.members},
            None if g.anchor is None else g.anchor.op_type,
        )
        for g in unique.values()
    )  # fmt: skip


def test_what_follows_a_product_is_its_epilogue() -> None:
    assert groups("(float[4,8] y) { p = MatMul(x, w) a = Tanh(p) y = Add(a, x) }") == [
        ("Add", {"MatMul", "Tanh", "Add"}, "MatMul")
    ]


def test_a_result_that_two_groups_read_ends_its_group() -> None:
    text = "(float[4,8] y, float[4,8] z) { a = Tanh(x) y = Neg(a) z = Exp(a) }"
    assert groups(text) == [
        ("Exp", {"Exp"}, None), ("Neg", {"Neg"}, None), ("Tanh", {"Tanh"}, None),
    ]  # fmt: skip


def test_a_result_that_one_group_reads_twice_stays_inside() -> None:
    text = "(float[4,8] y) { a = Tanh(x) b = Neg(a) y = Mul(a, b) }"
    assert groups(text) == [("Mul", {"Tanh", "Neg", "Mul"}, None)]


def test_of_two_products_one_is_written_first() -> None:
    found = groups("(float[4,8] y) { p = MatMul(x, w) q = MatMul(x, v) y = Add(p, q) }")
    assert len(found) == 2
    assert sorted(len(members) for _, members, _ in found) == [1, 2]


def test_a_product_does_not_read_inside_its_own_group() -> None:
    found = groups("(float[4,8] y) { a = Tanh(x) p = MatMul(a, w) y = Add(p, a) }")
    assert ("Tanh", {"Tanh"}, None) in found


def test_another_shape_is_another_group() -> None:
    found = groups("(float[4,8] y) { n = ReduceMax<axes = [1]>(x) m = Neg(n) y = Sub(x, m) }")
    assert ("Neg", {"Neg"}, None) in found


def test_a_chain_is_one_kernel() -> None:
    model = read(
        f"({DECLARED}) => (float[4,8] y) {{ a = Exp(x) b = Add(a, x) c = Sqrt(b) y = Div(c, a) }}",
        **W,
    )
    assert families(model) == ["map"]
