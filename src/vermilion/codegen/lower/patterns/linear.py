"""QuantizeLinear and DequantizeLinear whose scale no kernel knows, in operators that say the same.

That is one that the run has, as DynamicQuantizeLinear gives it, or one for each entry of an axis.
Those of one constant scale are fused with what is around them (`quantized`).
"""

from __future__ import annotations

import onnx_ir as ir

from vermilion.codegen.lower.context import STORAGE_OF
from vermilion.codegen.lower.dequantized import is_constant
from vermilion.codegen.lower.patterns.writer import DefinitionWriter, input_of, sizes_of
from vermilion.codegen.lower.quantized import RANGES, grid_of
from vermilion.ir.attributes import integer
from vermilion.ir.opset import constant_of, is_operator, static_shape

_FLOAT, _INT32 = ir.DataType.FLOAT, ir.DataType.INT32
# Beyond it on either side every number is at the end of its type, whatever the zero point.
_FAR = 2.0**18


def is_linear_of_run(node: ir.Node) -> bool:
    """Say whether a node quantizes, or dequantizes, by other than one constant scale."""
    if not is_operator(node, "QuantizeLinear", "DequantizeLinear"):
        return False
    return grid_of(node) is None and not is_constant(node.outputs[0])


def check_linear_of_run(node: ir.Node) -> str:
    """Say why such a node is not generated, empty if it is."""
    sides = (node.inputs[0], node.outputs[0])
    real, whole = sides if node.op_type == "QuantizeLinear" else sides[::-1]
    if any(value is None or value.dtype != _FLOAT for value in (real, *node.inputs[1:2])):
        return f"{node.op_type} of other floats than 32 bits"
    storage = "" if whole is None or whole.dtype is None else STORAGE_OF.get(whole.dtype, "")
    if storage not in RANGES and (storage != "i32" or node.op_type == "QuantizeLinear"):
        return f"{node.op_type} of other integers than 8 or 16 bits"
    data = static_shape(node.inputs[0]) or ()
    axis = integer(node, "axis", 1)
    for value in node.inputs[1:]:
        shape = () if value is None else static_shape(value)
        is_one = shape is not None and all(size == 1 for size in shape)
        is_each = bool(data) and shape == data[axis : axis + 1 or None]
        if not (is_one or is_each) or integer(node, "block_size", 0):
            return f"{node.op_type} with scales of blocks"
    return ""


def write_linear(w: DefinitionWriter, node: ir.Node) -> ir.Value:
    """Write the formula of the standard; numbers beyond the type's range become its ends."""
    x = input_of(node, 0)
    shape = sizes_of(x)
    scale = _beside(w, node, 1)
    zero = _beside(w, node, 2) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    if node.op_type == "DequantizeLinear":
        whole = _cast(w, x, _INT32)
        if zero is not None:
            whole = w("Sub", shape, whole, _cast(w, zero, _INT32))
        return w("Mul", shape, _cast(w, whole, _FLOAT), scale)
    kind = node.outputs[0].dtype
    assert kind is not None
    low, high = RANGES[STORAGE_OF[kind]]
    steps = w("Div", shape, x, scale)
    steps = w("Clip", shape, steps, w.number(-_FAR, x), w.number(_FAR, x))
    whole = _cast(w, w("Round", shape, steps), _INT32)
    if zero is not None:
        whole = w("Add", shape, whole, _cast(w, zero, _INT32))
    whole = w("Max", shape, whole, w.number(low, whole))
    return _cast(w, w("Min", shape, whole, w.number(high, whole)), kind)


def _beside(w: DefinitionWriter, node: ir.Node, at: int) -> ir.Value:
    """Return a scale or zero point so that it broadcasts over the data."""
    value, data = input_of(node, at), sizes_of(node.inputs[0])
    shape = sizes_of(value)
    wanted = [1] * len(data)
    if any(size != 1 for size in shape):
        wanted[integer(node, "axis", 1)] = shape[0]
    if list(shape) == wanted or not shape:
        return value
    known = constant_of(value)
    if known is not None:
        # Programs in bfloat16 keep what is multiplied number by number in float32: a code of 127
        # would be half of one off.
        return w.constant(known.numpy().reshape(wanted))
    return w.reshaped(value, wanted)


def _cast(w: DefinitionWriter, value: ir.Value, kind: ir.DataType) -> ir.Value:
    if value.dtype == kind:
        return value
    result = w("Cast", sizes_of(value), value, to=int(kind))
    result.type = ir.TensorType(kind)
    return result
