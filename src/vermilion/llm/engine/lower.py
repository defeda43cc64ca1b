"""A decoder's description → steps of our kernels, for few rows or for many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from vermilion.codegen.emit.decoder.block_product import BlockProductSpec
from vermilion.codegen.emit.decoder.cache import CacheForm
from vermilion.codegen.emit.decoder.cached_attention import CachedAttentionSpec
from vermilion.codegen.emit.decoder.control import CONTROL_WORDS
from vermilion.codegen.emit.decoder.halved_rows import HalvedRows, HalvedRowsSpec
from vermilion.codegen.emit.decoder.heads import HeadsSpec
from vermilion.codegen.emit.decoder.panel_product import PanelProductSpec
from vermilion.codegen.emit.decoder.panel_tile import Gate
from vermilion.codegen.emit.decoder.prepared import Prepared, PreparedKind
from vermilion.codegen.emit.decoder.row import RowSpec
from vermilion.codegen.emit.decoder.running_softmax import score_unit
from vermilion.codegen.emit.decoder.weights import PANEL, BlockWeights, Weights
from vermilion.codegen.kernel import Spec, Step
from vermilion.codegen.tensor import Buffer, View
from vermilion.llm.engine.description import (
    Attention,
    Floats,
    Operation,
    Product,
    RowOperation,
    Rows,
)
from vermilion.llm.engine.join import gates_of, sources
from vermilion.llm.engine.seven import seven_of

# Rows that are computed beyond the last one, at most: buffers have room for them.
_SPARE_ROWS = 4
_PAGE_BYTES = 4096
# Rows in a register tile of whole-number products.
_ROW_TILE = 6


@dataclass(frozen=True)
class Shape:
    """For how many rows a program is made, and in which numbers it multiplies.

    `codes` is how products with weights in blocks are computed, `plain` those with float32 weights.
    """

    max_rows: int
    codes: PreparedKind
    plain: PreparedKind
    cache: Literal["bf16", "f32"]
    positions: int  # of a unit of attention
    is_single: bool  # whether products are made for one row


@dataclass(frozen=True, eq=False)
class Lowered:
    """Steps, and the buffers that the caller gives: by name, in the order of their number."""

    steps: tuple[Step, ...]
    inputs: tuple[Buffer, ...]
    constants: dict[str, Floats]  # those of the inputs that are small weights of the model
    widths: dict[str, int]  # numbers from one row to the next, of each value


@dataclass(frozen=True, eq=False)
class PackedMatrix:
    """A product's weights in memory: buffers that every program shares, from some panel on."""

    form: Weights
    buffer: Buffer
    first_panel: int = 0

    @property
    def offset_bytes(self) -> int:
        """Bytes of the buffer before them."""
        return self.first_panel * self.form.panel_bytes


@dataclass(frozen=True, eq=False)
class Weighed:
    """An operation list whose products are joined, with where their weights are.

    `first_layer` is the one that the first attention is of.
    """

    operations: tuple[Operation, ...]
    matrices: dict[str, PackedMatrix]  # by the product's output
    first_layer: int = 0


@dataclass
class _Lowering:
    shape: Shape
    matrices: dict[str, PackedMatrix]
    forms: dict[tuple[str, int, int], list[Prepared]]
    wanted: set[str]  # buffers that are read as float32
    steps: list[Step] = field(default_factory=list)
    inputs: dict[str, Buffer] = field(default_factory=dict)
    constants: dict[str, Floats] = field(default_factory=dict)
    buffers: dict[str, tuple[Buffer, int]] = field(default_factory=dict)
    prepared: dict[tuple[str, int, int, Prepared], Buffer] = field(default_factory=dict)
    # By the prepared rows: blocks of another length cut the depth into other runs.
    halved: dict[tuple[Buffer, HalvedRows], View] = field(default_factory=dict)

    def given(self, name: str, size: int) -> Buffer:
        """Give a buffer of the caller's."""
        if name not in self.inputs:
            self.inputs[name] = Buffer(name, size, "input")
        return self.inputs[name]

    def packed(self, product: Product) -> PackedMatrix:
        """Give a product's weights."""
        return packed_of(self.matrices, product)

    def constant(self, values: Floats) -> View:
        """Give a small weight; the same one is given once."""
        for name, known in self.constants.items():
            if known is values:
                return _whole(self.inputs[name])
        name = f"constant {len(self.constants)}"
        self.constants[name] = values
        return _whole(self.given(name, values.nbytes))

    def rows(self, name: str, width: int, *, is_given: bool = False) -> Buffer:
        """Make the buffer of a value: float32 rows of `width` numbers."""
        size = (self.shape.max_rows + _SPARE_ROWS) * width * 4
        # A name of the graph may be any; one of ours begins otherwise.
        buffer = self.given(f"rows {name}", size) if is_given else Buffer(name, size, "arena")
        self.buffers[name] = (buffer, width)
        return buffer

    def view(self, rows: Rows) -> tuple[View, int]:
        """Give rows as an argument, and the numbers from one to the next."""
        buffer, step = self.buffers[rows.buffer]
        return _whole(buffer, rows.offset * 4), step

    @property
    def control(self) -> View:
        """The control block."""
        return _whole(self.given("control", CONTROL_WORDS * 8))

    def add(
        self, spec: Spec, arguments: Sequence[View], writes: Sequence[View], node: str,
        operations: int = 0,
    ) -> None:  # fmt: skip
        """Add a step."""
        self.steps.append(Step(spec, tuple(arguments), tuple(writes), (node,), operations))


