"""Which models may run in this process: those that cannot loop, crash or grow without bound.

All others run in a child. Where this cannot tell, the answer is the child: it costs half a second
once, a crash costs the user's process.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from vermilion.ir.onnx_shapes import may_go_below_zero
from vermilion.ir.opset import is_standard, static_shape

# What ONNX Runtime computes node by node with results as large as broadcasting makes them. Memory
# and time are bounded in this process too (`limits`, `memory`), but only between nodes.
_PLAIN = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization
    BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Concat Constant
    Conv ConvInteger ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear Div Dropout
    DynamicQuantizeLinear Elu Equal Erf Exp Flatten Floor GRU Gather GatherElements GatherND Gelu
    Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GroupNormalization HardSigmoid
    HardSwish Hardmax Identity InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization
    LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max
    MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul Neg Not Or PRelu Pow QLinearConv
    QLinearMatMul QuantizeLinear RMSNormalization RNN RandomUniformLike
    Reciprocal ReduceL1 ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape
    Round ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax
    Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tan Tanh ThresholdedRelu TopK
    Transpose Trilu Unsqueeze Where Xor
"""

# Of a size that a number inside the model or its inputs decides.
_SIZED = """
    ConstantOfShape Einsum Expand EyeLike GridSample NonMaxSuppression NonZero OneHot Pad Range
    Resize Tile Upsample
"""

MAX_SIZED_BYTES = 64 << 20
"""Of each result whose size a number decides: more than any feature map that Resize makes."""

MAX_BYTES = 1 << 30
"""Of each result whose size is known."""

_WIDEST = 16  # bytes of one element: complex128
_NO_WIDTH = (ir.DataType.STRING, ir.DataType.UNDEFINED)

_PLAIN_OPERATORS = frozenset(_PLAIN.split())
_SIZED_OPERATORS = frozenset(_SIZED.split())

# They repeat a body as often as data says.
_LOOPS = frozenset(
    {"Loop", "Scan", "SequenceMap", "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"}
)


def unvouched(model: ir.Model) -> str:
    """Return why the model has to run in a child, empty where it may run here.

    What is declared of sizes is believed: both ways of running bound the memory.
    """
    for value in model.graph.inputs:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            return f"input `{value.name}` is not a tensor"
    called = {key[:2] for key in model.functions}
    for node in _nodes(model):
        if (node.domain, node.op_type) in called:
            continue
        reason = _unvouched(node)
        if reason:
            return reason
    if _may_slice_below_zero(model):
        return "a Slice may meet a size below zero, at which ONNX Runtime ends its process"
    return ""


def _may_slice_below_zero(model: ir.Model) -> bool:
    from vermilion.ir.passes.infer_shapes import without_weights  # which imports what runs models

    sliced = [v for node in _nodes(model) if node.op_type == "Slice" for v in node.inputs[:1]]
    if not any(value is None or static_shape(value) is None for value in sliced):
        return False
    with without_weights(model) as proto:
        return may_go_below_zero(proto)


def may_loop(model: ir.Model) -> bool:
    """Say whether the model holds operators that repeat something as often as data says."""
    return any(node.op_type in _LOOPS for node in model.graph.all_nodes())


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph
    for function in model.functions.values():
        yield from function


def _unvouched(node: ir.Node) -> str:
    if not is_standard(node):
        return f"`{node.domain}::{node.op_type}` is not a standard operator"
    sized = node.op_type in _SIZED_OPERATORS
    if not sized and node.op_type not in _PLAIN_OPERATORS:
        return f"`{node.op_type}` may do anything"
    for value in (*node.inputs, *node.outputs):
        if value is not None and 0 in (static_shape(value) or ()):
            # GRU, ConvInteger and InstanceNormalization (1.32) divide by the size, or read there.
            return f"`{node.op_type}` has no elements in `{value.name}`: ONNX Runtime may crash"
    most = MAX_SIZED_BYTES if sized else MAX_BYTES
    for value in node.outputs:
        shape = static_shape(value)
        if shape is None:
            if sized and value.name:
                return f"`{node.op_type}` makes `{value.name}`, whose size is not known"
            continue
        size = _WIDEST if value.dtype is None else _width(value.dtype)
        for length in shape:
            size *= length
        if size > most:
            return f"`{node.op_type}` makes `{value.name}` of {size:,} bytes"
    return ""


def _width(dtype: ir.DataType) -> int:
    return _WIDEST if dtype in _NO_WIDTH else max(1, dtype.bitwidth // 8)
