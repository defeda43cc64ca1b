"""A part of a model → steps, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from vermilion.codegen.emit.map import map_step
from vermilion.codegen.extents import with_room
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.attention import find_attentions
from vermilion.codegen.lower.context import (
    STORAGE_OF,
    Border,
    FloatStorage,
    Lowering,
    converted,
    copy_step,
    refuse,
)
from vermilion.codegen.lower.dead_taps import drop_dead_taps
from vermilion.codegen.lower.dynamic_quantize import scales_of_run
from vermilion.codegen.lower.elementwise import emit_elementwise, extent_of
from vermilion.codegen.lower.geometry import conv_geometry, conv_shape
from vermilion.codegen.lower.groups import Group, find_groups
from vermilion.codegen.lower.integer_convolution import emit_conv_integer
from vermilion.codegen.lower.integer_matmul import emit_matmul_integer
from vermilion.codegen.lower.integer_product import emit_integer_product
from vermilion.codegen.lower.integers import keep_integers
from vermilion.codegen.lower.patterns.definitions import write_definitions
from vermilion.codegen.lower.patterns.normalization import join_normalizations
from vermilion.codegen.lower.patterns.rounded_attention import open_rounded_attentions
from vermilion.codegen.lower.product import emit_product, winograd_scheme
from vermilion.codegen.lower.quantized import integer_product
from vermilion.codegen.lower.result_shapes import contradiction
from vermilion.codegen.lower.rules import is_elementwise, is_product, lowering_of
from vermilion.codegen.lower.transposed import transposed_border
from vermilion.codegen.lower.wide_product import emit_wide_product, wide_product
from vermilion.codegen.lower.winograd import Shape, needed_border
from vermilion.codegen.tensor import STORAGE_BYTES, Buffer, View, allocate, contiguous_strides
from vermilion.ir.opset import constant_of, static_shape
from vermilion.ir.symbolic import known_value

# The largest number of bfloat16; what lies above would become infinite.
_LARGEST_BFLOAT16 = 3.3895313892515355e38
# What may give its operand's own size: masks of -3.4e38 pass through these.
_KEEPS_SIZE = frozenset(
    {
        "Abs", "Add", "Cast", "Clip", "Concat", "Expand", "Flatten", "Gather", "Identity", "Max",
        "Min", "Mul", "Neg", "Pad", "Reshape", "Slice", "Squeeze", "Sub", "Tile", "Transpose",
        "Unsqueeze", "Where",
    }
)  # fmt: skip


@dataclass(frozen=True)
class LoweredPart:
    """The steps of a part, and the buffers that stand for its inputs and outputs.

    `values` has the view of every result of a node that lies in memory at some time, by its name.
    """

    steps: tuple[Step, ...]
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    values: Mapping[str, View] = field(default_factory=dict)


def lower_part(
    model: ir.Model,
    isa: Isa,
    float_storage: FloatStorage = "f32",
    *,
    winograd: bool = True,
    packed: dict[tuple[str, ...], View] | None = None,
) -> LoweredPart:
    """Lower every node of a part that the rules take.

    `packed` are weights that another lowering of the same part packed; more are added.

    Inputs and outputs are row-major, in the types that the model declares. Without `winograd`,
    3×3 convolutions are computed directly.

    Raises: UnsupportedError where a value is not of the type and shape that its node gives.
    """
    _check_shapes(model.graph)
    kept = keep_integers(model)
    if float_storage == "f32":  # weights of bfloat16 would be rounded once more
        kept = open_rounded_attentions(kept)
    written = write_definitions(join_normalizations(kept))
    graph = drop_dead_taps(written).graph
    _check_shapes(graph)
    groups = find_groups(graph, is_elementwise, is_product, extent_of)
    attentions = find_attentions(graph, groups)
    lowering = Lowering(isa, float_storage, groups, {}, _emit, winograd, attentions)
    if float_storage == "bf16":
        lowering.always_f32 = _kept_in_float32(graph) | scales_of_run(graph)
    if packed is not None:
        lowering.packed = packed
    inside = {attention.softmax for attention in attentions.values()}
    lowering.borders.update(_borders(lowering, graph))
    inputs = [_external(value, "input") for value in graph.inputs if not value.is_initializer()]
    for view in inputs:
        lowering.views[view.buffer.name] = _imported(lowering, view)
    for node in graph:
        if node not in groups and node not in inside and not follows_from_sizes(node):
            lowering_of(node)(lowering, node)
    results = [(lowering.demand(value), _external(value, "output")) for value in graph.outputs]
    direct = [_can_be_output(lowering, results, number) for number in range(len(results))]
    outputs = []
    for (view, target), is_direct in zip(results, direct, strict=True):
        name = target.buffer.name
        if is_direct:
            view.buffer.place, view.buffer.name = "output", name
            outputs.append(view)
            continue
        lowering.add(map_step([view], [target], [converted(view, target)], [f"result {name}"]))
        outputs.append(target)
    steps = with_room(lowering.steps, isa)
    values = _comparable(model, lowering.views)
    return LoweredPart(tuple(steps), tuple(inputs), tuple(outputs), values)


def _kept_in_float32(graph: ir.Graph) -> frozenset[str]:
    """Return the values that a program in bfloat16 stores as float32 all the same.

    Constants that are added or multiplied number by number: of 8.07 in a table of positions
    bfloat16 would keep 8.0625. And all in which finite numbers would become infinite: a row that is
    masked by -3.4e38 throughout has a softmax, one of infinities has none. And what a reduction
    gives, where only numbers are computed of it: what is near to its mean is lost in a mean of
    three digits.
    """
    beyond, exact = set[str](), set[str]()
    for node in graph:
        inputs = [value for value in node.inputs if value is not None]
        if node.op_type in _KEEPS_SIZE:
            beyond.update(str(value.name) for value in inputs if _is_beyond(value))
            if any(value.name in beyond for value in inputs):
                beyond.update(str(value.name) for value in node.outputs)
        result = node.outputs[0]
        if node.op_type.startswith("Reduce") and all(map(is_elementwise, result.consumers())):
            exact.add(str(result.name))
        for value in inputs if is_elementwise(node) else ():
            if constant_of(value) is not None and all(map(is_elementwise, value.consumers())):
                exact.add(str(value.name))
    return frozenset(beyond | exact)


def _is_beyond(value: ir.Value) -> bool:
    tensor = constant_of(value)
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or not tensor.size:
        return False
    sizes = np.abs(tensor.numpy())
    return bool(np.any(np.isfinite(sizes) & (sizes > _LARGEST_BFLOAT16)))


def follows_from_sizes(node: ir.Node) -> bool:
    """Say whether what a node gives is computed from sizes alone, and not by a kernel."""
    return known_value(node.outputs[0].name) is not None


def _comparable(model: ir.Model, views: Mapping[str, View]) -> dict[str, View]:
    """Return the views that hold a result of a node as the model says it: shape and data type."""
    found: dict[str, View] = {}
    for node in model.graph:
        for value in node.outputs:
            view = views.get(str(value.name))
            own = None if value.dtype is None else STORAGE_OF.get(value.dtype)
            if view is None or own is None or view.shape != static_shape(value):
                continue
            if view.storage == own or (own in ("f32", "f16") and view.storage in ("bf16", "f32")):
                found[str(value.name)] = view
    return found


def _check_shapes(graph: ir.Graph) -> None:
    """Compute what every node gives from its inputs; memory is laid out by nothing else."""
    for node in graph:
        reason = "" if follows_from_sizes(node) else contradiction(node)
        if reason:
            raise refuse(node, reason)


def _can_be_output(lowering: Lowering, results: Sequence[tuple[View, View]], number: int) -> bool:
    """Say whether kernels may write a result straight to where the caller wants it.

    Nobody else may need it: a caller's memory has no room behind it.
    """
    view, target = results[number]
    return (
        view.buffer.place == "arena"
        and view.buffer.size_bytes == target.buffer.size_bytes
        and view.storage == target.storage
        and view.is_contiguous
        and sum(other.buffer is view.buffer for other, _ in results) == 1
        and not any(
            other.buffer is view.buffer
            for step in lowering.steps
            for other in step.arguments
            if not any(other is written for written in step.writes)
        )
    )


def _emit(lowering: Lowering, group: Group) -> None:
    node = group.anchor
    if node is None:
        emit_elementwise(lowering, group)
    elif node.op_type == "MatMulInteger":
        emit_matmul_integer(lowering, group, node)
    elif node.op_type == "ConvInteger":
        emit_conv_integer(lowering, group, node)
    elif (integer := integer_product(node)) is not None:
        emit_integer_product(lowering, group, integer)
    elif (wide := wide_product(node)) is not None:
        emit_wide_product(lowering, group, wide)
    else:
        emit_product(lowering, group)


def _external(value: ir.Value, place: str) -> View:
    shape = static_shape(value)
    assert shape is not None, f"{value.name} has no fixed shape"
    assert value.dtype is not None
    storage = STORAGE_OF[value.dtype]
    size = STORAGE_BYTES[storage]
    for extent in shape:
        size *= extent
    buffer = Buffer(str(value.name), size, place)  # type: ignore[arg-type]
    return View(buffer, storage, shape, contiguous_strides(shape))


def _imported(lowering: Lowering, view: View) -> View:
    """Return an input as the program computes with it: floats in the precision asked for."""
    if view.storage != "f32" or lowering.float_storage == "f32":
        return view
    order = (0, 2, 3, 1) if len(view.shape) == 4 else None
    border = lowering.borders.get(view.buffer.name)
    if border is not None and not border.is_empty and order is not None:
        target = lowering.bordered(view.buffer.name, "bf16", view.shape, border)
    else:
        target = allocate(view.buffer.name, "bf16", view.shape, order)
    label = f"input {view.buffer.name}"
    if order is not None:
        lowering.add(copy_step(view, target, label))
    else:
        lowering.add(map_step([view], [target], [converted(view, target)], [label]))
    return target


def _borders(lowering: Lowering, graph: ir.Graph) -> dict[str, Border]:
    """Return, for each tensor that convolutions read, the border that is enough for all of them."""
    borders: dict[str, Border] = {}
    for node in graph:
        if node.op_type not in ("Conv", "ConvTranspose") or not is_product(node):
            continue
        if wide_product(node) is not None:
            continue  # its bytes are written apart, inside a border of their own
        integer = integer_product(node)
        data = node.inputs[0] if integer is None else integer.data
        if data is None or len(static_shape(data) or ()) != 4:
            continue
        border = _border_of_node(lowering, node, is_float=integer is None)
        if integer is not None:
            border = replace(border, byte=integer.grid.zero)
        if not border.is_empty:
            name = str(data.name)
            borders[name] = borders[name].joined(border) if name in borders else border
    return borders


def _border_of_node(lowering: Lowering, node: ir.Node, *, is_float: bool) -> Border:
    if node.op_type == "ConvTranspose":
        return transposed_border(node)
    geometry = conv_geometry(node)
    scheme = winograd_scheme(lowering, node) if is_float else 0
    return needed_border(geometry, Shape(*conv_shape(node)), scheme) if scheme else geometry.border
