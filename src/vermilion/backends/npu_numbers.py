"""The numbers that an NPU computes in, written into a graph that the CPU runs.

    integers   QuantizeLinear and DequantizeLinear say all: the graph stays as it is
    bf16       weights, inputs and what each operator gives become bfloat16, half to even; products
               are summed in float32
    bfp16      the same, and what a product multiplies becomes blocks of 8 values along what is
               summed over, with 8 bits each and the exponent of the largest

A convolution of one channel a group sums over no channels: it is no matrix product, and stays
bfloat16.

Sources: Ryzen AI documentation 1.8, model_quantization.rst (float models are compiled as bfloat16);
AMD Quark for ONNX 0.13 (BFloat16 and BFP16: what is rounded, along which axis).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.lower.block_rounding import DOMAIN, OPERATOR
from vermilion.codegen.lower.rules import PRODUCTS
from vermilion.ir.attributes import flag
from vermilion.ir.elementwise import elementwise
from vermilion.ir.numbers import number_format
from vermilion.ir.opset import constant_of, is_operator, static_shape
from vermilion.quantize.blocks import FORMATS, round_to
from vermilion.quantize.emulate import add_emulation

Numbers = Literal["integers", "bf16", "bfp16", "fp16"]

# What gives numbers of its inputs as they are, or with another sign: nothing is to be rounded.
_EXACT = frozenset(
    {
        "Abs", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather",
        "GatherElements", "GlobalMaxPool", "Identity", "Max", "MaxPool", "Min", "Neg", "Pad",
        "Relu", "ReduceMax", "ReduceMin", "Reshape", "Sign", "Slice", "SpaceToDepth", "Split",
        "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
    }
)  # fmt: skip
# Inputs from this one on say how, not what: scales of a Resize, of a quantization.
_DATA_INPUTS = {"Resize": 1, "Upsample": 1, "QuantizeLinear": 1, "DequantizeLinear": 0}
# The largest number that bfloat16 has: weights beyond it would become infinite.
_LARGEST = (2.0 - 2.0**-7) * 2.0**127


def numbers_of(model: ir.Model, precision: str = "auto") -> Numbers:
    """Return the numbers in which an NPU would compute a part; `precision` chooses for floats."""
    name = number_format(model)
    if name in ("xint8", "a8w8", "a16w8", "int8"):
        return "integers"
    if name == "fp16":
        return "fp16"
    return "bfp16" if precision == "bfp16" else "bf16"


def for_generated_code(model: ir.Model, numbers: Numbers, *, stores_bf16: bool) -> ir.Model:
    """Return the graph for our code generator; `model` stays as it is.

    With `stores_bf16` the generated program rounds what it keeps in memory: only what it would
    keep in registers is rounded by nodes of the graph.
    """
    if numbers not in ("bf16", "bfp16"):
        return model
    writer = _Writer(model, numbers)
    writer.round_weights()
    writer.round_results(stores_bf16=stores_bf16)
    if numbers == "bfp16":
        writer.round_products(literal=False)
    return writer.work


def in_standard_operators(model: ir.Model, numbers: Numbers) -> ir.Model:
    """Return the graph in operators that any runtime has; `model` stays as it is."""
    if numbers not in ("bf16", "bfp16"):
        return model
    writer = _Writer(model, numbers)
    writer.round_weights()
    writer.round_results(stores_bf16=False)
    if numbers == "bfp16":
        writer.round_products(literal=True)
    return writer.work


def rounded_weights(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to bfloat16, half to even; what is too large for it becomes its largest number."""
    inside = np.where(np.isfinite(values), np.clip(values, -_LARGEST, _LARGEST), values)
    return inside.astype(ml_dtypes.bfloat16).astype(np.float32)


def summed_axes(node: ir.Node) -> Iterator[tuple[int, int]]:
    """Yield (input, axis) for what a product multiplies: the axis that is summed over."""
    ranks = [None if value is None else len(value.shape or ()) for value in node.inputs[:2]]
    if is_operator(node, "Conv"):
        kernel = static_shape(node.inputs[1])
        if kernel is not None and kernel[1] > 1:
            yield from ((0, 1), (1, 1))
    elif is_operator(node, "ConvTranspose"):
        yield from ((0, 1), (1, 0))
    elif is_operator(node, "Gemm"):
        yield 0, 0 if flag(node, "transA") else 1
        yield 1, 1 if flag(node, "transB") else 0
    elif is_operator(node, "MatMul") and all(ranks):
        assert ranks[0] is not None
        assert ranks[1] is not None
        yield 0, ranks[0] - 1
        yield 1, max(0, ranks[1] - 2)


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.FLOAT


