"""The operator table: how much arithmetic each ONNX operator stands for.

Convention: one multiply-accumulate is two operations, as in the vendor's summaries (ResNet-18 has
1.81 G multiply-accumulates and 3.64 GOPs). Element by element work counts the arithmetic steps of
the operator's definition; an elementary function (exp, tanh, erf, …) is one step. Moving data
counts nothing.

Letters: N batch, C channels, H W image, M N K matrix product, S sequence, D head size.
Source of every definition: the operator's page at https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from vermilion.ir.attributes import integer, integers, text
from vermilion.ir.elementwise import ELEMENTWISE, Elementwise

Rule = Callable[[ir.Node], int]
Family = Literal["product", "elementwise", "reduction", "normalization", "movement", "control"]


@dataclass(frozen=True)
class Operator:
    """One row: the operator's name, its family and how its operations are counted."""

    name: str
    family: Family
    rule: Rule
    counting: str  # the rule in words, for the documentation
    domain: str = ""

    @property
    def specification(self) -> str:
        """Address of the page that defines the operator."""
        if self.domain == "com.microsoft":
            anchor = f"#{self.domain}.{self.name}"
            return (
                "https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md"
                + anchor
            )
        return f"https://onnx.ai/onnx/operators/onnx__{self.name}.html"


def dimensions(value: ir.Value | None) -> tuple[int, ...]:
    """Return the shape with every unknown dimension as 1; an unknown shape is a scalar.

    Costs are then a lower bound; `cost.py` says whether they are exact.
    """
    if value is None or value.shape is None:
        return ()
    return tuple([d if isinstance(d, int) else 1 for d in value.shape.dims])


def elements(value: ir.Value | None) -> int:
    """Return the number of elements, unknown dimensions counting 1 and a missing value 0."""
    return 0 if value is None else math.prod(dimensions(value))


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _nothing(node: ir.Node) -> int:
    return 0


def _per_output(steps: int) -> Rule:
    return lambda node: steps * elements(node.outputs[0])


def _per_input(steps: int) -> Rule:
    return lambda node: steps * elements(_input(node, 0))


def _variadic(node: ir.Node) -> int:
    return max(0, len(node.inputs) - 1) * elements(node.outputs[0])


def _conv_from(weight_index: int, bias_index: int | None) -> Rule:
    def rule(node: ir.Node) -> int:
        weight = dimensions(_input(node, weight_index))
        output = elements(node.outputs[0])
        has_bias = bias_index is not None and _input(node, bias_index) is not None
        return 2 * output * math.prod(weight[1:]) + (output if has_bias else 0)

    return rule


def _conv_transpose(node: ir.Node) -> int:
    weight = dimensions(_input(node, 1))
    bias = elements(node.outputs[0]) if _input(node, 2) is not None else 0
    return 2 * elements(_input(node, 0)) * math.prod(weight[1:]) + bias


def _gemm(node: ir.Node) -> int:
    a = dimensions(_input(node, 0))
    k = a[0 if integer(node, "transA", 0) else -1] if a else 1
    output = elements(node.outputs[0])
    return 2 * output * k + (output if _input(node, 2) is not None else 0)


def _matmul(node: ir.Node) -> int:
    a = dimensions(_input(node, 0))
    return 2 * elements(node.outputs[0]) * (a[-1] if a else 1)


def _matmul_nbits(node: ir.Node) -> int:
    return 2 * elements(node.outputs[0]) * integer(node, "K", 1)


def _einsum(node: ir.Node) -> int:
    attribute = node.attributes.get("equation")
    if attribute is None:
        return 0
    sizes: dict[str, int] = {}
    terms = attribute.as_string().replace(" ", "").split("->")[0].split(",")
    for term, value in zip(terms, node.inputs, strict=False):
        letters = term.replace("...", "")
        shape = dimensions(value)
        sizes.update(zip(letters, shape[len(shape) - len(letters) :], strict=False))
    return max(1, len(terms)) * math.prod(sizes.values())


def _pool(node: ir.Node) -> int:
    kernel = integers(node, "kernel_shape", ())
    return elements(node.outputs[0]) * math.prod(kernel)


