from __future__ import annotations

import onnx_ir as ir

from vermilion.ir.opset import static_shape
from vermilion.ir.symbolic import (
    Examples,
    examples,
    is_known,
    is_one,
    larger,
    same,
    shape_of_sizes,
    strict_comparisons,
    symbol,
    typical,
)


def test_shapes_keep_what_their_sizes_follow_from() -> None:
    n = symbol("n", 7)
    value = ir.Value(name="x")
    with examples(Examples({}, {})):
        value.shape = shape_of_sizes((n, 3, n * 4))
        shape = static_shape(value)
        assert shape == (7, 3, 28)
        assert [str(size) for size in value.shape] == ["n", "3", "4*n"]
        assert not is_known(shape[2])
    assert static_shape(value) is None  # nobody says what `n` is


def test_comparisons_that_other_sizes_may_contradict_are_noted() -> None:
    n, s = symbol("n", 7), symbol("s", 131)
    current = Examples({}, {})
    with examples(current):
        assert n != 1
        assert n >= 1
        assert s * n > 0
        assert not current.guards  # right at any size, or for 1 as well
        assert s > n
        assert s != 128
        assert n % 2
    assert sorted(current.guards) == ["-1*n+s 1", "-128+s None", "-2*(n)//(2)+n None"]


def test_what_decides_about_a_size_notes_comparisons_with_1() -> None:
    current, n = Examples({}, {}), symbol("n", 7)
    with examples(current):
        with strict_comparisons():
            assert n != 1
        assert n >= 2
    assert list(current.guards) == ["-1+n None"]


def test_choices_are_made_by_typical_sizes() -> None:
    n = symbol("n", 7)
    assert typical(n * 3) == 384
    assert typical(5) == 5
    assert larger(1, n) is n
    assert same(n + n, 2 * n)
    assert not is_one(n)
