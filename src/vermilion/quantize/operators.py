"""Which operators a scheme quantizes, which of their inputs are data, and what ties their scales.

Of the rows here a scheme takes those that its column of the operator table in the Ryzen AI
documentation has (`ops_support.rst`, release 1.8). An operator outside it runs on the CPU
whatever we do, so rounding its inputs and outputs would cost accuracy and buy nothing: it stays
in float. (The vendor's own tool quantizes `Sigmoid`, which the XINT8 column lacks, and replaces
it by a piecewise linear one. We do not change what a model computes without being asked.)

Left out although columns have them, because eight bits cannot hold what they give: `Pow`,
`Sqrt`, `Reciprocal`, `Log` and the quotient of two tensors square, root or invert the range, and
small values, the ones that decide, all round to zero. Comparisons, masks and index arithmetic
(`Where`, `Equal`, `Cast`, `TopK`, `CumSum`, …) are not numbers to round either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from vermilion.hardware.targets.npu import DOCUMENTED
from vermilion.ir.attributes import text
from vermilion.quantize.formats import Scheme

Role = Literal["compute", "move", "align"]

Predicate = Callable[[ir.Node], bool]


def _always(node: ir.Node) -> bool:
    return True


def _divides_by_constant(node: ir.Node) -> bool:
    divisor = node.inputs[1]
    return divisor is not None and divisor.const_value is not None


def _stays_in_range(node: ir.Node) -> bool:
    """Cubic interpolation overshoots, so that its output needs a scale of its own."""
    return text(node, "mode", "nearest") in {"nearest", "linear"}


def pads_with_zeros(node: ir.Node) -> bool:
    """Say whether a Pad adds nothing but zeros, or what is there already."""
    if text(node, "mode", "constant") != "constant":
        return True  # repeats values that are there
    value = node.attributes.get("value")
    if value is not None:
        return value.as_float() == 0.0
    given = node.inputs[2] if len(node.inputs) > 2 else None
    if given is None:
        return True
    return given.const_value is not None and not given.const_value.numpy().any()


@dataclass(frozen=True)
class Operator:
    """How one operator is quantized.

    `compute`: inputs and output have scales of their own. `move`: the output holds values of
    the input, so both share one scale and no rounding happens. `align`: several tensors, observed
    each on its own, take the coarsest of their scales.
    """

    role: Role = "compute"
    data: tuple[int, ...] | None = (0,)  # inputs that are data; None: all of them
    bias: int | None = None
    takes: Predicate = _always


_COMPUTE = Operator()
_ARITHMETIC = Operator(data=None)
_MOVE = Operator("move")
_ALIGN = Operator("align")

OPERATORS: dict[str, Operator] = {
    "Conv": Operator(data=(0, 1), bias=2),
    "Gemm": Operator(data=(0, 1), bias=2),
    "MatMul": Operator(data=(0, 1)),
    "ConvTranspose": Operator(data=(0, 1), bias=2),
    **dict.fromkeys(("Sigmoid", "HardSigmoid"), _COMPUTE),
    **dict.fromkeys(("Add", "Sub", "Mul", "Max", "Min"), _ARITHMETIC),
    "Div": Operator(data=(0, 1), takes=_divides_by_constant),
    **dict.fromkeys(
        (
            *("Relu", "LeakyRelu", "Clip", "Elu", "Celu", "ThresholdedRelu", "Shrink"),
            *("Gelu", "HardSwish", "Mish", "Tanh", "Erf", "Softsign", "Softmax"),
            *("Abs", "Neg"),
            *("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"),
            # The scale and shift of a normalization stay in float: they are a vector each, and
            # the operator computes in float between its quantized borders.
            *("BatchNormalization", "InstanceNormalization"),
            *("LayerNormalization", "GroupNormalization"),
        ),
        _COMPUTE,
    ),
    # Sharing the scale makes the second rounding exact, so taking these in costs nothing and
    # keeps what lies around them whole, also where the column lacks them (`Split`).
    **dict.fromkeys(
        (
            *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity"),
            *("Expand", "Tile", "Slice", "Split", "DepthToSpace", "SpaceToDepth"),
        ),
        _MOVE,
    ),
    "Pad": Operator("move", takes=pads_with_zeros),
    "Resize": Operator("move", takes=_stays_in_range),
    "Upsample": Operator("move", takes=_stays_in_range),
    "Concat": Operator("align", data=None),
    **dict.fromkeys(
        ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
        _ALIGN,
    ),
}

# Where scales are any number, an average has one of its own: it is much smaller than what it is
# the average of.
_AVERAGES = frozenset({"AveragePool", "GlobalAveragePool"})

# Computed value by value, or as one function of a row: with any scale these are done in float
# between their rounded borders, in the epilogue of what wrote them.
ELEMENTWISE = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Max", "Min", "Clip", "Relu", "LeakyRelu", "Elu", "Celu"),
        *("Sigmoid", "HardSigmoid", "HardSwish", "Mish", "Tanh", "Gelu", "Erf", "Softsign"),
        *("ThresholdedRelu", "Shrink", "Abs", "Neg", "Softmax"),
    }
)

# With any scale, these alone are rounded whoever reads them: an integer kernel writes them.
WRITES_INTEGERS = frozenset({"Conv", "Gemm", "ConvTranspose"})


def operators_of(scheme: Scheme) -> dict[str, Operator]:
    """Return the rows that a scheme takes.

    Moving data costs nothing where scales are shared, so those rows are taken in any case.
    """
    column = DOCUMENTED[scheme.column] | set(scheme.also)
    found = {n: row for n, row in OPERATORS.items() if n in column or row.role == "move"}
    if not scheme.power_of_two:
        found |= dict.fromkeys(_AVERAGES & found.keys(), _COMPUTE)
    return found


# Nothing is rounded between one of these and an activation that alone reads it: the NPU does
# both in one step. Source: AMD Quark for ONNX, QDQ placement for the NPU.
FUSED_PRODUCERS = frozenset(
    {"Conv", "Gemm", "Add", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}
)
_FUSED_CLIP_ENDS = (6.0, 1.0)

# A graph with any of these has been quantized before.
QUANTIZED_OPERATORS = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
        *("QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul", "QGemm", "QAttention"),
        *("ConvInteger", "MatMulInteger", "MatMulNBits", "MatMulIntegerToFloat"),
        *("ExtendedQuantizeLinear", "ExtendedDequantizeLinear"),
        *("BFPQuantizeDequantize", "MXQuantizeDequantize"),
    }
)


def rounded_indices(node: ir.Node, operator: Operator) -> tuple[int, ...]:
    """Return the places of a node's inputs that are rounded: data first, the bias last."""
    data = range(len(node.inputs)) if operator.data is None else operator.data
    places = data if operator.bias is None else (*data, operator.bias)
    return tuple(i for i in places if i < len(node.inputs) and node.inputs[i] is not None)


