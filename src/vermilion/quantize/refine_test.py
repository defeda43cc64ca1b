from __future__ import annotations

import pytest

from vermilion.quantize.plan import Step
from vermilion.quantize.refine import refine


def step(op_type: str, *reads: str, bias: str | None = None, activation: str = "") -> Step:
    return Step(op_type.lower(), op_type, reads, bias, "y", activation)


def test_nothing_moves_within_the_limits() -> None:
    start = {"a": 5, "b": 7, "y": 4}
    done = refine([step("Add", "a", "b")], start)
    assert (done.positions, done.moved, done.unmet) == (start, 0, ())


@pytest.mark.parametrize("op_type", ["Add", "Sub"])
def test_finer_operand_of_a_sum_comes_within_seven(op_type: str) -> None:
    done = refine([step(op_type, "a", "b")], {"a": 2, "b": 12, "y": 2})
    assert done.positions == {"a": 2, "b": 9, "y": 2}
    assert done.moved == 1


@pytest.mark.parametrize(
    ("op_type", "start", "end"),
    [
        ("Add", {"a": 2, "b": 3, "y": 12}, {"a": 2, "b": 3, "y": 9}),
        ("Add", {"a": 30, "b": 31, "y": 2}, {"a": 27, "b": 31, "y": 2}),
        ("Mul", {"a": 2, "b": 3, "y": 12}, {"a": 2, "b": 3, "y": 5}),
        ("Mul", {"a": 20, "b": 25, "y": 5}, {"a": 20, "b": 17, "y": 5}),
    ],
)
def test_shift_of_a_result(op_type: str, start: dict[str, int], end: dict[str, int]) -> None:
    assert refine([step(op_type, "a", "b")], start).positions == end


def test_square_is_lowered_once_for_both_operands() -> None:
    done = refine([step("Mul", "a", "a")], {"a": 25, "y": 5})
    assert done.positions == {"a": 18, "y": 5}


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ({"x": 5, "w": 18, "y": 5}, {"x": 5, "w": 16, "y": 5}),  # cut 18: weight is coarser
        ({"x": 1, "w": 2, "y": 7}, {"x": 1, "w": 2, "y": 3}),  # cut -4: result, not weight
    ],
)
@pytest.mark.parametrize("op_type", ["Conv", "Gemm"])
def test_cut_of_a_product(op_type: str, start: dict[str, int], end: dict[str, int]) -> None:
    assert refine([step(op_type, "x", "w")], start).positions == end


def test_large_bias_lowers_the_weight_and_is_not_clipped() -> None:
    start = {"x": 5, "w": 18, "b": 5, "y": 5}
    done = refine([step("Conv", "x", "w", bias="b")], start)
    assert done.positions == {"x": 5, "w": 15, "b": 5, "y": 5}
    assert done.unmet == ()


def test_fine_bias_comes_within_the_accumulator() -> None:
    # cut 2, so a bias may be up to 14 positions finer than the product.
    start = {"x": 2, "w": 3, "b": 30, "y": 3}
    assert refine([step("Conv", "x", "w", bias="b")], start).positions["b"] == 19


def test_leaky_relu_leaves_no_room_below_the_product() -> None:
    start = {"x": 2, "w": 3, "b": 30, "y": 3}
    steps = [step("Conv", "x", "w", bias="b", activation="LeakyRelu")]
    assert refine(steps, start).positions["b"] == 5


def test_move_travels_along_a_chain() -> None:
    steps = [
        Step("first", "Mul", ("a", "b"), None, "c"),
        Step("second", "Add", ("c", "d"), None, "e"),
    ]
    done = refine(steps, {"a": 1, "b": 0, "c": 9, "d": 20, "e": 20})
    assert done.positions == {"a": 1, "b": 0, "c": 1, "d": 8, "e": 8}
    assert done.unmet == ()


def test_positions_never_rise() -> None:
    start = {"x": -9, "w": 30, "b": -3, "y": 28}
    done = refine([step("Conv", "x", "w", bias="b")], start)
    assert all(done.positions[name] <= start[name] for name in start)


def test_zero_tensors_bind_nothing_and_follow_their_neighbours() -> None:
    steps = [
        step("Conv", "x", "w", bias="zero_bias"),
        Step("add", "Add", ("y", "zeros"), None, "z"),
    ]
    done = refine(steps, {"x": 6, "w": 9, "y": 3, "z": 3})
    assert done.moved == 0
    assert done.positions["zero_bias"] == 15
    assert done.positions["zeros"] == 3
    assert done.unmet == ()


def test_limits_that_chase_each_other_are_named() -> None:
    # y shares its scale with an operand that another operand multiplies by more than one.
    done = refine([Step("loop", "Mul", ("y", "b"), None, "y")], {"y": 4, "b": -2})
    assert done.unmet == ("loop",)
