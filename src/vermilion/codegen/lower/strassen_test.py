"""Seven products instead of eight: where, how near, and that it can be refused."""

from __future__ import annotations

import numpy as np
import pytest

from float_graphs import families
from kernels import TARGETS
from native_text import differences, normal, read
from vermilion.api import compile_model
from vermilion.codegen.isa import isa_of
from vermilion.codegen.lower.part import lower_part
from vermilion.codegen.lower.strassen import halved_axis, is_cheaper
from vermilion.hardware.targets.find import find_target

ISA = isa_of(find_target("zen4"))


def is_used(model, target: str = "cpu", *, winograd: bool = True) -> bool:  # type: ignore[no-untyped-def]
    lowered = lower_part(model, isa_of(find_target(target)), winograd=winograd)
    return any(name.endswith(" sums") for step in lowered.steps for name in step.nodes)


def feed_forward(rows: str, depth: int, columns: int):  # type: ignore[no-untyped-def]
    return read(
        f"""(float[{rows},{depth}] x, float[{depth},{columns}] w, float[{columns}] b,
            float[{rows},{columns}] r) => (float[{rows},{columns}] y) {{
            m = MatMul(x, w)
            c = Add(m, b)
            d = Add(c, r)
            y = Relu(d)
        }}""",
        w=normal(depth, columns, seed=1),
        b=normal(columns, seed=2),
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [((128,), 512, 512), ((1, 130), 514, 384), ((2, 1, 96), 384, 1056)],
)
def test_a_product_and_what_follows(
    rows: tuple[int, ...], depth: int, columns: int, target: str
) -> None:
    model = feed_forward(",".join(map(str, rows)), depth, columns)
    inputs = {"x": normal(*rows, depth), "r": normal(*rows, columns, seed=3)}
    assert is_used(model, target)
    assert not is_used(model, target, winograd=False)
    assert differences(model, inputs, target)["y"] < 1e-5


@pytest.mark.parametrize("size", [(28, 28), (14, 15), (1, 196)])
def test_a_convolution_of_one_pixel(size: tuple[int, int]) -> None:
    channels = 512
    shape = f"1,{channels},{size[0]},{size[1]}"
    model = read(
        f"""(float[{shape}] x, float[{channels},{channels},1,1] w, float[{channels}] b,
            float[{channels},{channels},3,3] v) => (float[{shape}] y) {{
            c = Conv(x, w, b)
            d = Relu(c)
            y = Conv<pads = [1, 1, 1, 1]>(d, v)
        }}""",
        w=normal(channels, channels, 1, 1, seed=1),
        b=normal(channels, seed=2),
        v=normal(channels, channels, 3, 3, seed=4),
    )
    assert is_used(model)
    assert differences(model, {"x": normal(1, channels, *size)}, "cpu")["y"] < 1e-4


def test_products_of_one_tensor_share_its_sums() -> None:
    model = read(
        """(float[128,512] x, float[512,512] w, float[512,512] v)
            => (float[128,512] y, float[128,512] z) {
            y = MatMul(x, w)
            z = MatMul(x, v)
        }""",
        w=normal(512, 512, seed=1),
        v=normal(512, 512, seed=2),
    )
    steps = lower_part(model, ISA).steps
    assert sum(name.endswith(" sums") for step in steps for name in step.nodes) == 1
    assert max(differences(model, {"x": normal(128, 512)}, "cpu").values()) < 1e-5
    assert "matmul" in families(model, "cpu")


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "fits"),
    [
        (128, 768, 768, True),
        (128, 64, 64, False),  # the passes cost more than an eighth
        (129, 768, 768, False),
        (128, 767, 768, False),
        (128, 768, 784, False),  # a quarter would end within a vector
        (16, 4096, 4096, False),  # weights are read once for few rows
    ],
)
def test_where_it_pays(rows: int, depth: int, columns: int, fits: bool) -> None:
    assert is_cheaper(rows, depth, columns, ISA) is fits


def test_rows_are_halved_along_their_first_dimension() -> None:
    assert halved_axis((1, 14, 15, 8)) == 1
    assert halved_axis((1, 7, 14, 8)) is None
    assert halved_axis((1, 8)) is None
    assert halved_axis((4, 96, 8)) == 1
    assert halved_axis((4, 95, 8)) is None


def test_a_large_common_value_costs_few_bits() -> None:
    """Sums of quarters cancel again: the error grows with the inputs, not with the result."""
    model = feed_forward("128", 512, 512)
    x = (normal(128, 512) + np.float32(10)).astype(np.float32)
    assert differences(model, {"x": x, "r": normal(128, 512, seed=3)}, "cpu")["y"] < 1e-5


def test_entries_of_a_batch_stay_apart() -> None:
    model = feed_forward("4,96", 384, 1056)
    assert is_used(model)
    x, r = normal(4, 96, 384), normal(4, 96, 1056, seed=3)
    with compile_model(model).session() as session:
        (whole,) = session.run(None, {"x": x, "r": r})
        x[2] = np.nan
        (hurt,) = session.run(None, {"x": x, "r": r})
    others = [0, 1, 3]
    np.testing.assert_array_equal(hurt[others], whole[others])
