"""When Winograd is chosen, that it can be refused, and how far its results may be."""

from __future__ import annotations

import pytest

from float_graphs import TOLERANCE, error_of, families
from kernels import TARGETS
from native_text import differences, normal, read
from vermilion.codegen.isa import isa_of
from vermilion.codegen.lower.geometry import ConvGeometry
from vermilion.codegen.lower.part import lower_part
from vermilion.codegen.lower.winograd import Shape, choose_scheme, is_candidate, needed_border
from vermilion.hardware.targets.find import find_target

ISA = isa_of(find_target("zen4"))
PLAIN = ConvGeometry((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1)


def model_of(channels: int, size: tuple[int, int], step: int = 1):  # type: ignore[no-untyped-def]
    shape = f"1,{channels},{size[0]},{size[1]}"
    return read(
        f"""(float[{shape}] x, float[{channels},{channels},3,3] w, float[{channels}] b,
            float[{shape}] r) => (float[{shape}] y) {{
            c = Conv<pads = [{step}, {step}, {step}, {step}], dilations = [{step}, {step}]>(x, w, b)
            d = Add(c, r)
            y = Relu(d)
        }}""",
        w=normal(channels, channels, 3, 3, seed=1),
        b=normal(channels, seed=2),
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [(56, 56), (28, 30), (13, 17)])
def test_results_are_close_and_refusing_it_is_heard(size: tuple[int, int], target: str) -> None:
    model = model_of(64, size)
    inputs = {"x": normal(1, 64, *size), "r": normal(1, 64, *size, seed=3)}
    assert "winograd_input" in families(model, target)
    assert differences(model, inputs, target)["y"] < 1e-4
    direct = lower_part(model, isa_of(find_target(target)), winograd=False)
    assert not any(step.spec.family.startswith("winograd") for step in direct.steps)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [(32, 32), (29, 35)])
def test_a_dilated_convolution_is_a_dense_one_on_each_phase(
    size: tuple[int, int], target: str
) -> None:
    model = model_of(64, size, 2)
    inputs = {"x": normal(1, 64, *size), "r": normal(1, 64, *size, seed=3)}
    assert families(model, target).count("winograd_output") == 4
    assert differences(model, inputs, target)["y"] < 1e-4


def test_bfloat16_is_transformed_in_float32() -> None:
    model = model_of(64, (28, 28))
    lowered = lower_part(model, isa_of(find_target("x86-64-v3")), "bf16")
    assert "winograd_input" in [step.spec.family for step in lowered.steps]
    inputs = {"x": normal(1, 64, 28, 28), "r": normal(1, 64, 28, 28, seed=3)}
    assert error_of(model, inputs, "cpu", "bf16") < TOLERANCE["bf16"]


@pytest.mark.parametrize(
    ("geometry", "shape", "fits"),
    [
        (PLAIN, Shape(1, 56, 56, 64, 64), True),
        (ConvGeometry((3, 3), (2, 2), (1, 1), (1, 1, 1, 1), 1), Shape(1, 28, 28, 64, 64), False),
        (ConvGeometry((3, 3), (1, 1), (2, 2), (2, 2, 2, 2), 1), Shape(1, 28, 28, 64, 64), True),
        (ConvGeometry((3, 3), (1, 1), (9, 9), (9, 9, 9, 9), 1), Shape(1, 28, 28, 64, 64), False),
        (ConvGeometry((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 2), Shape(1, 28, 28, 64, 64), False),
        (ConvGeometry((5, 5), (1, 1), (1, 1), (2, 2, 2, 2), 1), Shape(1, 28, 28, 64, 64), False),
        (PLAIN, Shape(1, 56, 56, 8, 64), False),
        (PLAIN, Shape(1, 2, 2, 64, 64), False),
    ],
)
def test_where_it_applies(geometry: ConvGeometry, shape: Shape, fits: bool) -> None:
    assert is_candidate(geometry, shape) is fits
    assert bool(choose_scheme(geometry, shape, ISA)) <= fits


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("size", [4, 7, 8, 13])
def test_the_last_patch_lies_within_the_border(size: int, tile: int) -> None:
    border = needed_border(PLAIN, Shape(1, size, size, 64, 64), tile)
    tiles = -(-size // tile)
    # The last patch reads tile + 2 pixels from (tiles - 1) · tile, counted from the border's edge.
    assert border.top + size + border.bottom == tiles * tile + 2
