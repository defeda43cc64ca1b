"""Memory plans, meetings, shares of work and packed weights, on steps that do nothing."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import isa_for
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.fill import BorderSpec
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.memory import offsets_of, plan_memory
from vermilion.codegen.program import (
    chunk_of,
    compile_steps,
    expected_ns,
    module_text,
    plan_barriers,
)
from vermilion.codegen.tensor import SLACK_BYTES, Buffer, View, allocate, weight


@dataclass(frozen=True)
class Idle:
    """A kernel that does nothing. `number` tells functions apart."""

    number: int = 0
    units: int = 1

    family = "idle"

    def write(self, module: Module, name: str, isa: Isa) -> None:
        Function(module, name, [("args", "ptr"), ("begin", "i64"), ("end", "i64")]).finish()


def step(reads: list[View], writes: list[View], **how: Any) -> Step:
    operations = how.pop("operations", 0)
    return Step(Idle(**how), (*reads, *writes), tuple(writes), operations=operations)


def tensor(name: str, size: int = 100) -> View:
    return allocate(name, "f32", (size,))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_lives_at_once_does_not_overlap(data: st.DataObject) -> None:
    views = [
        tensor(str(i), size)
        for i, size in enumerate(data.draw(st.lists(st.integers(1, 500), min_size=1, max_size=8)))
    ]
    used = st.lists(st.sampled_from(views), min_size=1, max_size=3)
    steps = [step(data.draw(used), []) for _ in range(data.draw(st.integers(1, 10)))]
    plan = plan_memory(steps)
    placed, total = plan.offsets, plan.arena_bytes
    lives: dict[int, tuple[int, int]] = {}
    for at, one in enumerate(steps):
        for view in one.arguments:
            first, _ = lives.get(id(view.buffer), (at, at))
            lives[id(view.buffer)] = (first, at)
    assert {id(buffer) for buffer, _ in placed} == set(lives)
    spans = [(buffer, at, at + buffer.size_bytes + SLACK_BYTES) for buffer, at in placed]
    for number, (one, low, high) in enumerate(spans):
        assert low % 64 == 0
        assert high <= total
        for other, low2, high2 in spans[:number]:
            (a, b), (c, d) = lives[id(one)], lives[id(other)]
            if a <= d and c <= b:
                assert high <= low2 or high2 <= low, f"{one.name} and {other.name}"


def test_memory_is_used_again() -> None:
    chain = [tensor(str(i), 1000) for i in range(10)]
    steps = [step([a], [b]) for a, b in pairwise(chain)]
    assert plan_memory(steps).arena_bytes < 3 * 4100


def meetings(steps: list[Step]) -> list[bool]:
    plan = plan_memory(steps)
    return plan_barriers(plan.steps, offsets_of(plan))


def test_workers_meet_where_a_step_needs_what_one_since_has_made() -> None:
    a, b, c, d = (tensor(name) for name in "abcd")
    w = weight("w", np.zeros(4, np.float32), "f32")
    steps = [
        step([a, w], [b]),
        step([a, w], [c]),  # reads what the other reads
        step([b], [d]),  # needs the first
        step([c], [a]),  # the first and second, which read `a`, were met
        step([d, a], [c]),  # needs both, and writes what the one before reads
    ]
    assert meetings(steps) == [False, False, True, False, True]


def image(name: str, rows: int) -> tuple[View, View, Step]:
    """Return an image with a border of one pixel: all of it, its inside, what writes the border."""
    whole = allocate(name, "f32", (1, 4, rows + 2, 6), (0, 2, 3, 1))
    inside = whole.sliced(2, 1, rows).sliced(3, 1, 4)
    return whole, inside, Step(BorderSpec(1, rows + 2, 6, 16, 1, 1, 1, 1, 0), (whole,), (whole,))


def test_the_border_of_an_image_is_no_conflict_with_its_inside() -> None:
    whole, inside, border = image("x", rows=40_000)  # too large to keep its border
    source = tensor("s")
    assert meetings([border, step([source], [inside]), step([whole], [source])]) == [
        False, False, True,
    ]  # fmt: skip


def test_images_with_equal_borders_take_turns_and_theirs_are_written_once() -> None:
    (a, in_a, border_a), (b, in_b, border_b), (c, in_c, border_c) = (image(n, 4) for n in "abc")
    s, t, u, v = (tensor(name) for name in "stuv")
    plan = plan_memory(
        [
            border_a, step([s], [in_a]), border_b, step([a], [in_b]), step([b], [t]),
            border_c, step([t], [in_c]), step([c], [u]), step([u], [v]),
        ]
    )  # fmt: skip
    at = offsets_of(plan)
    assert at[id(a.buffer)] == at[id(c.buffer)] != at[id(b.buffer)]
    assert [step.writes[0].buffer.name for step in plan.once] == ["a", "b"]
    assert len(plan.steps) == 6
    for other in (s, t, u, v):  # nothing else may lie where a border stays
        low = at[id(other.buffer)]
        for kept in (a.buffer, b.buffer):
            assert low + other.buffer.size_bytes <= at[id(kept)] or low >= (
                at[id(kept)] + kept.size_bytes
            )


def test_inputs_and_outputs_share_memory_with_nothing() -> None:
    source = allocate("in", "f32", (100,), place="input")
    result = allocate("out", "f32", (100,), place="output")
    other = allocate("out2", "f32", (100,), place="output")
    steps = [step([source], [result]), step([source], [other]), step([result], [other])]
    assert meetings(steps) == [False, False, True]


def chunk(one: Step) -> int:
    return chunk_of(one.spec.units, expected_ns(one))


def test_small_steps_are_not_shared() -> None:
    small, large = tensor("a", 100), tensor("b", 10_000_000)
    assert chunk(step([small], [], units=64)) == 64
    assert chunk(step([large], [], units=64)) == 1
    assert chunk(step([small], [], units=64, operations=10**9)) == 1
    assert chunk(step([large], [], units=3)) == 1
    # A slice of a large buffer costs what the slice does.
    assert expected_ns(step([large.sliced(0, 5, 100)], [])) < 100


def test_few_workers_for_little_work() -> None:
    isa = isa_for("cpu")
    x = tensor("x")
    little = compile_steps([step([x], [], operations=10**5)], [], [], isa)
    much = compile_steps([step([x], [], operations=10**9)], [], [], isa)
    assert little.most_workers == 1
    assert much.most_workers > 8


def test_equal_weights_and_equal_kernels_are_kept_once() -> None:
    one, same = (weight(name, np.arange(50, dtype=np.float32), "f32") for name in "ab")
    other = weight("c", np.arange(50, dtype=np.float32) + 1, "f32")
    x = tensor("x")
    steps = [step([one, x], []), step([same, x], []), step([other, x], [], number=1)]
    compiled = compile_steps(steps, [], [], isa_for("cpu"))
    first, second, third = (call.arguments[0].offset for call in compiled.calls)
    assert first == second != third
    assert len(compiled.packed) == 2 * 320
    functions = [call.function for call in compiled.calls]
    assert functions[0] == functions[1] != functions[2]
    driver, kernels = compiled.objects
    assert driver.functions == ()
    assert sorted(kernels.functions) == sorted(set(functions))


def test_a_large_program_is_compiled_in_pieces(monkeypatch: Any) -> None:
    from vermilion.codegen import program

    monkeypatch.setattr(program, "_APART_CHARACTERS", 300)
    monkeypatch.setattr(program, "usable_cores", lambda: 3)
    x = tensor("x")
    steps = [step([x], [], number=number) for number in range(12)]
    compiled = compile_steps(steps, [], [], isa_for("cpu"))
    assert len(compiled.objects) == 1 + 3
    names = [name for code in compiled.objects for name in code.functions]
    assert sorted(names) == sorted(call.function for call in compiled.calls)


def test_addresses_count_bytes_from_the_place_of_a_buffer() -> None:
    source = View(Buffer("in", 400, "input"), "f32", (10,), (1,), 3)
    result = View(Buffer("out", 400, "output"), "u8", (10,), (1,), 7)
    compiled = compile_steps(
        [step([source], [result])], [source.buffer], [result.buffer], isa_for("cpu")
    )
    read, written = compiled.calls[0].arguments
    assert (read.place, read.offset, read.index) == ("input", 12, 0)
    assert (written.place, written.offset, written.index) == ("output", 7, 0)


def test_the_text_holds_each_function_once() -> None:
    x = tensor("x")
    steps = [step([x], []), step([x], []), step([x], [], number=5)]
    text = module_text(steps, isa_for("cpu"))
    assert text.count("define void @idle_") == 2
