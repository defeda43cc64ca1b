"""Kernels that would leave their buffers are refused before they are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from claimed_operators import model_of, texts
from float_graphs import run_native
from native_text import normal, read
from vermilion.codegen.extents import ExtentError, check_extents
from vermilion.codegen.isa import Isa, isa_of
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.part import lower_part
from vermilion.codegen.program import compile_steps
from vermilion.codegen.tensor import SLACK_BYTES, Buffer, View
from vermilion.hardware.targets.find import find_target

ISAS = {name: isa_of(find_target(name)) for name in ("zen5", "zen3")}
CASES = {name: (opset, text) for name, opset, text in texts()}
# Arguments of which a kernel may leave something out: indices that name a part of the columns.
PARTLY_READ = ("pick 0",)


def steps_of(name: str, isa: Isa) -> tuple[Step, ...]:
    opset, text = CASES[name]
    return lower_part(model_of(text, opset), isa).steps


@pytest.mark.parametrize("target", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_every_kernel_stays_inside_its_buffers(name: str, target: str) -> None:
    check_extents(steps_of(name, ISAS[target]), ISAS[target])


_LEAST_BYTES = SLACK_BYTES + 8


def _shrunk(step: Step, number: int) -> Step:
    """Return the step with a buffer that is too small by one element behind its room."""
    view = step.arguments[number]
    is_written = any(view.buffer is one.buffer for one in step.writes)
    has_room = view.buffer.place in ("arena", "weights") and not is_written
    lost = view.item_bytes + (SLACK_BYTES if has_room else 0)
    small = replace_buffer(view, view.buffer.size_bytes - lost)
    moved = (*step.arguments[:number], small, *step.arguments[number + 1 :])
    return replace(step, arguments=moved, writes=(small,) if is_written else step.writes)


def replace_buffer(view: View, size_bytes: int) -> View:
    # The view claims less, as one whose shape was believed would: only the kernel knows better.
    buffer = Buffer(view.buffer.name, size_bytes, view.buffer.place, view.buffer.data)
    return replace(view, buffer=buffer, shape=(), strides=(), offset=0)


def _planted(steps: tuple[Step, ...]) -> Iterator[tuple[str, Step]]:
    for step in steps:
        for number, view in enumerate(step.arguments):
            whole = view.offset == 0 and view.elements * view.item_bytes == view.buffer.size_bytes
            what = f"{step.spec.family} {number}"
            if whole and what not in PARTLY_READ and view.buffer.size_bytes > _LEAST_BYTES:
                yield what, _shrunk(step, number)


@pytest.mark.parametrize("name", CASES)
def test_a_buffer_that_is_too_small_is_refused(name: str) -> None:
    isa = ISAS["zen5"]
    passed = [what for what, step in _planted(steps_of(name, isa)) if not _is_refused(step, isa)]
    assert not passed


def _is_refused(step: Step, isa: Isa) -> bool:
    try:
        check_extents([step], isa)
    except ExtentError as error:
        return error.message.startswith("a kernel would touch the bytes")
    return False


def test_building_a_program_refuses_it_with_the_node() -> None:
    isa = ISAS["zen3"]
    (step,) = steps_of("Softmax", isa)
    target = step.writes[0]
    small = replace_buffer(target, target.buffer.size_bytes - 4)
    wrong = replace(step, arguments=(step.arguments[0], small), writes=(small,))
    source = step.arguments[0].buffer
    with pytest.raises(ExtentError) as error:
        compile_steps([wrong], [source], [small.buffer], isa)
    assert "of a buffer of 92" in error.value.message
    assert error.value.where.startswith("node `")


def test_a_view_outside_of_its_buffer_is_refused() -> None:
    isa = ISAS["zen3"]
    (step,) = steps_of("Softmax", isa)
    for offset in (-1, 1):
        view = replace(step.arguments[0], offset=offset)
        with pytest.raises(ExtentError):
            check_extents([replace(step, arguments=(view, step.writes[0]))], isa)


def test_what_is_read_whole_of_an_input_is_read_from_a_copy() -> None:
    """A row of six bytes is read in two quads: the caller's memory ends behind the sixth."""
    model = read(
        """(uint8[2,6] x, float s, uint8 z, uint8[6,4] w) => (uint8[2,4] y) {
            y = QLinearMatMul(x, s, z, w, s, z, s, z)
        }""",
        s=np.float32(0.5), z=np.uint8(3), w=np.arange(24, dtype=np.uint8).reshape(6, 4),
    )  # fmt: skip
    for isa in ISAS.values():
        lowered = lower_part(model, isa)
        product = next(s for s in lowered.steps if s.spec.family == "product")
        assert product.arguments[0].buffer.place == "arena"
        check_extents(lowered.steps, isa)
    x = np.arange(12, dtype=np.uint8).reshape(2, 6)
    assert run_native(model, {"x": x}, "cpu", "fp32", 1)["y"].shape == (2, 4)


def test_an_input_that_is_read_to_its_end_is_not_copied() -> None:
    model = read("(float[2,6] x, float[6,4] w) => (float[2,4] y) { y = MatMul(x, w) }",
                 w=normal(6, 4))  # fmt: skip
    assert [s.spec.family for s in lower_part(model, ISAS["zen5"]).steps] == ["matmul"]
