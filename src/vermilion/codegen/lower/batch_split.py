"""A batch as one program run an entry: what lies between two steps then stays near.

ResNet-50 with a batch of 8 has 25 MB between two steps, with one entry 3 MB. It is done where every
node treats its entries apart, which is decided operator by operator, and where an entry is enough
work for the weights that it reads again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from vermilion.codegen.lower.open_sizes import OpenModel, at_batch
from vermilion.codegen.lower.result_shapes import contradiction
from vermilion.ir.attributes import integer, integers
from vermilion.ir.cost import node_cost
from vermilion.ir.ops import find_operator
from vermilion.ir.opset import constant_of, is_standard, required_inputs, static_shape
from vermilion.ir.passes.rewrite import new_weight
from vermilion.ir.symbolic import examples, known_value

# Operations of one entry for each byte of weights that it reads again: memory gives a core a byte
# in the time of about three (35 GB/s against 100 operations a nanosecond).
_LEAST_OPERATIONS_A_BYTE = 16.0
# What two steps hand over in a batch: below it, the whole batch stays near anyway.
_FAR_BYTES = 1_500_000
# Rows of the step table.
_MOST_STEPS = 20_000
# What stands for any batch where it is decided whether entries are apart.
_TRIED_BATCH = 8


@dataclass(frozen=True)
class OneEntry:
    """The model for one entry of `batch`."""

    model: ir.Model
    batch: int


Carries = Callable[[ir.Value | None], bool]


def one_entry(model: ir.Model) -> OneEntry | None:
    """Return the model for one entry of its batch, None where it is better run whole."""
    batch = _batch(model)
    if batch < 2 or len(model.graph) * batch > _MOST_STEPS or not _pays(model, batch):
        return None
    if not _entries_are_apart(model.graph, batch):
        return None
    work = model.clone()
    carried = _carried(work.graph, batch)
    assert carried is not None, "a copy is as the original"
    for value in carried:
        value.shape = ir.Shape([1, *(static_shape(value) or ())[1:]])
    for node in work.graph:
        if node.op_type == "Reshape":
            _reshape_one(work.graph, node, batch)
    # A constant that says the whole batch's size (of a Resize, say) says so of one entry too.
    if any(contradiction(node) for node in work.graph):
        return None
    return OneEntry(work, batch)


def any_batch(model: ir.Model) -> OpenModel | None:
    """Return a model whose batch is open for one entry, None where that is no way to run it.

    Nothing else may be open, and a batch must be better run entry by entry.
    """
    firsts = set()
    for value in (*required_inputs(model), *model.graph.outputs):
        dims = None if value.shape is None else value.shape.dims
        if not dims or not isinstance(dims[0], ir.SymbolicDim):
            return None
        firsts.add(dims[0].value)
        if value in model.graph.inputs and not all(isinstance(size, int) for size in dims[1:]):
            return None
    if len(firsts) != 1 or None in firsts:
        return None
    tried = at_batch(model, _TRIED_BATCH)
    with examples(tried.sizes):
        if _batch(tried.model) != _TRIED_BATCH or not _pays(tried.model, _TRIED_BATCH):
            return None
        if not _entries_are_apart(tried.model.graph, _TRIED_BATCH):
            return None
    return at_batch(model, 1)


def _batch(model: ir.Model) -> int:
    values = [*required_inputs(model), *model.graph.outputs]
    firsts = {(static_shape(value) or (0,))[0] if static_shape(value) else 0 for value in values}
    return firsts.pop() if len(firsts) == 1 else 0


def _pays(model: ir.Model, batch: int) -> bool:
    weights = sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None
    )
    operations = sum(node_cost(node).operations for node in model.graph) / batch
    largest = max(
        (math.prod(static_shape(v) or (0,)) * 4 for node in model.graph for v in node.outputs),
        default=0,
    )
    return operations >= _LEAST_OPERATIONS_A_BYTE * weights and largest > _FAR_BYTES


def _entries_are_apart(graph: ir.Graph, batch: int) -> bool:
    return _carried(graph, batch) is not None


def _carried(graph: ir.Graph, batch: int) -> set[ir.Value] | None:
    """Return the values that hold one item an entry, None where a node mixes entries."""
    carried = {value for value in graph.inputs if not value.is_initializer()}

    def carries(value: ir.Value | None) -> bool:
        return value in carried

    for node in graph:
        if known_value(node.outputs[0].name) is not None:  # follows from sizes alone
            continue
        if not any(carries(value) for value in node.inputs):
            continue
        results = [value for value in node.outputs if value.name]
        if not all((static_shape(value) or (0,))[0] == batch for value in results):
            return None
        if not is_standard(node) or not _is_apart(node, carries):
            return None
        carried.update(results)
    return carried if all(value in carried for value in graph.outputs) else None


def _is_apart(node: ir.Node, carries: Carries) -> bool:
    rule = _RULES.get(node.op_type)
    if rule is None:
        operator = find_operator(node)
        if operator is None or operator.family != "elementwise":
            return False
        rule = _elementwise
    return rule(node, carries)


def _elementwise(node: ir.Node, carries: Carries) -> bool:
    """Each input is an entry's, or the same for all."""
    rank = len(static_shape(node.outputs[0]) or ())
    for value in node.inputs:
        shape = static_shape(value) if value is not None else ()
        if shape is None:
            return False
        if carries(value):
            if len(shape) != rank:
                return False
        elif len(shape) == rank and rank and shape[0] != 1:
            return False
    return True


