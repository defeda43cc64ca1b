"""A batch run entry by entry: where entries are apart, and that each gets its own answer."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from native_text import normal, read
from vermilion.api import compile_model
from vermilion.codegen.lower.batch_split import one_entry
from vermilion.ir.execute import open_session, run_session

BATCH = 4


def network(tail: str, results: str = "float[4,10] y") -> ir.Model:
    return read(
        f"""(float[4,3,96,96] x, float[32,3,3,3] w, float[32,32,3,3] v, float[32,10] m,
            float[4,1,1,1] apart, int64[2] s) => ({results}) {{
            c = Conv<pads = [1, 1, 1, 1]>(x, w)
            d = Relu(c)
            e = Conv<pads = [1, 1, 1, 1]>(d, v)
            f = Add(e, d)
            g = GlobalAveragePool(f)
            {tail}
        }}""",
        w=normal(32, 3, 3, 3, seed=1),
        v=normal(32, 32, 3, 3, seed=2),
        m=normal(32, 10, seed=3),
        apart=normal(4, 1, 1, 1, seed=4),
        s=np.array([4, 32]),
    )


HEAD = "h = Flatten(g) y = MatMul(h, m)"
APART = [
    HEAD,
    "h = Reshape(g, s) y = MatMul(h, m)",
    "t = Transpose<perm = [0, 2, 3, 1]>(g) h = Reshape(t, s) k = MatMul(h, m) y = Softmax(k)",
]
MIXED = [
    f"{HEAD.replace('y', 'k')} y = Softmax<axis = 0>(k)",
    f"{HEAD.replace('y', 'k')} r = ReduceMean<axes = [0], keepdims = 1>(k) y = Sub(k, r)",
    f"a = Mul(g, apart) {HEAD.replace('g', 'a')}",  # a constant of its own for each entry
    "h = Flatten(g) t = Transpose<perm = [1, 0]>(h) k = MatMul(h, t) j = MatMul(k, h) "
    "y = MatMul(j, m)",
    "h = Flatten(g) q, t, z = DynamicQuantizeLinear(h) i = Cast<to = 1>(q) j = Mul(i, t) "
    "y = MatMul(j, m)",
]


@pytest.mark.parametrize("tail", APART)
def test_every_entry_gets_its_answer(tail: str) -> None:
    model = network(tail)
    entry = one_entry(model)
    assert entry is not None
    assert entry.batch == BATCH
    x = normal(BATCH, 3, 96, 96)
    (right,) = run_session(open_session(model), {"x": x}).values()
    with compile_model(model).session() as session:
        (found,) = session.run(None, {"x": x})
        swapped = session.run(None, {"x": x[::-1].copy()})[0]
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4 * np.abs(right).max())
    np.testing.assert_array_equal(swapped, found[::-1])


@pytest.mark.parametrize("tail", MIXED)
def test_entries_that_meet_stay_a_batch(tail: str) -> None:
    assert one_entry(network(tail)) is None


def test_results_of_two_kinds() -> None:
    model = network(HEAD, "float[4,10] y, float[4,32,96,96] f")
    assert one_entry(model) is not None
    x = normal(BATCH, 3, 96, 96)
    right = run_session(open_session(model), {"x": x})
    with compile_model(model).session() as session:
        found = session.run(["y", "f"], {"x": x})
    for name, array in zip(("y", "f"), found, strict=True):
        scale = np.abs(right[name]).max()
        np.testing.assert_allclose(array, right[name], rtol=1e-4, atol=1e-4 * scale)


def test_few_operations_for_many_weights_stay_a_batch() -> None:
    model = read(
        "(float[64,4096] x, float[4096,8192] w) => (float[64,8192] y) { y = MatMul(x, w) }",
        w=normal(4096, 8192),
    )
    assert one_entry(model) is None


def test_one_image_is_no_batch() -> None:
    model = read(
        "(float[1,3,512,512] x, float[8,3,3,3] w) => (float[1,8,510,510] y) { y = Conv(x, w) }",
        w=normal(8, 3, 3, 3),
    )
    assert one_entry(model) is None
