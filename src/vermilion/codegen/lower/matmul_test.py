"""MatMul and Gemm run natively and equal ONNX Runtime, over shapes, layouts and formats."""

from __future__ import annotations

import numpy as np
import pytest

from float_graphs import TOLERANCE, WAYS, Array, error_of, families, graph, node, run_native, steps
from vermilion.codegen.emit.matmul import MatmulSpec
from vermilion.codegen.isa import isa_of
from vermilion.codegen.lower.matmul_step import choose_patch
from vermilion.hardware.targets.find import find_target

SHAPES = (
    ((5, 7), (7, 9)),
    ((128, 64), (64, 128)),
    ((2, 3, 17, 33), (2, 3, 33, 50)),
    ((3, 1, 5, 8), (2, 8, 20)),  # both sides repeat
    ((7,), (7, 9)),
    ((4, 7), (7,)),
    ((7,), (7,)),
    ((2, 5, 7), (1, 7, 30)),
    ((2, 1, 7), (2, 7, 30)),  # one row each, and a right side of its own
    ((1, 1, 300), (300, 500)),
    ((6, 1), (1, 40)),
    ((1, 65), (65, 1)),
    ((3, 1100), (1100, 20)),  # several runs of the depth, and an odd number of pairs
)


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("way", WAYS[:3], ids="-".join)
@pytest.mark.parametrize("is_constant", [False, True], ids=["activations", "weights"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], is_constant: bool, way: tuple[str, str]
) -> None:
    random = np.random.default_rng(1)
    a, b = (normal(random, shape) for shape in shapes)
    inputs, constants = ({"a": a}, {"b": b}) if is_constant else ({"a": a, "b": b}, {})
    model = graph([node("MatMul", "a b", "y")], inputs, np.matmul(a, b).shape, constants)
    assert error_of(model, inputs, *way) < TOLERANCE[way[1]]


@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("depth", [3, 16, 31, 33, 77])
def test_a_transposed_right_side_is_packed(depth: int, way: tuple[str, str]) -> None:
    random = np.random.default_rng(2)
    a, b = normal(random, (2, 9, depth)), normal(random, (2, 37, depth))
    residual, bias = normal(random, (2, 9, 37)), normal(random, (37,))
    nodes = [
        node("Transpose", "b", "t", perm=[0, 2, 1]), node("MatMul", "a t", "p"),
        node("Add", "p bias", "q"), node("Relu", "q", "r"), node("Add", "r residual", "y"),
    ]  # fmt: skip
    inputs = {"a": a, "b": b, "residual": residual}
    model = graph(nodes, inputs, (2, 9, 37), {"bias": bias})
    if way == ("cpu", "fp32"):
        assert families(model) == ["pack", "matmul"], "all else is in the epilogue"
    assert error_of(model, inputs, *way) < TOLERANCE[way[1]]


@pytest.mark.parametrize("way", WAYS[:2], ids="-".join)
@pytest.mark.parametrize("c_shape", [(9,), (5, 1), (5, 9), (1,)], ids=str)
@pytest.mark.parametrize("flags", [(0, 0, 1.0, 1.0), (0, 1, 0.5, 1.0), (1, 1, 0.5, 2.0)], ids=str)
def test_gemm(
    flags: tuple[int, int, float, float], c_shape: tuple[int, ...], way: tuple[str, str]
) -> None:
    random = np.random.default_rng(3)
    first, second, alpha, beta = flags
    a = normal(random, (7, 5) if first else (5, 7))
    b = normal(random, (9, 7) if second else (7, 9))
    c = normal(random, c_shape)
    gemm = node("Gemm", "a b c", "y", transA=first, transB=second, alpha=alpha, beta=beta)
    every = {"a": a, "b": b, "c": c}
    for inputs, constants in (({"a": a}, {"b": b, "c": c}), (every, {})):
        model = graph([gemm], inputs, (5, 9), constants)
        assert error_of(model, inputs, *way) < TOLERANCE[way[1]]


def test_a_result_lies_as_the_transpose_after_it_wants() -> None:
    random = np.random.default_rng(4)
    inputs = {"a": normal(random, (2, 3, 8, 16)), "b": normal(random, (2, 3, 16, 32))}
    nodes = [node("MatMul", "a b", "p"), node("Transpose", "p", "t", perm=[0, 2, 1, 3])]
    shape = {"shape": np.array([2, 8, 96], np.int64)}
    model = graph([*nodes, node("Reshape", "t shape", "y")], inputs, (2, 8, 96), shape)
    assert families(model) == ["matmul"], "nothing is copied"
    assert error_of(model, inputs, "cpu", "fp32") < TOLERANCE["fp32"]


def test_a_deep_product_is_cut_into_pieces() -> None:
    random = np.random.default_rng(5)
    a, b = normal(random, (128, 9000)), normal(random, (9000, 20))
    model = graph([node("MatMul", "a b", "y")], {"a": a}, (128, 20), {"b": b})
    assert families(model) == ["matmul", "matmul"]
    assert error_of(model, {"a": a}, "cpu", "fp32") < TOLERANCE["fp32"]


def test_gelu_is_in_the_epilogue_of_the_product() -> None:
    random = np.random.default_rng(6)
    a, b = 4 * normal(random, (9, 40)), normal(random, (40, 70)) / np.float32(6.3)
    numbers = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5), "b": b}
    nodes = [
        node("MatMul", "a b", "x"), node("Div", "x root", "s"), node("Erf", "s", "e"),
        node("Add", "e one", "f"), node("Mul", "x f", "g"), node("Mul", "g half", "y"),
    ]  # fmt: skip
    model = graph(nodes, {"a": a}, (9, 70), numbers)
    assert families(model) == ["matmul"]
    for way in WAYS:
        assert error_of(model, {"a": a}, *way) < TOLERANCE[way[1]]


def test_large_weights_are_asked_for_ahead() -> None:
    random = np.random.default_rng(7)
    a, b = normal(random, (128, 512)), normal(random, (512, 600))
    model = graph([node("MatMul", "a b", "y")], {"a": a}, (128, 600), {"b": b})
    spec = steps(model)[0].spec
    assert isinstance(spec, MatmulSpec)
    assert spec.prefetch
    assert error_of(model, {"a": a}, "cpu", "fp32") < TOLERANCE["fp32"]


def test_the_answer_is_the_same_for_any_number_of_workers() -> None:
    random = np.random.default_rng(8)
    a, b = normal(random, (70, 90)), normal(random, (90, 400))
    model = graph([node("MatMul", "a b", "y")], {"a": a}, (70, 400), {"b": b})
    one, two, four = (run_native(model, {"a": a}, "cpu", "fp32", n)["y"] for n in (1, 2, 4))
    assert np.array_equal(one, two)
    assert np.array_equal(one, four)


@pytest.mark.parametrize("target", ["zen3", "zen5"])
@pytest.mark.parametrize("rows", [1, 2, 4, 7, 32, 128])
def test_patches_fit_the_registers(rows: int, target: str) -> None:
    isa = isa_of(find_target(target))
    patch = choose_patch(rows, 768, 768, isa)
    assert patch.columns * patch.vectors + patch.vectors + 1 <= isa.registers + 1
    if rows <= 2:
        assert patch.columns * patch.vectors >= 4, "few rows need many vectors to hide latency"