def data_inputs(node: ir.Node, operator: Operator) -> tuple[ir.Value, ...]:
    """Return the inputs that are rounded: not bounds, shapes, axes, nor the bias."""
    places = (i for i in rounded_indices(node, operator) if i != operator.bias)
    return tuple(value for i in places if (value := node.inputs[i]) is not None)


def bias_input(node: ir.Node, operator: Operator) -> ir.Value | None:
    """Return the bias, where the operator has one and the node uses it."""
    if operator.bias is None or operator.bias >= len(node.inputs):
        return None
    return node.inputs[operator.bias]


def fuses_into_producer(node: ir.Node) -> bool:
    """Say whether the NPU computes this activation together with what it reads."""
    if node.op_type in {"Relu", "LeakyRelu"}:
        return True
    return node.op_type == "Clip" and _clip_ends(node) in [(0.0, end) for end in _FUSED_CLIP_ENDS]


def _clip_ends(node: ir.Node) -> tuple[float, float] | None:
    if "min" in node.attributes and "max" in node.attributes:  # opset < 11
        return node.attributes["min"].as_float(), node.attributes["max"].as_float()
    bounds = [value.const_value if value is not None else None for value in node.inputs[1:3]]
    if len(bounds) != 2 or bounds[0] is None or bounds[1] is None:
        return None
    return float(bounds[0].numpy().item()), float(bounds[1].numpy().item())
