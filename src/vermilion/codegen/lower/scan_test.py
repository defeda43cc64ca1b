"""ArgMax, ArgMin, CumSum and GatherElements as nodes, over axes and attributes."""

from __future__ import annotations

import numpy as np
import pytest

from native_text import differences, normal, read, refusals


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
def test_places(operator: str, axis: int, keep: int) -> None:
    shape = (4, 5, 40)
    gone = axis % 3
    result = [1 if i == gone else n for i, n in enumerate(shape) if keep or i != gone]
    model = read(
        f"""(float[4,5,40] x) => (int64[{",".join(map(str, result))}] y) {{
            y = {operator}<axis = {axis}, keepdims = {keep}>(x)
        }}"""
    )
    assert differences(model, {"x": normal(*shape)})["y"] == 0.0


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("kind", ["float", "int64"])
def test_running_sums(kind: str, axis: int, reverse: int, exclusive: int) -> None:
    model = read(
        f"""({kind}[4,5,19] x, int32 a) => ({kind}[4,5,19] y) {{
            y = CumSum<reverse = {reverse}, exclusive = {exclusive}>(x, a)
        }}""",
        a=np.array(axis, np.int32),
    )
    x = np.round(normal(4, 5, 19) * 8)
    inputs = {"x": x if kind == "float" else x.astype(np.int64)}
    assert differences(model, inputs)["y"] == 0.0


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_picked_elements(axis: int) -> None:
    shape = [4, 5, 6]
    taken = [3 if i == axis else n - 1 for i, n in enumerate(shape)]
    indices = np.random.default_rng(0).integers(-shape[axis], shape[axis], taken)
    dims = ",".join(map(str, taken))
    model = read(
        f"""(float[6,5,4] x, int64[{dims}] i) => (float[{dims}] y) {{
            t = Transpose<perm = [2, 1, 0]>(x)
            y = GatherElements<axis = {axis}>(t, i)
        }}"""
    )
    assert differences(model, {"x": normal(6, 5, 4), "i": indices})["y"] == 0.0


def test_what_is_refused() -> None:
    model = read("(float[3] x, int64 a) => (float[3] y) { y = CumSum(x, a) }")
    assert refusals(model) == ["CumSum along an axis that is not constant"]
