"""Which operators are generated: for each its lowering, and what keeps a node from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from vermilion.codegen.lower import (
    block_rounding,
    data_movement,
    gather,
    reduction,
    scan,
    shapes,
    transformer,
)
from vermilion.codegen.lower.cells import check_recurrent
from vermilion.codegen.lower.context import STORAGE_OF, Lowering, refuse
from vermilion.codegen.lower.dequantized import is_constant
from vermilion.codegen.lower.dynamic_quantize import lower_dynamic_quantize
from vermilion.codegen.lower.integer_convolution import check_conv_integer
from vermilion.codegen.lower.integer_matmul import check_matmul_integer
from vermilion.codegen.lower.padding import check_pad, lower_pad
from vermilion.codegen.lower.patterns.definitions import (
    DEFINITIONS,
    check_definition,
    does_nothing_without_axes,
)
from vermilion.codegen.lower.patterns.linear import check_linear_of_run, is_linear_of_run
from vermilion.codegen.lower.quantized import check_linear
from vermilion.codegen.lower.recurrent import lower_recurrent
from vermilion.codegen.lower.resize import check_resize, lower_resize
from vermilion.codegen.lower.result_shapes import contradiction
from vermilion.codegen.lower.transposed import check_transposed
from vermilion.codegen.lower.window_shapes import whole_numbers
from vermilion.errors import Refusal, VermilionError
from vermilion.ir.attributes import integer
from vermilion.ir.elementwise import ELEMENTWISE, elementwise
from vermilion.ir.opset import (
    constant_of,
    is_inference_dropout,
    is_operator,
    is_standard,
    static_shape,
    version_of,
)
from vermilion.ir.symbolic import strict_comparisons

# Before it, an operator has broadcasting, training and sizes of its own way.
_OLDEST = 7


def check_version(node: ir.Node) -> str:
    """Say why the version of a node is not read, empty where it is."""
    if node.domain not in ("", "ai.onnx"):
        return ""
    version = version_of(node)
    if version < _OLDEST:
        return f"{node.op_type} of opset {version}, older than {_OLDEST}"
    last, differs = _CHANGED.get(node.op_type, (0, None))
    if version <= last and (differs is None or differs(node)):
        return f"{node.op_type} of opset {version}, which meant another thing"
    return ""


def _takes_axes_together(node: ir.Node) -> bool:
    """Say whether an old Softmax has more than one axis (`settle_softmax` writes it otherwise)."""
    shape = static_shape(node.inputs[0]) or ()
    axis = integer(node, "axis", 1)
    return "axis" not in node.attributes or any(n != 1 for n in shape[axis % len(shape) + 1 :])


def _is_in_training(node: ir.Node) -> bool:
    """Say whether an old BatchNormalization has results of its training, or one mean a place."""
    results = [value for value in node.outputs if value.name]
    return len(results) > 1 or not integer(node, "spatial", 1)


_ANY: Callable[[ir.Node], bool] | None = None

# The last version of another meaning, and whether a node has it; source: ONNX's changelog.
_CHANGED: Mapping[str, tuple[int, Callable[[ir.Node], bool] | None]] = {
    "Softmax": (12, _takes_axes_together),
    "LogSoftmax": (12, _takes_axes_together),
    "BatchNormalization": (13, _is_in_training),
    "Resize": (10, _ANY),  # no coordinates but asymmetric ones, scales as second input
    "TopK": (9, _ANY),  # how many as an attribute
    "Slice": (9, _ANY),  # bounds as attributes
    "Pad": (10, _ANY),  # amounts as an attribute
}


Check = Callable[[ir.Node], str]
# What writes a node that has no lowering of its own: its group as an expression, or as a product
# with the group in its epilogue; the operators that define it (`patterns.definitions`); those of a
# quantized model that say the same (`integers`).
Written = Literal["expression", "product", "definition", "integers"]


def _any(node: ir.Node) -> str:
    return ""


@dataclass(frozen=True)
class Rule:
    """How one operator is generated: what writes it, of which first input, and what else is asked.

    `check` gives why a node is not taken, empty if it is.
    """

    lower: Callable[[Lowering, ir.Node], None] | Written
    takes: Literal["floats", "any"] = "any"
    check: Check = _any


OPEN_SHAPE = "generated code needs fixed shapes; a size here is dynamic"


def refusal(node: ir.Node) -> Refusal | None:
    """Say why the generator does not take a node, None where it does."""
    rule = _rule(node)
    if rule is None:
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        return Refusal(f"the code generator has no `{name}`", "ONNX Runtime runs it on the CPU")
    reason = _checked(node, _unfit_values, check_version, _takes, rule.check, contradiction)
    return Refusal(reason, "ONNX Runtime runs it on the CPU") if reason else None


def check_again(node: ir.Node) -> None:
    """Ask once more, where a program for any sizes is made: what a check compares is noted there.

    The claim asked at one example, and its answer holds for the sizes that compare alike.
    """
    rule = _rule(node)
    with strict_comparisons():
        reason = _checked(node, rule.check) if rule is not None else ""
    for value in node.outputs:
        if 0 in map(int, static_shape(value) or ()):  # of ints, no guard: other runs may have none
            reason = f"`{value.name}` is empty at sizes that are tried"
    if reason:
        raise refuse(node, reason)


def lowering_of(node: ir.Node) -> Callable[[Lowering, ir.Node], None]:
    """Return what writes a node that is in no group.

    Raises: UnsupportedError where no row has it, or the claim should have kept the node out.
    """
    if (node.domain, node.op_type) == (block_rounding.DOMAIN, block_rounding.OPERATOR):
        return block_rounding.lower_block_rounding  # written by us, so no claim takes it
    rule = _rule(node)
    if rule is not None and callable(rule.lower):
        return rule.lower
    refused = refusal(node)
    raise refuse(node, refused.reason if refused else "it is written with others, and is in none")


def has_rule(node: ir.Node) -> bool:
    """Say whether some rule writes such nodes."""
    return _rule(node) is not None


def _rule(node: ir.Node) -> Rule | None:
    if is_standard(node):
        return RULES.get(node.op_type)
    return _EXPRESSION if elementwise(node) is not None else None


def _takes(node: ir.Node) -> str:
    rule = _rule(node)
    if rule is not None and rule.takes == "floats" and not _is_float(node.inputs[0]):
        return f"{node.op_type} of integers"
    return ""


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
    {"Resize", "Pad", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Expand", "Tile", "Range", "TopK"}
)


def _is_parameter(node: ir.Node, value: ir.Value) -> bool:
    if value in node.outputs or (value is node.inputs[0] and node.op_type != "Range"):
        return False
    if node.op_type == "Resize":
        return True
    takes = node.op_type in _WITH_PARAMETERS or node.op_type.startswith("Reduce")
    return takes and whole_numbers(value) is not None


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
    return elementwise(node) is not None


PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "ConvInteger", "MatMulInteger")


def is_product(node: ir.Node) -> bool:
    """Say whether a node is written as a product kernel."""
    if not is_operator(node, *PRODUCTS):
        return False
    return not _checked(node, _takes, RULES[node.op_type].check)


_FLOATS = (ir.DataType.FLOAT, ir.DataType.BFLOAT16, ir.DataType.FLOAT16)


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype in _FLOATS


def _elementwise(node: ir.Node) -> str:
    row = elementwise(node)
    kinds = {value.dtype for value in node.inputs if value is not None}
    is_of_floats = all(dtype in _FLOATS for dtype in kinds)
    match row.takes if row is not None else "any":
        case "floats":
            return "" if is_of_floats else f"{node.op_type} of integers"
        case "float first":
            return "" if _is_float(node.inputs[0]) else f"{node.op_type} of integers"
        case "integers":
            return f"{node.op_type} of floats" if is_of_floats else ""
        case "numbers":
            return f"{node.op_type} of booleans" if ir.DataType.BOOL in kinds else ""
        case _:
            return ""


def _conv(node: ir.Node) -> str:
    kernel = node.inputs[1]
    if not is_constant(kernel):
        return "Conv with weights that are not constant"
    if len(node.inputs) > 2 and node.inputs[2] is not None and not is_constant(node.inputs[2]):
        return "Conv with a bias that is not constant"
    shape = static_shape(kernel)
    if shape is None or len(shape) not in (3, 4):
        return "Conv in more than two dimensions"
    return ""


def _gemm(node: ir.Node) -> str:
    return "" if _is_float(node.inputs[1]) else "Gemm of integers"


def _matmul(node: ir.Node) -> str:
    if not _is_float(node.inputs[1]):
        return "MatMul of integers"
    if 0 in (len(static_shape(value) or ()) for value in node.inputs):
        return "MatMul of a number"
    return ""


def _reduce(node: ir.Node) -> str:
    if len(node.inputs) > 1 and node.inputs[1] is not None and constant_of(node.inputs[1]) is None:
        return f"{node.op_type} over axes that are not constant"
    if does_nothing_without_axes(node):
        return f"{node.op_type} with noop_with_empty_axes"
    if node.op_type == "ReduceProd" and reduction.terms_of(node) > _MOST_FACTORS:
        return f"ReduceProd of more than {_MOST_FACTORS} numbers, which overflows in another order"
    return ""


# Of numbers from 1/4 to 4, products of so many are within the range of float32 in any order.
_MOST_FACTORS = 64


def _dropout(node: ir.Node) -> str:
    if not is_inference_dropout(node):
        return "Dropout that may be in training mode"
    mask = node.outputs[1] if len(node.outputs) > 1 else None
    is_read = mask is not None and (bool(mask.uses()) or mask.is_graph_output())
    return "Dropout that also gives its mask" if is_read else ""


def _slice(node: ir.Node) -> str:
    for index in range(1, len(node.inputs)):
        if node.inputs[index] is not None and whole_numbers(node.inputs[index]) is None:
            return "Slice with bounds that are not constant"
    return ""


def _linear(node: ir.Node) -> str:
    return check_linear_of_run(node) if is_linear_of_run(node) else ""


_EXPRESSION = Rule("expression", check=_elementwise)

RULES: Mapping[str, Rule] = {
    **{name: _EXPRESSION for domain, name in ELEMENTWISE if not domain},
    "QuantizeLinear": Rule("expression", check=_linear),
    "DequantizeLinear": Rule("expression", check=_linear),
    "QLinearConv": Rule("integers", check=check_linear),
    "QLinearMatMul": Rule("integers", check=check_linear),
    "Conv": Rule("product", "floats", _conv),
    "ConvInteger": Rule("product", check=check_conv_integer),
    "MatMulInteger": Rule("product", check=check_matmul_integer),
    "DynamicQuantizeLinear": Rule(lower_dynamic_quantize, "floats"),
    "ConvTranspose": Rule("product", "floats", check_transposed),
    "Gemm": Rule("product", "floats", _gemm),
    "MatMul": Rule("product", "floats", _matmul),
    **{name: Rule("definition", "floats", check_definition) for name in DEFINITIONS},
    "Resize": Rule(lower_resize, check=check_resize),
    "MaxPool": Rule(reduction.lower_pool, "floats", reduction.check_pool),
    "AveragePool": Rule(reduction.lower_pool, "floats", reduction.check_pool),
    **{
        name: Rule(reduction.lower_reduce, "floats", _reduce)
        for name in (
            "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceSum", "ReduceMax",
            "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL2",
        )
    },
    **{
        name: Rule(shapes.lower_reshape) for name in ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
    },
    "Identity": Rule(shapes.lower_identity),
    "Dropout": Rule(shapes.lower_identity, check=_dropout),
    "Transpose": Rule(shapes.lower_transpose),
    "Slice": Rule(shapes.lower_slice, check=_slice),
    "Split": Rule(shapes.lower_split),
    "Concat": Rule(shapes.lower_concat),
    "Expand": Rule(shapes.lower_expand),
    "Gather": Rule(gather.lower_any_gather),
    "GatherND": Rule(gather.lower_tuples),
    "ScatterND": Rule(gather.lower_scatter, check=gather.check_scatter),
    "ScatterElements": Rule(gather.lower_scatter_elements, check=gather.check_scatter),
    "Softmax": Rule(transformer.lower_softmax, "floats"),
    "LogSoftmax": Rule(transformer.lower_softmax, "floats"),
    **{
        name: Rule(transformer.lower_normalization, "floats", transformer.check_normalization)
        for name in ("LayerNormalization", "RMSNormalization")
    },
    "Pad": Rule(lower_pad, check=check_pad),
    **{name: Rule(lower_recurrent, check=check_recurrent) for name in ("LSTM", "GRU", "RNN")},
    "DepthToSpace": Rule(data_movement.lower_depth_to_space),
    "SpaceToDepth": Rule(data_movement.lower_space_to_depth),
    "Range": Rule(data_movement.lower_range, check=data_movement.check_range),
    "Tile": Rule(data_movement.lower_tile, check=data_movement.check_tile),
    "Trilu": Rule(data_movement.lower_trilu, check=data_movement.check_trilu),
    "ArgMax": Rule(scan.lower_extreme_place),
    "ArgMin": Rule(scan.lower_extreme_place),
    "TopK": Rule(scan.lower_top, check=scan.check_top),
    "CumSum": Rule(scan.lower_scan, check=scan.check_scan),
    "CumProd": Rule(scan.lower_scan, check=scan.check_scan),
    "GatherElements": Rule(scan.lower_pick),
    block_rounding.OPERATOR: Rule(block_rounding.lower_block_rounding),
}  # fmt: skip
