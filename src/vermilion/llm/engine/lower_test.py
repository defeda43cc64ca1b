"""Operations written as steps, and the steps run: against numpy on the same operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import Memory, isa_for
from vermilion.codegen.emit.decoder.cached_attention import CachedAttentionSpec
from vermilion.codegen.emit.decoder.control import CONTROL_WORDS, LENGTH, ROWS
from vermilion.codegen.emit.decoder.heads import HeadsSpec
from vermilion.codegen.emit.decoder.weights import PANEL
from vermilion.codegen.tensor import Buffer, View
from vermilion.llm.engine.description import (
    Attention,
    Columns,
    Norm,
    Operation,
    Product,
    RowOperation,
    Rows,
)
from vermilion.llm.engine.lower import lower
from vermilion.llm.engine.lowering import Lowered, PackedMatrix, Shape, Weighed
from vermilion.llm.engine.matrices import Matrix, PlainMatrix

Array = NDArray[Any]
WIDTH, MAX_ROWS, COUNT = 64, 16, 5
SHAPE = Shape(MAX_ROWS, "f32", "f32", "f32", 1, is_single=False)
RANDOM = np.random.default_rng(0)
X = Rows("x", 0, WIDTH)


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def product(source: Rows, output: str, columns: int, **more: Any) -> Product:
    values = floats(source.width, columns) / np.float32(source.width**0.5)
    return Product(f"node {output}", source, output, Matrix((PlainMatrix(values),)), **more)


def total(
    inputs: Sequence[Rows], output: str, kept: str = "", norm: Norm | None = None
) -> Operation:
    kind: Any = "sum" if len(inputs) == 2 else "plain"
    return RowOperation(f"node {output}", kind, tuple(inputs), kept, norm, output)


def weighed(operations: Sequence[Operation], first_layer: int = 0) -> Weighed:
    matrices = {}
    for one in operations:
        if isinstance(one, Product) and one.columns is None:
            form = one.matrix.form()
            buffer = Buffer(f"matrix {one.output}", form.size_bytes, "input")
            matrices[one.output] = PackedMatrix(form, buffer)
    return Weighed(tuple(operations), matrices, first_layer)


def run(
    operations: Sequence[Operation], results: Mapping[str, int], x: Array
) -> tuple[Lowered, dict[str, Array]]:
    """Lower, compile and run; give the rows of the results."""
    lowered = lower(weighed(operations), SHAPE, {"x": WIDTH}, list(results))
    memory, inputs = Memory(), {buffer.name: buffer for buffer in lowered.inputs}

    def of(name: str, kind: type) -> Array:
        buffer = inputs[name]
        return memory.bytes_of(View(buffer, "u8", (1,), (1,)))[: buffer.size_bytes].view(kind)

    control = of("control", np.int64)
    control[:CONTROL_WORDS] = 0
    control[[ROWS, LENGTH]] = len(x)
    of("rows x", np.float32).reshape(-1, WIDTH)[: len(x)] = x
    for name, values in lowered.constants.items():
        of(name, np.float32)[:] = values.ravel()
    for one in operations:
        if isinstance(one, Product) and one.columns is None:
            one.matrix.pack(one.matrix.form(), of(f"matrix {one.output}", np.uint8))
    memory.run(lowered.steps, isa_for("cpu"))
    found = {}
    for name, width in results.items():
        rows = of(f"rows {name}", np.float32).reshape(-1, lowered.widths[name])
        found[name] = rows[: len(x), :width].copy()
    return lowered, found


def computed(operations: Sequence[Operation], x: Array) -> dict[str, Array]:
    """Return every value of the operations, worked out in double precision."""
    values = {"x": x.astype(np.float64)}
    matrices: dict[str, Array] = {}

    def read(rows: Rows) -> Array:
        return values[rows.buffer][:, rows.offset : rows.offset + rows.width]

    for one in operations:
        match one:
            case Product(columns=None):
                (part,) = one.matrix.parts
                assert isinstance(part, PlainMatrix)
                matrices[one.output] = part.values
                values[one.output] = read(one.source) @ part.values
                if one.bias is not None:
                    values[one.output] += one.bias
            case Product(columns=Columns(output, first, count)):
                place = slice(first, first + count)
                values[one.output] = read(one.source) @ matrices[output][:, place]
                if one.bias is not None:
                    values[one.output] += one.bias[place]
            case RowOperation():
                joined = sum(map(read, one.inputs))
                values[one.kept] = joined
                if one.norm is not None:
                    squares = np.square(joined).mean(1, keepdims=True)
                    joined = joined / np.sqrt(squares + one.norm.epsilon) * one.norm.weight
                values[one.output] = joined
    return values


def check(
    operations: Sequence[Operation], results: Mapping[str, int], count: int = COUNT
) -> Lowered:
    x = floats(count, WIDTH)
    lowered, found = run(operations, results, x)
    wanted = computed(operations, x)
    for name in results:
        difference = np.abs(found[name] - wanted[name]).max()
        assert difference < 1e-5 * np.abs(wanted[name]).max(), name
    return lowered


def kept_over(lowered: Lowered) -> list[str]:
    """Return the buffers that sums are kept in."""
    sums = [step for step in lowered.steps if getattr(step.spec, "keep_row", 0)]
    return [step.arguments[3].buffer.name for step in sums]


NORM = Norm(floats(WIDTH), 1e-3)


@pytest.mark.parametrize("count", [1, COUNT, MAX_ROWS])
def test_what_several_products_read_is_written_once(count: int) -> None:
    normed = Rows("n", 0, WIDTH)
    operations = [
        total([X], "n", norm=NORM),
        product(normed, "a", 33, bias=floats(33)),
        product(normed, "b", 64),
        product(Rows("b", 16, 48), "c", 32),  # some columns of what another gives
    ]
    lowered = check(operations, {"a": 33, "c": 32}, count)
    families = [step.spec.family for step in lowered.steps]
    assert families == ["row", "panel_product", "panel_product", "row", "panel_product"]


def test_some_columns_of_a_product() -> None:
    operations = [product(X, "whole", 160, bias=floats(160))]
    whole = operations[0]
    assert isinstance(whole, Product)
    for first, count in ((32, 64), (128, 32)):
        columns = Columns("whole", first, count)
        operations.append(
            Product("part", X, f"from {first}", whole.matrix, whole.bias, columns=columns)
        )
    check(operations, {"whole": 160, "from 32": 64, "from 128": 32})


def test_rows_are_kept_over_those_that_are_read_for_the_last_time() -> None:
    first, second = Rows("first", 0, WIDTH), Rows("second", 0, WIDTH)
    operations = [
        product(X, "first", WIDTH),
        total([first, X], "n", "second", NORM),  # over `first`, which nobody reads again
        product(Rows("n", 0, WIDTH), "delta", WIDTH),
        total([second, Rows("delta", 0, WIDTH)], "m", "third", NORM),
        product(second, "again", 32),  # `second` is read again: `third` must not lie over it
        product(Rows("third", 0, WIDTH), "last", 32),
    ]
    lowered = check(operations, {"m": WIDTH, "again": 32, "last": 32})
    assert kept_over(lowered) == ["first", "delta"]


def test_what_the_caller_gives_or_reads_is_not_written_over() -> None:
    operations = [
        total([X, X], "n", "kept", NORM),  # `x` is read for the last time, and the caller's
        product(Rows("n", 0, WIDTH), "delta", WIDTH),
        total([Rows("kept", 0, WIDTH), Rows("delta", 0, WIDTH)], "m", "end", NORM),
    ]
    lowered = check(operations, {"delta": WIDTH, "kept": WIDTH, "m": WIDTH})
    assert kept_over(lowered) == ["rows kept", "end"]


@pytest.mark.parametrize(
    ("columns", "step"), [(1024, 1024 + PANEL), (992, 992), (1000, 1024 + PANEL)]
)
def test_rows_are_no_pages_apart(columns: int, step: int) -> None:
    operations = [product(X, "wide", columns), product(Rows("wide", 32, 64), "end", 32)]
    assert check(operations, {"end": 32}).widths["wide"] == step


def test_rows_for_the_caller_lie_side_by_side() -> None:
    assert check([product(X, "wide", 1024)], {"wide": 1024}).widths["wide"] == 1024


def test_a_weight_that_two_nodes_share_is_given_once() -> None:
    operations = [
        total([X], "n", norm=NORM), total([Rows("n", 0, WIDTH)], "m", norm=NORM),
        total([X], "o", norm=Norm(floats(WIDTH), 1e-3)),
    ]  # fmt: skip
    lowered = check(operations, {"m": WIDTH, "o": WIDTH})
    assert len(lowered.constants) == 2


def attention(part: Any) -> Attention:
    size = 16
    query, key, value = (Rows("qkv", at, width) for at, width in ((0, 64), (64, 32), (96, 32)))
    return Attention("node", query, key, value, f"{part} out", 4, 2, size, 0.25, 9, 0.0, part)


def test_every_layer_has_its_own_cache() -> None:
    parts = ("whole", "keys", "queries")
    operations = [product(X, "qkv", 128), *map(attention, parts)]
    found = lower(weighed(operations, first_layer=3), SHAPE, {"x": WIDTH}, ["whole out"])
    caches = [
        buffer.name for buffer in found.inputs if buffer.name.split()[0] in ("keys", "values")
    ]
    assert caches == [f"{kind} {layer}" for layer in (3, 4, 5) for kind in ("keys", "values")]
    heads = [step.spec.part for step in found.steps if isinstance(step.spec, HeadsSpec)]
    assert heads == list(parts)
    attended = [step for step in found.steps if isinstance(step.spec, CachedAttentionSpec)]
    assert [step.arguments[2].buffer.name for step in attended] == ["keys 3", "keys 5"]
    assert {step.spec.window for step in attended} == {9}  # type: ignore[union-attr]
    assert attended[0].arguments[-1].buffer.name == "rows whole out"