def _first_alone(node: ir.Node, carries: Carries) -> bool:
    """Only the data are an entry's; all else is the same for all."""
    return carries(node.inputs[0]) and not any(carries(value) for value in node.inputs[1:])


def _along(attribute: str, default: int) -> Callable[[ir.Node, Carries], bool]:
    def rule(node: ir.Node, carries: Carries) -> bool:
        rank = len(static_shape(node.inputs[0]) or ())
        return _first_alone(node, carries) and integer(node, attribute, default) % rank != 0

    return rule


def _quantized(node: ir.Node, carries: Carries) -> bool:
    scale = static_shape(node.inputs[1]) if node.inputs[1] is not None else None
    if scale is None or not _first_alone(node, carries):
        return False
    rank = len(static_shape(node.inputs[0]) or ())
    return math.prod(scale) == 1 or integer(node, "axis", 1) % rank != 0


def _concat(node: ir.Node, carries: Carries) -> bool:
    rank = len(static_shape(node.outputs[0]) or ())
    return all(carries(value) for value in node.inputs) and integer(node, "axis", 0) % rank != 0


def _matmul(node: ir.Node, carries: Carries) -> bool:
    left, right = node.inputs[0], node.inputs[1]
    a, b = static_shape(left) if left else None, static_shape(right) if right else None
    if a is None or b is None or not carries(left):
        return False
    if carries(right):
        return len(a) == len(b) >= 3
    return len(a) >= 2 and len(b) <= max(2, len(a) - 1)


def _gemm(node: ir.Node, carries: Carries) -> bool:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    shape = (static_shape(bias) or ()) if bias is not None else ()
    same = len(shape) < 2 or shape[0] == 1
    return _first_alone(node, carries) and not integer(node, "transA", 0) and same


def _transpose(node: ir.Node, carries: Carries) -> bool:
    order = integers(node, "perm", None)
    return carries(node.inputs[0]) and order is not None and order[0] == 0


def _rows_stay(node: ir.Node, carries: Carries) -> bool:
    """A row-major tensor under another shape: entries stay apart where their number stays."""
    return _first_alone(node, carries)


def _axes(node: ir.Node, carries: Carries) -> bool:
    """Axes are given, and the first is not among them."""
    rank = len(static_shape(node.inputs[0]) or ())
    axes = integers(node, "axes", None)
    if axes is None:
        position = {"Slice": 3, "Pad": 3}.get(node.op_type, 1)
        value = node.inputs[position] if len(node.inputs) > position else None
        constant = constant_of(value)
        if constant is None:
            return False
        axes = tuple(int(axis) for axis in constant.numpy().reshape(-1))
    return _first_alone(node, carries) and bool(axes) and all(axis % rank for axis in axes)


_RULES: Mapping[str, Callable[[ir.Node, Carries], bool]] = {
    **dict.fromkeys(
        (
            "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "GlobalAveragePool",
            "GlobalMaxPool", "InstanceNormalization", "LRN", "MaxPool", "Resize",
        ),
        _first_alone,
    ),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _rows_stay),
    **dict.fromkeys(("LayerNormalization", "LogSoftmax", "RMSNormalization", "Softmax"),
                    _along("axis", -1)),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Slice"), _axes),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _quantized),
    "Concat": _concat, "Gemm": _gemm, "MatMul": _matmul, "Transpose": _transpose,
    "DynamicQuantizeLinear": lambda node, carries: False,  # one range for all entries
}  # fmt: skip


def _reshape_one(graph: ir.Graph, node: ir.Node, batch: int) -> None:
    """Let a Reshape of a batch give one entry."""
    constant = constant_of(node.inputs[1])
    result = node.outputs[0]
    if constant is None or (static_shape(result) or (0,))[0] != 1:
        return
    sizes = constant.numpy().copy()
    if sizes.size and sizes.reshape(-1)[0] == batch:
        sizes.reshape(-1)[0] = 1
        shape = new_weight(graph, f"{result.name}/shape of one", ir.tensor(sizes.astype(np.int64)))
        node.replace_input_with(1, shape)
