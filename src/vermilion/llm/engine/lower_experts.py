"""A mixture of experts → steps of our kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.block_product import BlockProductSpec
from vermilion.codegen.emit.decoder.experts import (
    CombineSpec,
    ExpertProductSpec,
    RoutedCopySpec,
    RoutedRowsSpec,
)
from vermilion.codegen.emit.decoder.panel_product import PanelProductSpec
from vermilion.codegen.emit.decoder.panel_tile import Gate
from vermilion.codegen.emit.decoder.routes import ChooseSpec, GroupSpec, Routes
from vermilion.codegen.emit.decoder.row import RowSpec
from vermilion.codegen.emit.decoder.weights import LANES, PANEL, PlainWeights
from vermilion.codegen.kernel import Spec
from vermilion.codegen.tensor import Buffer, View
from vermilion.llm.engine.description import ExpertMatrix, Experts, Floats
from vermilion.llm.engine.lower_products import gated_spec, product_spec, row_step, source_of
from vermilion.llm.engine.lowering import (
    SPARE_ROWS,
    Lowering,
    PackedMatrix,
    Shape,
    prepared_for,
    whole,
)

# Rows that a product of panels computes together, of which the last may not be there.
_TOGETHER = 4


def lower_experts(state: Lowering, operation: Experts, *, is_given: bool) -> None:
    """Write a mixture: the choice, the products of each expert's rows, their sum."""
    width = operation.second.columns
    out = whole(state.rows(operation.output, width, is_given=is_given))
    _Experts(state, operation).write(out, width)


@dataclass(frozen=True, eq=False)
class _Written:
    """Rows of all slots: where, and the numbers from one to the next."""

    view: View
    step: int