class _Writer:
    """The graph while it is rewritten, and what was rounded already."""

    def __init__(self, model: ir.Model, numbers: Numbers) -> None:
        self.work = model.clone()
        self.graph = self.work.graph
        self.numbers = numbers
        self._blocks: dict[tuple[ir.Value, int], ir.Value] = {}
        # Weights as they came: blocks are made of these, not of what bfloat16 left of them.
        self._original: dict[ir.Value, NDArray[Any]] = {}

    # Weights ------------------------------------------------------------------------------------

    def round_weights(self) -> None:
        """Round every constant of float32 that operators compute with."""
        for value in list(self.graph.initializers.values()):
            tensor = constant_of(value)
            if tensor is None or tensor.dtype != ir.DataType.FLOAT or not is_data(value):
                continue
            array = tensor.numpy()
            self._original[value] = array
            value.const_value = ir.Tensor(rounded_weights(array), name=value.name)

    def _weight(self, name: str, array: NDArray[Any], like: ir.Value) -> ir.Value:
        made = ir.Value(
            name=name, type=like.type, shape=like.shape, const_value=ir.Tensor(array, name=name)
        )
        self.graph.register_initializer(made)
        return made

    # Results ------------------------------------------------------------------------------------

    def round_results(self, *, stores_bf16: bool) -> None:
        """Cast what operators give to bfloat16 and back."""
        if not stores_bf16:
            for value in list(self.graph.inputs):
                if _is_float(value) and not value.is_initializer():
                    self._cast(value, None)
        for node in list(self.graph):
            if is_operator(node, *_EXACT) or node.domain not in ("", "ai.onnx"):
                continue
            if stores_bf16 and elementwise(node) is None and node.op_type not in PRODUCTS:
                continue
            for value in node.outputs:
                if value.name and _is_float(value):
                    self._cast(value, node)

    def _cast(self, value: ir.Value, maker: ir.Node | None) -> None:
        """Let every reader of `value` read it rounded; an output of the graph keeps its name."""
        uses = list(value.uses())
        places = [at for at, output in enumerate(self.graph.outputs) if output is value]
        if not uses and not places:
            return
        name = str(value.name)
        if places and maker is not None:
            value.name = f"{name}/exact"
        kinds = (ir.DataType.BFLOAT16, ir.DataType.FLOAT)
        steps: list[ir.Node] = []
        current = value
        for kind in kinds:
            word = "rounded" if kind == ir.DataType.BFLOAT16 else "float"
            output = ir.Value(name=f"{name}/{word}", type=ir.TensorType(kind), shape=value.shape)
            node = ir.Node(
                "", "Cast", [current], [ir.AttrInt64("to", kind.value)],
                outputs=[output], name=f"{name}/to {word}",
            )  # fmt: skip
            steps.append(node)
            current = output
        if maker is None:
            self._insert_first(steps)
        else:
            self.graph.insert_after(maker, steps)
        for use in uses:
            use.node.replace_input_with(use.idx, current)
        if maker is not None:
            for at in places:
                current.name = name
                self.graph.outputs[at] = current

    def _insert_first(self, nodes: Sequence[ir.Node]) -> None:
        first = next(iter(self.graph), None)
        if first is None:
            self.graph.extend(nodes)
        else:
            self.graph.insert_before(first, nodes)

    # Products -----------------------------------------------------------------------------------

    def round_products(self, *, literal: bool) -> None:
        """Put blocks before every product of float32."""
        for node in list(self.graph):
            if node.op_type not in PRODUCTS or node.domain not in ("", "ai.onnx"):
                continue
            if not all(_is_float(value) for value in node.inputs[:2]):
                continue
            for index, axis in list(summed_axes(node)):
                value = node.inputs[index]
                assert value is not None
                node.replace_input_with(index, self._in_blocks(value, axis, node, literal=literal))

    def _in_blocks(self, value: ir.Value, axis: int, reader: ir.Node, *, literal: bool) -> ir.Value:
        """Return a value in blocks along `axis`, made once."""
        key = (value, axis)
        if key in self._blocks:
            return self._blocks[key]
        name = f"{value.name}/blocks along {axis}"
        if value in self._original:
            array = round_to(self._original[value], "bfp16", axis)
            self._blocks[key] = self._weight(name, array, value)
            return self._blocks[key]
        shape = static_shape(value)
        assert shape is not None, f"{value.name} has no fixed shape"
        output = ir.Value(name=name, type=value.type, shape=value.shape)
        if literal:
            domain, operator = add_emulation(
                self.work, FORMATS["bfp16"], len(shape), axis, shape[axis]
            )
            attributes = []
        else:
            domain, operator = DOMAIN, OPERATOR
            attributes = [ir.AttrInt64("axis", axis)]
            self.graph.opset_imports[DOMAIN] = 1
        node = ir.Node(domain, operator, [value], attributes, outputs=[output], name=name)
        maker = value.producer()
        if maker is None:
            self._insert_first([node])
        else:
            self.graph.insert_after(maker, node)
        self._blocks[key] = output
        return output


def is_data(value: ir.Value) -> bool:
    """Say whether operators compute with a constant, rather than being told by it what to do."""
    return all(use.idx < _DATA_INPUTS.get(use.node.op_type, use.idx + 1) for use in value.uses())
