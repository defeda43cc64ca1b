"""Blocks of data move as ONNX Runtime moves them, from any layout."""

from __future__ import annotations

import numpy as np
import pytest

from float_graphs import steps
from kernels import TARGETS
from native_text import differences, normal, read, refusals

LAST = "t = Transpose<perm = [0, 3, 1, 2]>(x)"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("is_last", [False, True], ids=["planes", "channels last"])
def test_depth_to_space(mode: str, is_last: bool, target: str) -> None:
    shape = (2, 3, 5, 36) if is_last else (2, 36, 3, 5)
    source = LAST if is_last else "t = Neg(x)"
    model = read(
        f"""(float[{",".join(map(str, shape))}] x) => (float[2,9,6,10] y) {{
            {source}
            y = DepthToSpace<blocksize = 2, mode = "{mode}">(t)
        }}"""
    )
    assert differences(model, {"x": normal(*shape)}, target)["y"] == 0.0


@pytest.mark.parametrize("is_last", [False, True], ids=["planes", "channels last"])
def test_space_to_depth(is_last: bool) -> None:
    shape = (2, 6, 9, 5) if is_last else (2, 5, 6, 9)
    source = LAST if is_last else "t = Neg(x)"
    model = read(
        f"""(float[{",".join(map(str, shape))}] x) => (float[2,45,2,3] y) {{
            {source}
            y = SpaceToDepth<blocksize = 3>(t)
        }}"""
    )
    assert differences(model, {"x": normal(*shape)})["y"] == 0.0


@pytest.mark.parametrize("repeats", [[1, 2, 3], [4, 1, 1], [2, 2, 2]])
def test_tile_is_one_step(repeats: list[int]) -> None:
    result = [n * r for n, r in zip((2, 3, 5), repeats, strict=True)]
    model = read(
        f"""(float[5,3,2] x, int64[3] r) => (float[{",".join(map(str, result))}] y) {{
            t = Transpose<perm = [2, 1, 0]>(x)
            y = Tile(t, r)
        }}""",
        r=np.array(repeats),
    )
    assert differences(model, {"x": normal(5, 3, 2)})["y"] == 0.0
    assert len(steps(model)) == 2  # and the copy to the output


@pytest.mark.parametrize("diagonal", [-7, -1, 0, 2, 9])
@pytest.mark.parametrize("upper", [0, 1])
def test_triangles(upper: int, diagonal: int) -> None:
    model = read(
        f"""(float[2,5,6] x, int64 k) => (float[2,5,6] y) {{ y = Trilu<upper = {upper}>(x, k) }}""",
        k=np.array(diagonal),
    )
    assert differences(model, {"x": normal(2, 5, 6)})["y"] == 0.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(float[2] x, int64[1] r) => (float[4] y) { y = Tile(x, r) }",
         "Tile whose repeats are not known"),
        ("(float[2,2] x, int64 k) => (float[2,2] y) { y = Trilu(x, k) }",
         "Trilu whose diagonal is not constant"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, reason: str) -> None:
    assert refusals(read(text)) == [reason]
