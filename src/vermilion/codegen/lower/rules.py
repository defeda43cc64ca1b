"""Which operators are generated: for each its lowering, and what keeps a node from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from vermilion.codegen.lower import (
    block_rounding,
    data_movement,
    reduction,
    scan,
    shapes,
    transformer,
)
from vermilion.codegen.lower.cells import check_recurrent
from vermilion.codegen.lower.composed import COMPOSED_OF_FLOATS
from vermilion.codegen.lower.context import STORAGE_OF, Lowering
from vermilion.codegen.lower.dequantized import is_constant
from vermilion.codegen.lower.elementwise import ELEMENTWISE
from vermilion.codegen.lower.padding import check_pad, lower_pad
from vermilion.codegen.lower.patterns.definitions import DEFINITIONS, check_definition
from vermilion.codegen.lower.quantized import (
    check_linear,
    check_quantization,
)
from vermilion.codegen.lower.recurrent import lower_recurrent
from vermilion.codegen.lower.resize import check_resize, lower_resize
from vermilion.codegen.lower.result_shapes import contradiction
from vermilion.codegen.lower.transposed import check_transposed
from vermilion.codegen.lower.versions import check_version
from vermilion.errors import Refusal, VermilionError
from vermilion.ir.attributes import integer
from vermilion.ir.opset import constant_of, is_inference_dropout, static_shape

Check = Callable[[ir.Node], str]


@dataclass(frozen=True)
class Rule:
    """How one operator is generated. `check` gives why a node is not, empty if it is.

    Elementwise operators and products have no lowering of their own: they are written in groups.
    """

    check: Check
    lower: Callable[[Lowering, ir.Node], None] | None = None


OPEN_SHAPE = "generated code needs fixed shapes; a dimension here is open"


def refusal(node: ir.Node) -> Refusal | None:
    """Say why the generator does not take a node, None where it does."""
    rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if rule is None:
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        return Refusal(f"the code generator has no `{name}`", "ONNX Runtime runs it on the CPU")
    reason = _checked(node, _unfit_values, check_version, rule.check, contradiction)
    return Refusal(reason, "ONNX Runtime runs it on the CPU") if reason else None


def _checked(node: ir.Node, *checks: Check) -> str:
    """Say why a node is not generated, empty if it is. Never raises: who cannot tell refuses."""
    try:
        return next(filter(None, (check(node) for check in checks)), "")
    except VermilionError as error:
        return error.message
    except Exception as error:  # a rule reads nodes of any shape and with anything missing
        words = f"{type(error).__name__}: {error}"
        return f"{node.op_type} in a form that its rule cannot read ({words})"


def _unfit_values(node: ir.Node) -> str:
    for value in (*node.inputs, *node.outputs):
        if value is None or not value.name or _is_parameter(node, value):
            continue
        reason = _unfit(value)
        if reason:
            return reason
    return ""


# Operators whose later inputs are axes, sizes or amounts: constants, empty where none are meant.
_WITH_PARAMETERS = frozenset(
    {"Resize", "Pad", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Expand", "Tile"}
)


def _is_parameter(node: ir.Node, value: ir.Value) -> bool:
    if value in node.outputs or value is node.inputs[0]:
        return False
    if node.op_type == "Resize":
        return True
    takes = node.op_type in _WITH_PARAMETERS or node.op_type.startswith("Reduce")
    return takes and constant_of(value) is not None


def _unfit(value: ir.Value) -> str:
    if value.dtype not in STORAGE_OF:
        return f"`{value.name}` is {value.dtype}, which is not computed in generated code"
    shape = static_shape(value)
    if shape is None:
        return OPEN_SHAPE
    if 0 in shape:
        return f"`{value.name}` is empty"
    return ""


def is_elementwise(node: ir.Node) -> bool:
    """Say whether a node is written as part of an expression."""
    return node.domain in ("", "ai.onnx") and node.op_type in ELEMENTWISE


PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def is_product(node: ir.Node) -> bool:
    """Say whether a node is written as a product kernel."""
    return node.op_type in PRODUCTS and not _checked(node, RULES[node.op_type].check)


def _any(node: ir.Node) -> str:
    return ""


_FLOATS = (ir.DataType.FLOAT, ir.DataType.BFLOAT16, ir.DataType.FLOAT16)


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype in _FLOATS


def _elementwise(node: ir.Node) -> str:
    kinds = {value.dtype for value in node.inputs if value is not None}
    floats = all(dtype in _FLOATS for dtype in kinds)
    if node.op_type in _NEEDS_FLOAT and not floats:
        return f"{node.op_type} of integers"
    if node.op_type == "Mod" and floats:
        return "Mod of floats"
    if node.op_type == "Pow" and not _is_float(node.inputs[0]):
        return "Pow of integers"
    if ir.DataType.BOOL in kinds and node.op_type in ("Max", "Min", "Cast"):
        return "" if node.op_type == "Cast" else f"{node.op_type} of booleans"
    return ""


_NEEDS_FLOAT = frozenset(
    {
        "Sqrt", "Exp", "Log", "Tanh", "Erf", "Sigmoid", "Floor", "Ceil", "Round", "Reciprocal",
        "Sign", "Softplus", "LeakyRelu", "PRelu", "Elu", "HardSigmoid", "HardSwish", "Gelu", "Mean",
    }
) | COMPOSED_OF_FLOATS  # fmt: skip


# Groups that are written as one product each; depthwise has a kernel of its own.
_MOST_GROUPS = 64


def _conv(node: ir.Node) -> str:
    data, kernel = node.inputs[0], node.inputs[1]
    if not _is_float(data):
        return "Conv of integers"
    if not is_constant(kernel):
        return "Conv with weights that are not constant"
    if len(node.inputs) > 2 and node.inputs[2] is not None and not is_constant(node.inputs[2]):
        return "Conv with a bias that is not constant"
    shape = static_shape(kernel)
    if shape is None or len(shape) not in (3, 4):
        return "Conv in more than two dimensions"
    group = integer(node, "group", 1)
    if group > _MOST_GROUPS and shape[1] != 1:
        return f"Conv in {group} groups of several channels"
    if group > _MOST_GROUPS and shape[0] != group:
        return f"depthwise Conv that gives {shape[0] // group} channels for each"
    return ""


def _transposed(node: ir.Node) -> str:
    return check_transposed(node) if _is_float(node.inputs[0]) else "ConvTranspose of integers"


def _gemm(node: ir.Node) -> str:
    if not (_is_float(node.inputs[0]) and _is_float(node.inputs[1])):
        return "Gemm of integers"
    return ""


def _matmul(node: ir.Node) -> str:
    if not (_is_float(node.inputs[0]) and _is_float(node.inputs[1])):
        return "MatMul of integers"
    if 0 in (len(static_shape(value) or ()) for value in node.inputs):
        return "MatMul of a number"
    return ""


def _pool(node: ir.Node) -> str:
    if not _is_float(node.inputs[0]):
        return f"{node.op_type} of integers"
    return reduction.check_pool(node)


def _reduce(node: ir.Node) -> str:
    if not _is_float(node.inputs[0]):
        return f"{node.op_type} of integers"
    if len(node.inputs) > 1 and node.inputs[1] is not None and constant_of(node.inputs[1]) is None:
        return f"{node.op_type} over axes that are not constant"
    if integer(node, "noop_with_empty_axes", 0):
        return f"{node.op_type} with noop_with_empty_axes"
    return ""


def _definition(node: ir.Node) -> str:
    return check_definition(node) if _is_float(node.inputs[0]) else f"{node.op_type} of integers"


def _dropout(node: ir.Node) -> str:
    if not is_inference_dropout(node):
        return "Dropout that may be in training mode"
    mask = node.outputs[1] if len(node.outputs) > 1 else None
    is_read = mask is not None and (bool(mask.uses()) or mask.is_graph_output())
    return "Dropout that also gives its mask" if is_read else ""


def _slice(node: ir.Node) -> str:
    for index in range(1, len(node.inputs)):
        if node.inputs[index] is not None and constant_of(node.inputs[index]) is None:
            return "Slice with bounds that are not constant"
    steps = shapes.constant_ints(node, 4) or [1]
    return "" if min(steps) > 0 else "Slice that runs backwards"


def _softmax(node: ir.Node) -> str:
    return "" if _is_float(node.inputs[0]) else f"{node.op_type} of integers"


def _normalization(node: ir.Node) -> str:
    if not _is_float(node.inputs[0]):
        return f"{node.op_type} of integers"
    return transformer.check_normalization(node)


RULES: Mapping[str, Rule] = {
    **{name: Rule(_elementwise) for name in ELEMENTWISE},
    "QuantizeLinear": Rule(check_quantization),
    "DequantizeLinear": Rule(check_quantization),
    "QLinearConv": Rule(check_linear),
    "QLinearMatMul": Rule(check_linear),
    "Conv": Rule(_conv),
    "ConvTranspose": Rule(_transposed),
    "Gemm": Rule(_gemm),
    "MatMul": Rule(_matmul),
    "Resize": Rule(check_resize, lower_resize),
    "MaxPool": Rule(_pool, reduction.lower_pool),
    "AveragePool": Rule(_pool, reduction.lower_pool),
    **{
        name: Rule(_reduce, reduction.lower_reduce)
        for name in (
            "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceSum", "ReduceMax",
            "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL2",
        )
    },
    **{
        name: Rule(_any, shapes.lower_reshape)
        for name in ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
    },
    "Identity": Rule(_any, shapes.lower_identity),
    "Transpose": Rule(_any, shapes.lower_transpose),
    "Slice": Rule(_slice, shapes.lower_slice),
    "Split": Rule(_any, shapes.lower_split),
    "Concat": Rule(_any, shapes.lower_concat),
    "Expand": Rule(_any, shapes.lower_expand),
    "Gather": Rule(_any, transformer.lower_any_gather),
    "Softmax": Rule(_softmax, transformer.lower_softmax),
    "LogSoftmax": Rule(_softmax, transformer.lower_softmax),
    "LayerNormalization": Rule(_normalization, transformer.lower_normalization),
    "RMSNormalization": Rule(_normalization, transformer.lower_normalization),
    "Pad": Rule(check_pad, lower_pad),
    **{name: Rule(check_recurrent, lower_recurrent) for name in ("LSTM", "GRU", "RNN")},
    "DepthToSpace": Rule(_any, data_movement.lower_depth_to_space),
    "SpaceToDepth": Rule(_any, data_movement.lower_space_to_depth),
    "Tile": Rule(data_movement.check_tile, data_movement.lower_tile),
    "Trilu": Rule(data_movement.check_trilu, data_movement.lower_trilu),
    "Dropout": Rule(_dropout, shapes.lower_identity),
    **{name: Rule(_definition) for name in DEFINITIONS},
    "ArgMax": Rule(_any, scan.lower_extreme_place),
    "ArgMin": Rule(_any, scan.lower_extreme_place),
    "CumSum": Rule(scan.check_scan, scan.lower_scan),
    "CumProd": Rule(scan.check_scan, scan.lower_scan),
    "GatherElements": Rule(_any, scan.lower_pick),
    block_rounding.OPERATOR: Rule(_any, block_rounding.lower_block_rounding),
}  # fmt: skip