def _recurrent(gates: int, steps_per_state: int) -> Rule:
    def rule(node: ir.Node) -> int:
        x, weight = dimensions(_input(node, 0)), dimensions(_input(node, 1))
        if len(x) != 3 or len(weight) != 3:
            return 0
        # X (S, N, input), W (directions, gates·hidden, input), R (directions, gates·hidden, hidden)
        directions, rows, input_size = weight
        hidden = rows // gates
        products = 2 * rows * (input_size + hidden)
        return x[0] * x[1] * directions * (products + steps_per_state * hidden)

    return rule


def _attention(node: ir.Node) -> int:
    """Two products of (S, D) by (D, T): 4·S·T·hidden, and a softmax over the scores."""
    query, key = dimensions(_input(node, 0)), dimensions(_input(node, 1))
    if len(query) == 4:
        batch, heads, sequence, size = query
        total = key[2] if len(key) == 4 else sequence
        return batch * heads * sequence * total * (4 * size + 5)
    if len(query) != 3:
        return 0
    batch, sequence, hidden = query
    total = key[1] if len(key) == 3 else sequence
    heads = max(1, integer(node, "num_heads", integer(node, "q_num_heads", 1)))
    return batch * sequence * total * (4 * hidden + 5 * heads)


def _resize(node: ir.Node) -> int:
    mode = text(node, "mode", "nearest")
    taps = {"nearest": 0, "linear": 2, "cubic": 4}.get(mode, 0)
    scaled = sum(
        before != after
        for before, after in zip(
            dimensions(_input(node, 0)), dimensions(node.outputs[0]), strict=False
        )
    )
    return 2 * elements(node.outputs[0]) * taps**scaled if taps and scaled else 0


def _fourier(node: ir.Node) -> int:
    output = elements(node.outputs[0])
    return int(5 * output * math.log2(max(2, output)))


def _lrn(node: ir.Node) -> int:
    return elements(node.outputs[0]) * (2 * integer(node, "size", 1) + 3)


def _row(names: str, family: Family, rule: Rule, counting: str, domain: str = "") -> list[Operator]:
    return [Operator(name, family, rule, counting, domain) for name in names.split()]


def _elementwise(row: Elementwise) -> Operator:
    if row.steps < 0:
        return Operator(row.name, "elementwise", _variadic, "(inputs - 1) × output", row.domain)
    if not row.steps:
        return Operator(row.name, "movement", _nothing, "0", row.domain)
    counting = row.counting or f"{row.steps} × output"
    return Operator(row.name, "elementwise", _per_output(row.steps), counting, row.domain)


_MS = "com.microsoft"