def _whole(buffer: Buffer, offset_bytes: int = 0) -> View:
    return View(buffer, "u8", (buffer.size_bytes - offset_bytes,), (1,), offset_bytes)


def packed_of(matrices: Mapping[str, PackedMatrix], product: Product) -> PackedMatrix:
    """Give the weights of a product, or of some columns of one."""
    columns = product.columns
    if columns is None:
        return matrices[product.output]
    whole = matrices[columns.output]
    assert columns.first % PANEL == 0, "columns begin with a panel"
    form = replace(whole.form, columns=columns.count)
    return replace(whole, form=form, first_panel=columns.first // PANEL)


def prepared_for(form: Weights, shape: Shape) -> Prepared:
    """Give how a product's rows are written."""
    if not isinstance(form, BlockWeights):
        return Prepared(shape.plain, form.depth)
    if shape.codes == "int8":
        return Prepared("int8", form.depth, form.block, form.zero)
    return Prepared(shape.codes, form.depth)


def lower(
    weighed: Weighed, shape: Shape, given: Mapping[str, int], results: Sequence[str]
) -> Lowered:
    """Write the steps of `operations`.

    `given` are the buffers that the caller fills and their widths; `results` are the buffers that
    the caller reads, which it gives as well.
    """
    forms: dict[tuple[str, int, int], list[Prepared]] = defaultdict(list)
    wanted = set(results)
    for operation in weighed.operations:
        match operation:
            case Product(source=rows):
                form = prepared_for(packed_of(weighed.matrices, operation).form, shape)
                key = (rows.buffer, rows.offset, rows.width)
                if form not in forms[key]:
                    forms[key].append(form)
            case RowOperation() | Attention():
                wanted |= {rows.buffer for rows in sources(operation)}
    state = _Lowering(shape, weighed.matrices, dict(forms), wanted)
    for name, width in given.items():
        state.rows(name, width, is_given=True)
    found = {} if shape.is_single else gates_of(weighed.operations, forms, wanted)
    gates = {output: gate for output, gate in found.items() if output not in results}
    joined = {operation.output for operation in gates.values()}
    layer = weighed.first_layer
    last = {rows.buffer: at for at, one in enumerate(weighed.operations) for rows in sources(one)}
    for at, operation in enumerate(weighed.operations):
        match operation:
            case Product() if operation.output in gates:
                _lower_gated(state, operation, gates[operation.output])
            case Product():
                _lower_product(state, operation, is_given=operation.output in results)
            case RowOperation() if operation.output in joined:
                pass  # it is the end of a product
            case RowOperation():
                ended = {name for name, end in last.items() if end == at and name not in results}
                _lower_rows(state, operation, results, ended)
            case Attention():
                _lower_attention(state, operation, layer, results)
                layer += 1
    widths = {name: width for name, (_, width) in state.buffers.items()}
    return Lowered(tuple(state.steps), tuple(state.inputs.values()), state.constants, widths)


def _lower_rows(
    state: _Lowering, operation: RowOperation, results: Sequence[str], ended: Collection[str]
) -> None:
    """Write a row operation; the rows in `ended` buffers are read for the last time."""
    width = operation.inputs[0].width
    views, steps = zip(*map(state.view, operation.inputs), strict=True)
    kept, kept_row = [], 0
    if operation.kept:
        view, kept_row = _kept(state, operation, results, ended)
        kept = [view]
    norm = operation.norm
    weight = [state.constant(norm.weight)] if norm else []
    is_wanted = operation.output in state.wanted
    is_given = operation.output in results
    out = [_whole(state.rows(operation.output, width, is_given=is_given))] if is_wanted else []
    key = (operation.output, 0, width)
    forms = tuple(state.forms.get(key, ()))
    prepared = [_whole(_prepare_buffer(state, key, form)) for form in forms]
    spec = RowSpec(
        operation.kind, width, steps, kept_row, norm.epsilon if norm else None,
        width if out else 0, forms, state.shape.max_rows,
    )  # fmt: skip
    arguments = [state.control, *views, *kept, *weight, *out, *prepared]
    state.add(spec, arguments, [*kept, *out, *prepared], operation.node)


def _kept(
    state: _Lowering, operation: RowOperation, results: Sequence[str], ended: Collection[str]
) -> tuple[View, int]:
    """Give where rows are kept: over those that are read for the last time, if any are ours."""
    width, is_given = operation.inputs[0].width, operation.kept in results
    for rows in operation.inputs:
        buffer, step = state.buffers[rows.buffer]
        is_ours = buffer.place == "arena" and (rows.offset, step) == (0, width)
        if is_ours and rows.buffer in ended and not is_given:
            state.buffers[operation.kept] = (buffer, step)
            return _whole(buffer), step
    return _whole(state.rows(operation.kept, width, is_given=is_given)), width


def _prepare_buffer(state: _Lowering, key: tuple[str, int, int], form: Prepared) -> Buffer:
    size = (state.shape.max_rows + _SPARE_ROWS) * form.row_bytes
    buffer = Buffer(f"{key[0]} {form.kind}", size, "arena")
    state.prepared[(*key, form)] = buffer
    return buffer


def _lower_product(state: _Lowering, operation: Product, *, is_given: bool) -> None:
    packed = state.packed(operation)
    width = packed.form.panels * PANEL
    # Rows a multiple of a page apart would have what a panel writes in one set of a cache; a panel
    # more, and no two lines of a tile are in the same.
    step = width if is_given or width * 4 % _PAGE_BYTES else width + PANEL
    source, form = _source_of(state, operation)
    spec = _product_spec(
        packed.form, form, step, state.shape, has_bias=operation.bias is not None
    )  # fmt: skip
    out = _whole(state.rows(operation.output, step, is_given=is_given))
    _add_product(state, operation, spec, source, out)


def _lower_gated(state: _Lowering, operation: Product, gate: RowOperation) -> None:
    """Write a product whose halves are joined where they are computed."""
    key = (gate.output, 0, gate.inputs[0].width)
    (form,) = state.forms[key]
    source, rows = _source_of(state, operation)
    weights = state.packed(operation).form
    numeric: Literal["bf16", "f32"] = "f32" if rows.kind == "f32" else "bf16"
    spec = PanelProductSpec(
        numeric, weights, rows, 0, operation.bias is not None, state.shape.max_rows,
        is_single=False, gate=Gate(gate.kind, form),
    )  # fmt: skip
    _add_product(state, operation, spec, source, _whole(_prepare_buffer(state, key, form)))


def _source_of(state: _Lowering, operation: Product) -> tuple[View, Prepared]:
    """Give a product's rows as it reads them; they are written where nobody did."""
    form = prepared_for(state.packed(operation).form, state.shape)
    rows = operation.source
    key = (rows.buffer, rows.offset, rows.width)
    if (*key, form) not in state.prepared:
        view, step = state.view(rows)
        target = _whole(_prepare_buffer(state, key, form))
        plain = RowSpec("plain", rows.width, (step,), 0, None, 0, (form,), state.shape.max_rows)
        state.add(plain, [state.control, view, target], [target], operation.node)
    return _whole(state.prepared[(*key, form)]), form


def _add_product(state: _Lowering, operation: Product, spec: Spec, source: View, out: View) -> None:
    packed = state.packed(operation)
    bias = []
    if operation.bias is not None:
        columns = operation.columns
        first = columns.first if columns else 0
        own = operation.bias[first : first + packed.form.columns]
        padded = np.zeros(packed.form.panels * PANEL, np.float32)
        padded[: own.size] = own
        bias = [state.constant(padded)]
    buffer = state.given(packed.buffer.name, packed.buffer.size_bytes)
    weights = _whole(buffer, packed.offset_bytes)
    seven = seven_of(spec) if isinstance(spec, PanelProductSpec) else None
    if seven is not None and isinstance(spec, PanelProductSpec):
        sums = _halved(state, source, HalvedRowsSpec(spec.rows, seven.rows, seven.least_rows))
        state.add(seven, [state.control, sums, weights, out, *bias], [out], operation.node)
        spec = replace(spec, most_rows=seven.least_rows - 1)
    operations = 2 * state.shape.max_rows * packed.form.depth * packed.form.columns
    arguments = [state.control, source, weights, out, *bias]
    state.add(spec, arguments, [out], operation.node, operations)


def _halved(state: _Lowering, source: View, spec: HalvedRowsSpec) -> View:
    """Give the sums of rows that products of quarters read; they are written once."""
    key = (source.buffer, spec.form)
    if key not in state.halved:
        buffer = Buffer(f"{source.buffer.name} sums", spec.form.size_bytes, "arena")
        target = state.halved[key] = _whole(buffer)
        state.add(spec, [state.control, source, target], [target], buffer.name)
    return state.halved[key]


def _product_spec(
    weights: Weights, rows: Prepared, width: int, shape: Shape, *, has_bias: bool
) -> Spec:
    if rows.kind == "int8":
        assert isinstance(weights, BlockWeights), "whole numbers need codes"
        tile = 1 if shape.is_single else _ROW_TILE
        return BlockProductSpec(weights, rows, width, tile, has_bias)
    numeric: Literal["bf16", "f32"] = "f32" if rows.kind == "f32" else "bf16"
    return PanelProductSpec(
        numeric, weights, rows, width, has_bias, shape.max_rows, shape.is_single
    )  # fmt: skip


def _lower_attention(
    state: _Lowering, operation: Attention, layer: int, results: Sequence[str]
) -> None:
    shape, form = state.shape, CacheForm(state.shape.cache, operation.head_size)
    width = operation.query_heads * operation.head_size
    size = (shape.max_rows + _SPARE_ROWS) * width * form.item_bytes
    keys = _whole(state.given(f"keys {layer}", 64))
    values = _whole(state.given(f"values {layer}", 64))
    queries = _whole(Buffer(f"{operation.node} queries", size, "arena"))
    kept = [] if operation.part == "queries" else [keys, values]
    asked = [] if operation.part == "keys" else [queries]
    _lower_heads(state, operation, [*kept, *asked])
    if operation.part == "keys":
        return
    group = operation.query_heads // operation.key_heads
    out = _whole(state.rows(operation.output, width, is_given=operation.output in results))
    attention = CachedAttentionSpec(
        form, operation.key_heads, group, shape.positions, operation.window, operation.bound,
        width, shape.max_rows,
    )  # fmt: skip
    state.add(attention, [state.control, queries, keys, values, out], [out], operation.node)


def _lower_heads(state: _Lowering, operation: Attention, written: Sequence[View]) -> None:
    form = CacheForm(state.shape.cache, operation.head_size)
    views, steps = zip(*map(state.view, sources(operation)), strict=True)
    query, key = operation.query, operation.key
    rotation = query.rotation
    waves = []
    if rotation is not None:
        waves = [state.constant(rotation.cosines), state.constant(rotation.sines)]
    own = {"whole": (query, key), "keys": (key,), "queries": (query,)}[operation.part]
    norms = [state.constant(rows.norm.weight) for rows in own if rows.norm is not None]
    query_epsilon, key_epsilon = (
        None if rows.norm is None or rows not in own else rows.norm.epsilon for rows in (query, key)
    )
    heads = HeadsSpec(
        form, operation.query_heads, operation.key_heads, steps,
        operation.scale * score_unit(form), 2 * rotation.cosines.shape[1] if rotation else 0,
        query_epsilon, key_epsilon, state.shape.max_rows, operation.part,
    )  # fmt: skip
    arguments = [state.control, *views, *waves, *norms, *written]
    state.add(heads, arguments, written, operation.node)
