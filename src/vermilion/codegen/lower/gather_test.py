"""GatherND and ScatterND as nodes: dimensions, batches, and indices that are outside."""

from __future__ import annotations

import numpy as np
import pytest

from float_graphs import run_native
from native_text import differences, normal, read, refusals
from vermilion.errors import UnsupportedError


@pytest.mark.parametrize("kind", ["float", "bool", "int64"])
@pytest.mark.parametrize(
    ("batch", "count", "behind"),
    [(0, 1, (3,)), (0, 3, ()), (0, 2, (3, 4)), (1, 1, (3,)), (2, 1, ())],
)
def test_tuples(batch: int, count: int, behind: tuple[int, ...], kind: str) -> None:
    sizes = (4, 5, 6)
    places = (*sizes[:batch], *behind)
    picked = sizes[batch : batch + count]
    columns = [np.random.default_rng(0).integers(-size, size, places) for size in picked]
    index = np.stack(columns, axis=-1)
    result = ",".join(map(str, (*places, *sizes[batch + count :])))
    model = read(
        f"""({kind}[6,5,4] x, int64[{",".join(map(str, index.shape))}] i)
            => ({kind}{f"[{result}]" if result else ""} y) {{
            t = Transpose<perm = [2, 1, 0]>(x)
            y = GatherND<batch_dims = {batch}>(t, i)
        }}"""
    )
    x = np.round(normal(6, 5, 4) * 8)
    x = {"float": x, "bool": x > 0, "int64": x.astype(np.int64)}[kind]
    assert differences(model, {"x": x, "i": index})["y"] == 0.0


@pytest.mark.parametrize(("column", "wrong"), [(0, 5), (1, -5)])
def test_an_index_outside_is_told(column: int, wrong: int) -> None:
    model = read("(float[5,4] x, int64[3,2] i) => (float[3] y) { y = GatherND(x, i) }")
    i = np.zeros((3, 2), np.int64)
    i[2, column] = wrong
    with pytest.raises(UnsupportedError, match=rf"idx={wrong} .*GatherND"):
        run_native(model, {"x": normal(5, 4), "i": i}, "cpu", "fp32", 1)
    i[2, column] = 3
    assert run_native(model, {"x": normal(5, 4), "i": i}, "cpu", "fp32", 1)["y"].shape == (3,)


def test_a_constant_index_outside_is_refused() -> None:
    model = read(
        "(float[5,4] x, int64[1,2] i) => (float[1] y) { y = GatherND(x, i) }", i=np.array([[1, 4]])
    )
    assert refusals(model) == ["what GatherND gives cannot be computed: index 4 of 4"]


@pytest.mark.parametrize("kind", ["float", "bool", "int64"])
@pytest.mark.parametrize(
    ("count", "shape"), [(1, (3,)), (3, ()), (2, (3, 4)), (2, (19,)), (1, (1,)), (3, (2, 2))]
)
def test_slices_put_in_place(count: int, shape: tuple[int, ...], kind: str) -> None:
    sizes = (4, 5, 6)
    rng = np.random.default_rng(0)
    flat = rng.permutation(np.prod(sizes[:count]))[: np.prod(shape, dtype=int)].reshape(shape)
    index = np.stack(np.unravel_index(flat, sizes[:count]), axis=-1)
    index = np.where(rng.random(index.shape) < 0.5, index, index - sizes[:count])
    behind = (*shape, *sizes[count:])
    updates = ",".join(map(str, behind))
    model = read(
        f"""({kind}[6,5,4] x, int64[{",".join(map(str, index.shape))}] i,
            {kind}{f"[{updates}]" if updates else ""} u) => ({kind}[4,5,6] y) {{
            t = Transpose<perm = [2, 1, 0]>(x)
            y = ScatterND(t, i, u)
        }}"""
    )
    pair = [np.asarray(np.round(normal(*size) * 8)) for size in ((6, 5, 4), behind)]
    change = {"bool": lambda a: np.asarray(a > 0), "int64": lambda a: a.astype(np.int64)}.get(kind)
    x, u = pair if change is None else map(change, pair)
    assert differences(model, {"x": x, "i": index, "u": u}, threads=2)["y"] == 0.0


def test_a_place_outside_is_told() -> None:
    model = read(
        "(float[5,4] x, int64[3,2] i, float[3] u) => (float[5,4] y) { y = ScatterND(x, i, u) }"
    )
    inputs = {"x": normal(5, 4), "i": np.array([[0, 0], [4, 3], [1, 4]]), "u": normal(3)}
    with pytest.raises(UnsupportedError, match=r"idx=4 .*ScatterND"):
        run_native(model, inputs, "cpu", "fp32", 1)


def test_slices_are_added() -> None:
    model = read(
        """(float[5,19] x, int64[40,1] i, float[40,19] u) => (float[5,19] y) {
            t = Relu(x)
            y = ScatterND<reduction = "add">(t, i, u)
        }""",
        opset=16,
    )
    places = np.random.default_rng(0).integers(-5, 5, (40, 1))
    inputs = {"x": normal(5, 19), "i": places, "u": normal(40, 19)}
    assert differences(model, inputs, threads=2)["y"] < 1e-6


@pytest.mark.parametrize(("kind", "how"), [("float", "mul"), ("int64", "add")])
def test_scatters_that_are_refused(kind: str, how: str) -> None:
    model = read(
        f"""({kind}[5] x, int64[3,1] i, {kind}[3] u) => ({kind}[5] y) {{
            y = ScatterND<reduction = "{how}">(x, i, u)
        }}""",
        opset=16,
    )
    assert refusals(model) == [f"ScatterND with the reduction `{how}` of {kind}"]