_ROWS: list[Operator] = [
    # Products.
    *_row("Conv", "product", _conv_from(1, 2), "2 × output × input taps, + bias"),
    *_row("ConvInteger", "product", _conv_from(1, None), "2 × output × input taps"),
    *_row("QLinearConv", "product", _conv_from(3, 8), "2 × output × input taps, + bias"),
    *_row("DeformConv", "product", _conv_from(1, 3), "2 × output × input taps, + bias"),
    *_row("ConvTranspose", "product", _conv_transpose, "2 × input × output taps, + bias"),
    *_row("Gemm", "product", _gemm, "2 × M × N × K, + bias"),
    *_row("MatMul MatMulInteger QLinearMatMul", "product", _matmul, "2 × output × K"),
    *_row("Einsum", "product", _einsum, "operands × product of all index sizes"),
    *_row("LSTM", "product", _recurrent(4, 9), "2 × gates × hidden × (input + hidden) a step"),
    *_row("GRU", "product", _recurrent(3, 10), "2 × gates × hidden × (input + hidden) a step"),
    *_row("RNN", "product", _recurrent(1, 2), "2 × hidden × (input + hidden) a step"),
    *_row("Attention", "product", _attention, "4 × S × T × D a head, + softmax"),
    *_row("DFT STFT", "product", _fourier, "5 × output × log2(output)"),
    *_row("MatMulNBits", "product", _matmul_nbits, "2 × output × K", _MS),
    *_row("FusedMatMul", "product", _matmul, "2 × output × K", _MS),
    *_row("FusedConv", "product", _conv_from(1, 2), "2 × output × input taps, + bias", _MS),
    *_row(
        "MultiHeadAttention GroupQueryAttention",
        "product",
        _attention,
        "4 × S × T × D a head, + softmax",
        _MS,
    ),
    *_row("BitShift CumSum CumProd", "elementwise", _per_output(1), "1 × output"),
    *_row("DynamicQuantizeLinear", "elementwise", _per_output(5), "5 × output"),
    *_row("RotaryEmbedding", "elementwise", _per_output(3), "3 × output"),
    *_row("Gelu FastGelu BiasGelu QuickGelu", "elementwise", _per_output(5), "5 × output", _MS),
    *_row("RotaryEmbedding", "elementwise", _per_output(3), "3 × output", _MS),
    # Reductions.
    *_row("MaxPool AveragePool LpPool", "reduction", _pool, "output × window"),
    *_row(
        "GlobalAveragePool GlobalMaxPool ReduceSum ReduceMax ReduceMin ReduceMean ReduceProd "
        "ArgMax ArgMin TopK NonZero Hardmax",
        "reduction",
        _per_input(1),
        "1 × input",
    ),
    *_row(
        "ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum GlobalLpPool",
        "reduction",
        _per_input(2),
        "2 × input",
    ),
    *_row("ReduceLogSumExp", "reduction", _per_input(3), "3 × input"),
    # Normalizations.
    *_row("BatchNormalization", "normalization", _per_output(2), "2 × output: scale, shift"),
    *_row(
        "Softmax LogSoftmax",
        "normalization",
        _per_output(5),
        "5 × output: max, subtract, exp, sum, divide",
    ),
    *_row(
        "LayerNormalization InstanceNormalization GroupNormalization MeanVarianceNormalization",
        "normalization",
        _per_output(7),
        "7 × output: two means, centre, square, scale, shift",
    ),
    *_row("RMSNormalization LpNormalization", "normalization", _per_output(4), "4 × output"),
    *_row("SimplifiedLayerNormalization", "normalization", _per_output(4), "4 × output", _MS),
    *_row("SimplifiedLayerNormalization", "normalization", _per_output(4), "4 × output"),
    *_row("SkipSimplifiedLayerNormalization", "normalization", _per_output(5), "5 × output", _MS),
    *_row("SkipLayerNormalization", "normalization", _per_output(8), "8 × output", _MS),
    *_row("LRN", "normalization", _lrn, "output × (2 × size + 3)"),
    # Movement of data.
    *_row("Resize Upsample", "movement", _resize, "2 × output × taps; nearest 0"),
    *_row("GridSample", "movement", _per_output(8), "8 × output: four taps"),
    *_row(
        "CastLike Concat Constant ConstantOfShape DepthToSpace Dropout Expand EyeLike Flatten "
        "Gather GatherElements GatherND Identity OneHot Pad Range Reshape ReverseSequence "
        "ScatterElements ScatterND Scatter Shape Size Slice SpaceToDepth Split Squeeze Tile "
        "Transpose Trilu Unsqueeze Compress Unique NonMaxSuppression RoiAlign MaxUnpool "
        "CenterCropPad Col2Im AffineGrid BitCast TensorScatter ConcatFromSequence SplitToSequence "
        "SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength "
        "Optional OptionalGetElement OptionalHasElement RandomNormal RandomNormalLike "
        "RandomUniform RandomUniformLike",
        "movement",
        _nothing,
        "0",
    ),
    *_row("Gather EmbedLayerNormalization", "movement", _nothing, "0", _MS),
    # Control flow: what is inside is counted by `cost.py`.
    *_row("If Loop Scan", "control", _nothing, "the body once; the dearer branch of an If"),
    # Where two rows name one operator, this one holds.
    *(_elementwise(row) for row in ELEMENTWISE.values()),
]

OPERATORS: dict[tuple[str, str], Operator] = {(row.domain, row.name): row for row in _ROWS}


def find_operator(node: ir.Node) -> Operator | None:
    """Return the node's row, None where the table has none."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return OPERATORS.get((domain, node.op_type))
