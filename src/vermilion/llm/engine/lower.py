"""A decoder's description → steps of our kernels, for few rows or for many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.row import RowSpec
from vermilion.codegen.tensor import View
from vermilion.llm.engine.description import Attention, Product, RowOperation
from vermilion.llm.engine.join import gates_of, sources
from vermilion.llm.engine.lower_attention import lower_attention
from vermilion.llm.engine.lower_products import lower_gated, lower_product
from vermilion.llm.engine.lowering import (
    Lowered,
    Lowering,
    Shape,
    Weighed,
    packed_of,
    prepared_for,
    whole,
)


def lower(
    weighed: Weighed, shape: Shape, given: Mapping[str, int], results: Sequence[str]
) -> Lowered:
    """Write the steps of `operations`.

    `given` are the buffers that the caller fills and their widths; `results` are the buffers that
    the caller reads, which it gives as well.
    """
    forms: dict[tuple[str, int, int], list[ActivationLayout]] = defaultdict(list)
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
    state = Lowering(shape, weighed.matrices, dict(forms), wanted)
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
                lower_gated(state, operation, gates[operation.output])
            case Product():
                lower_product(state, operation, is_given=operation.output in results)
            case RowOperation() if operation.output in joined:
                pass  # it is the end of a product
            case RowOperation():
                ended = {name for name, end in last.items() if end == at and name not in results}
                _lower_rows(state, operation, results, ended)
            case Attention():
                lower_attention(state, operation, layer, results)
                layer += 1
    widths = {name: width for name, (_, width) in state.buffers.items()}
    return Lowered(tuple(state.steps), tuple(state.inputs.values()), state.constants, widths)


def _lower_rows(
    state: Lowering, operation: RowOperation, results: Sequence[str], ended: Collection[str]
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
    out = [whole(state.rows(operation.output, width, is_given=is_given))] if is_wanted else []
    key = (operation.output, 0, width)
    forms = tuple(state.forms.get(key, ()))
    prepared = [state.prepare(key, form) for form in forms]
    spec = RowSpec(
        operation.kind, width, steps, kept_row, norm.epsilon if norm else None,
        width if out else 0, forms, state.shape.max_rows,
    )  # fmt: skip
    arguments = [state.control, *views, *kept, *weight, *out, *prepared]
    state.add(spec, arguments, [*kept, *out, *prepared], operation.node)


def _kept(
    state: Lowering, operation: RowOperation, results: Sequence[str], ended: Collection[str]
) -> tuple[View, int]:
    """Return where rows are kept: over those that are read for the last time, if any are ours."""
    width, is_given = operation.inputs[0].width, operation.kept in results
    for rows in operation.inputs:
        buffer, step = state.buffers[rows.buffer]
        is_ours = buffer.place == "arena" and (rows.offset, step) == (0, width)
        if is_ours and rows.buffer in ended and not is_given:
            state.buffers[operation.kept] = (buffer, step)
            return whole(buffer), step
    return whole(state.rows(operation.kept, width, is_given=is_given)), width