class _Experts:
    def __init__(self, state: Lowering, operation: Experts) -> None:
        self.state = state
        self.operation = operation
        self.packed = [state.matrices[name] for name, _ in operation.products]
        self.forms = [prepared_for(one.form, state.shape) for one in self.packed]
        routing = operation.routing
        pairs = zip(self.packed, self.forms, strict=True)
        is_single = all(_is_row_by_row(one, form, state.shape) for one, form in pairs)
        spacing = 1 if is_single else _TOGETHER
        self.routes = Routes(routing.experts, routing.chosen, state.shape.max_rows, spacing)
        size = self.routes.size_bytes
        self.table = whole(Buffer(f"{operation.output} routes", size, "arena"))

    def write(self, out: View, width: int) -> None:
        """Write all steps; `out` has rows of `width` numbers."""
        state, one = self.state, self.operation
        self._choose()
        inner = self._second_rows()
        last = one.second
        given = self._product(len(self.packed) - 1, last, inner, f"{one.output} slots")
        others, steps = [], [0, 0]
        for at, rows in enumerate((one.shared, one.share)):
            if rows is not None:
                view, steps[at] = state.view(rows)
                others.append(view)
        spec = CombineSpec(self.routes, width, given.step, width, *steps)
        self._add(spec, [self.table, given.view, *others, out], [out])

    def _choose(self) -> None:
        state, one = self.state, self.operation
        scores, step = state.view(one.scores)
        bias = []
        if one.choice_bias is not None:
            size = -(-one.routing.experts // LANES) * LANES
            padded = np.zeros(size, np.float32)
            padded[: one.routing.experts] = one.choice_bias
            bias = [state.constant(padded)]
        spec = ChooseSpec(one.routing, self.routes, step)
        self._add(spec, [scores, *bias, self.table], [self.table])
        self._add(GroupSpec(self.routes), [self.table], [self.table])

    def _second_rows(self) -> View:
        """Write the first products and what joins them; return the rows of the second."""
        one, form = self.operation, self.forms[-1]
        gathered: dict[ActivationLayout, View] = {}
        for own in self.forms[:-1]:
            if own not in gathered:
                gathered[own] = self._gathered(own)
        target = self._slots(f"{one.output} inner {form.kind}", form.row_bytes)
        gate = self._gate()
        if gate is not None:
            self._add_product(0, one.first[0], gate, gathered[self.forms[0]], target)
            return target
        written = [
            self._product(number, matrix, gathered[self.forms[number]], name)
            for number, (name, matrix) in enumerate(one.products[:-1])
        ]
        views = [(rows.view, rows.step) for rows in written]
        if one.is_joined:
            (rows,) = written
            views.append((whole(rows.view.buffer, one.inner * 4), rows.step))
        sources, steps = zip(*views, strict=True)
        spec = RowSpec(one.kind, one.inner, steps, 0, None, 0, (form,), self.routes.slots)
        routed = RoutedRowsSpec(self.routes, spec, len(sources) + 1)
        self._add(routed, [self.table, *sources, target], [target])
        return target

    def _gate(self) -> PanelProductSpec | None:
        """Return the first product with what joins its halves, where it can write what they give.

        It cannot for rows in 8 bits, whose scales are of whole blocks, nor for a single row.
        """
        one, state = self.operation, self.state
        is_fit = one.is_joined and one.inner % PANEL == 0 and not state.shape.is_single
        if not is_fit or "int8" in (self.forms[0].kind, self.forms[-1].kind):
            return None
        has_bias = one.first[0].bias is not None
        gate = Gate(one.kind, self.forms[-1])
        return gated_spec(self.packed[0].form, self.forms[0], gate, state.shape, has_bias=has_bias)

    def _gathered(self, form: ActivationLayout) -> View:
        """Write the rows of all slots in the form of a product."""
        one = self.operation
        rows = source_of(self.state, one.source, form, one.node)
        target = self._slots(f"{one.output} gathered {form.kind}", form.row_bytes)
        spec = RoutedCopySpec(self.routes, form.row_bytes)
        self._add(spec, [self.table, rows, target], [target])
        return target

    def _product(self, number: int, matrix: ExpertMatrix, rows: View, name: str) -> _Written:
        """Write a product of all experts; return its rows."""
        weights = self.packed[number].form
        step = row_step(weights)
        spec = product_spec(
            weights, self.forms[number], step, self.state.shape, has_bias=matrix.bias is not None
        )
        out = self._slots(name, step * 4)
        self._add_product(number, matrix, spec, rows, out)
        return _Written(out, step)

    def _add_product(
        self, number: int, matrix: ExpertMatrix, product: BlockProductSpec | PanelProductSpec,
        rows: View, out: View,
    ) -> None:  # fmt: skip
        packed = self.packed[number]
        weights = whole(self.state.given(packed.buffer.name, packed.buffer.size_bytes))
        bias = [] if matrix.bias is None else [self.state.constant(_padded(matrix, packed))]
        spec = ExpertProductSpec(self.routes, product)
        operations = 2 * self.routes.pairs * packed.form.depth * packed.form.columns
        self._add(spec, [self.table, rows, weights, out, *bias], [out], operations)

    def _slots(self, name: str, row_bytes: int) -> View:
        size = (self.routes.slots + SPARE_ROWS) * row_bytes
        return whole(Buffer(name, size, "arena"))

    def _add(
        self, spec: Spec, arguments: list[View], writes: list[View], operations: int = 0
    ) -> None:
        own = [self.state.control, *arguments]
        self.state.add(spec, own, writes, self.operation.node, operations)


def _is_row_by_row(packed: PackedMatrix, rows: ActivationLayout, shape: Shape) -> bool:
    """Say whether a product computes no rows beyond those that are there."""
    form = packed.form
    is_plain = isinstance(form, PlainWeights) and form.storage == "f32" and rows.kind == "f32"
    return rows.kind == "int8" or (shape.is_single and is_plain)


def _padded(matrix: ExpertMatrix, packed: PackedMatrix) -> Floats:
    """Return all experts' biases as whole panels."""
    assert matrix.bias is not None, "there is a bias"
    width = packed.form.panels * PANEL
    return np.pad(matrix.bias, ((0, 0), (0, width - matrix.bias.shape[1])))
