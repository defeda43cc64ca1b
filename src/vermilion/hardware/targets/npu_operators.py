"""Operators that AMD documents as supported on its NPUs, by number format.

Source: Ryzen AI Software 1.8 documentation, docs/ops_support.rst: 105 rows, four columns. The
rows are grouped here by the columns they have a `Y` in. A `Y` means broad coverage; some
configurations of an operator may still be refused.
"""

from __future__ import annotations

from collections.abc import Mapping

_ALL = frozenset(("bf16", "a16w8", "a8w8", "xint8"))

_ROWS: tuple[tuple[frozenset[str], str], ...] = (
    (
        _ALL,
        "Add AveragePool BatchNormalization Concat Constant ConstantOfShape Conv DepthToSpace Div"
        " Expand Flatten Gemm GlobalAveragePool Identity InstanceNormalization MatMul Max MaxPool"
        " Min Mul Pad Reciprocal ReduceMax Reshape Shape Slice Sqrt Squeeze Sub Transpose"
        " Unsqueeze",
    ),
    (
        frozenset(("bf16", "xint8")),
        "Abs And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil"
        " CumSum Equal Erf Floor Greater Less Log Neg Or Pow Round Sign Tile",
    ),
    # `GroupConv` is no ONNX operator, and the old `Upsample` is a row of its own: `_DEPRECATED`.
    (
        frozenset(("bf16",)),
        "Einsum Gather GridSample GroupConv LSTM Mod Not ScatterND Size Xor",
    ),
    (
        frozenset(("xint8",)),
        "Celu GreaterOrEqual LayerNormalization LessOrEqual Mish Range STFT Shrink Softsign"
        " ThresholdedRelu",
    ),
    (
        frozenset(("a16w8", "a8w8", "xint8")),
        "Clip DequantizeLinear Gelu GlobalMaxPool GroupNormalization LeakyRelu Relu Softmax"
        " Upsample",
    ),
    (frozenset(("bf16", "a8w8", "xint8")), "ReduceMean ReduceMin ReduceSum Resize"),
    (frozenset(("bf16", "a16w8", "a8w8")), "ConvTranspose Sigmoid Sin"),
    (frozenset(("a16w8", "a8w8")), "Cos QLinearConv QuantizeLinear"),
    (frozenset(("bf16", "a16w8")), "Exp GatherElements Split"),
    (frozenset(("a16w8", "xint8")), "Elu TopK"),
    (frozenset(("a8w8",)), "HardSigmoid QLinearMatMul"),
    (frozenset(("bf16", "a16w8", "xint8")), "Tanh Where"),
    (frozenset(("a8w8", "xint8")), "HardSwish"),
)

# The row reads `Upsample (deprecated)` and has a `Y` for BF16 alone.
_DEPRECATED: Mapping[str, frozenset[str]] = {"bf16": frozenset(("Upsample",))}

FORMATS = ("a16w8", "a8w8", "bf16", "xint8")


def _column(number_format: str) -> frozenset[str]:
    names = (row.split() for formats, row in _ROWS if number_format in formats)
    return frozenset().union(*names) | _DEPRECATED.get(number_format, frozenset())


ROWS_IN_TABLE = sum(len(row.split()) for _, row in _ROWS) + len(_DEPRECATED)

DOCUMENTED: Mapping[str, frozenset[str]] = {name: _column(name) for name in FORMATS}

# Operators with no `Y` in the BF16 column that run in BF16 all the same, because the compiler fuses
# them into a neighbour or takes them apart first. Inferred, from AMD's own results:
# - Relu: the example summary of resnet18.a1_in1k (Vitis AI documentation for Versal AI Edge Gen 2,
#   model_compilation/compiling.html) counts 49 operators, of which 17 are Relu, and offloads 49;
# - LayerNormalization, Softmax, Gelu: RyzenAI-SW, Transformer-examples, DistilBERT in BF16;
# - Clip, HardSwish, HardSigmoid, LeakyRelu: RyzenAI-SW, onnx-benchmark, FP32 MobileNet and YOLO
#   models run as BF16; each is a Min, Max, Mul and Add, which the column has;
# - GlobalMaxPool: a MaxPool over the whole image, which the column has.
BF16_THROUGH_FUSION = frozenset(
    [
        "Clip",
        "Gelu",
        "GlobalMaxPool",
        "HardSigmoid",
        "HardSwish",
        "LayerNormalization",
        "LeakyRelu",
        "Relu",
        "Softmax",
    ]
)

# In a quantized model these fold into the integer kernels on both sides of them. The table's
# XINT8 column has no QuantizeLinear, and every XINT8 model that AMD ships is full of them.
QDQ = frozenset(("QuantizeLinear", "DequantizeLinear"))

OPERATORS: Mapping[str, frozenset[str]] = {
    "bf16": DOCUMENTED["bf16"] | BF16_THROUGH_FUSION,
    "a16w8": DOCUMENTED["a16w8"] | QDQ,
    "a8w8": DOCUMENTED["a8w8"] | QDQ,
    "xint8": DOCUMENTED["xint8"] | QDQ,
}
