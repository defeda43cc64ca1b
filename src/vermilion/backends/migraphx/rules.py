"""Which nodes the MIGraphX provider takes.

Source: microsoft/onnxruntime, onnxruntime/core/providers/migraphx/migraphx_execution_provider.cc,
`GetUnsupportedNodeIndices`, the names that it compares with; those that came later from the library
of the wheel onnxruntime-migraphx 1.27.1, which holds them as text. What a build refuses of these
stays on ONNX Runtime's CPU inside the part, and is counted when the part is compiled.
"""

from __future__ import annotations

import onnx_ir as ir

from vermilion.backends.base import Claim, ModelFacts
from vermilion.errors import Refusal

_ELEMENTWISE = frozenset(
    (
        *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "Cast", "Ceil"),
        *("Celu", "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Greater"),
        *("GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less"),
        *("LessOrEqual", "Log", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow"),
        *("PRelu", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh"),
        *("Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tan", "Tanh", "ThresholdedRelu", "Where"),
        *("Xor", "Dropout", "QuantizeLinear", "DequantizeLinear"),
        *("DynamicQuantizeLinear", "Gelu"),
    )
)
_PRODUCTS = frozenset(
    (
        *("Conv", "ConvInteger", "ConvTranspose", "Gemm", "MatMul", "MatMulInteger"),
        *("Einsum", "GRU", "LSTM", "RNN", "QLinearConv", "QLinearMatMul"),
    )
)
_REDUCTIONS = frozenset(
    (
        *("ArgMax", "ArgMin", "AveragePool", "BatchNormalization", "CumSum", "GlobalAveragePool"),
        *("GlobalMaxPool", "InstanceNormalization", "LogSoftmax", "LpNormalization", "LRN"),
        *("GroupNormalization", "LayerNormalization", "SimplifiedLayerNormalization"),
        *("MaxPool", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax"),
        *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Softmax"),
        *("TopK",),
    )
)
_MOVES = frozenset(
    (
        *("Concat", "Constant", "ConstantOfShape", "DepthToSpace", "Expand", "EyeLike", "Flatten"),
        *(
            "Gather",
            "GatherElements",
            "GatherND",
            "Trilu",
            "OneHot",
            "Pad",
            "Range",
            "Reshape",
            "Resize",
            "Scatter",
        ),
        *("ScatterElements", "ScatterND", "Shape", "Slice", "SpaceToDepth", "Split", "Squeeze"),
        *("Tile", "Transpose", "Unsqueeze", "Upsample"),
    )
)
# The provider also lists If, Loop, NonZero and NonMaxSuppression, whose results have open sizes,
# and random numbers: a compiled part has fixed shapes and one answer.
TAKEN = _ELEMENTWISE | _PRODUCTS | _REDUCTIONS | _MOVES


# ONNX Runtime's own, which `vermilion optimize` makes of a transformer's small operators.
TAKEN_CONTRIBUTED = frozenset(
    (
        *("Attention", "BiasGelu", "FastGelu", "Gelu", "GroupNorm", "GroupQueryAttention"),
        *("MatMulNBits", "MultiHeadAttention", "NhwcConv", "QLinearAdd", "QLinearAveragePool"),
        *("QLinearGlobalAveragePool", "QuickGelu", "RotaryEmbedding", "SkipLayerNormalization"),
        *("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"),
    )
)
_BY_DOMAIN = {"": TAKEN, "ai.onnx": TAKEN, "com.microsoft": TAKEN_CONTRIBUTED}


def claim(node: ir.Node, facts: ModelFacts) -> Claim | Refusal:
    """Take a node that the provider lists, with fixed sizes."""
    if node.op_type not in _BY_DOMAIN.get(node.domain, frozenset()):
        domain = f" of the domain `{node.domain}`" if node.domain else ""
        return Refusal(f"the MIGraphX provider does not list `{node.op_type}`{domain}")
    if facts.symbolic_dimensions:
        return Refusal(
            "the provider compiles anew for every shape; "
            f"{', '.join(facts.symbolic_dimensions)} is dynamic",
            f"fix it: `{facts.bind}`",
        )
    return Claim()
