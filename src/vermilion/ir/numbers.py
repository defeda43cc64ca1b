"""In which number format a model is written, in our words and in those of the vendor's summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from vermilion.ir.opset import constant_of, is_operator

_INTEGER_OPERATORS = {
    "ConvInteger",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
}
_MAIN_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_FLOAT_FORMATS = {
    ir.DataType.FLOAT: "fp32",
    ir.DataType.DOUBLE: "fp64",
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
}
_WORDS = {"fp32": "float32", "fp64": "float64", "fp16": "float16", "bf16": "bfloat16"}
_WIDE = (ir.DataType.INT16, ir.DataType.UINT16)
_NARROW = (ir.DataType.INT8, ir.DataType.UINT8)


def number_format(model: ir.Model) -> str:
    """Name the format: `xint8`, `a8w8`, `a16w8`, `int8`, or `fp32`, `fp16`, `bf16`, `fp64`.

    Integers that pass through QuantizeLinear and DequantizeLinear make the first three: all
    scales powers of two with 8-bit activations is `xint8`, other scales `a8w8`, any 16-bit
    activation `a16w8`. Operators that compute on integers (QLinearConv, ConvInteger…) make
    `int8`. A model with float activations is named after most of its weights.
    """
    activations = _activation_types(model)
    if any(dtype in _WIDE for dtype in activations):
        return "a16w8"
    if any(dtype in _NARROW for dtype in activations):
        return "xint8" if _all_powers_of_two(model) else "a8w8"
    if any(_computes_on_integers(node) for node in model.graph.all_nodes()):
        return "int8"
    if ir.DataType.BFLOAT16 in activations:
        return "bf16"
    return _float_format(model)


def data_type_words(model: ir.Model) -> str:
    """Return what the vendor's summary prints after `Model data type:`.

    A quantized model is mixed if a convolution or matrix product in it reads plain floats.
    """
    name = number_format(model)
    if name in _WORDS:
        return _WORDS[name]
    bits = "int16" if name == "a16w8" else "int8"
    main = [node for node in model.graph.all_nodes() if is_operator(node, *_MAIN_OPERATORS)]
    if any(_reads_floats(node) for node in main):
        return f"{_WORDS.get(_float_format(model), 'float32')} and {bits} quantized"
    return f"{bits} quantized"


def _quantizers(model: ir.Model, op_type: str) -> Iterator[ir.Node]:
    """Yield the Q or DQ nodes, also the extended ones in `com.microsoft`."""
    for node in model.graph.all_nodes():
        if node.op_type == op_type and len(node.inputs) > 1:
            yield node


def _activation_types(model: ir.Model) -> Counter[ir.DataType]:
    """Count the types that activations (what is not a constant) are quantized to."""
    found: Counter[ir.DataType] = Counter()
    for node in _quantizers(model, "QuantizeLinear"):
        if constant_of(node.inputs[0]) is None:
            found[_quantized_type(node)] += 1
    return found


def _quantized_type(node: ir.Node) -> ir.DataType:
    """Source: ONNX QuantizeLinear-21: zero point's type, else `output_dtype`, else uint8."""
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    if zero_point is not None and zero_point.dtype is not None:
        return zero_point.dtype
    wanted = node.attributes.get("output_dtype")
    if wanted is not None and not wanted.is_ref() and wanted.as_int() != 0:
        return ir.DataType(wanted.as_int())
    return ir.DataType.UINT8


def _all_powers_of_two(model: ir.Model) -> bool:
    """Look at every constant scale; a computed one is not a power of two as far as we can say."""
    for op_type in ("QuantizeLinear", "DequantizeLinear"):
        for node in _quantizers(model, op_type):
            scale = constant_of(node.inputs[1])
            if scale is None or not scale.dtype.is_floating_point():
                return False
            mantissa, _ = np.frexp(scale.numpy().astype(np.float64))
            if not bool(np.all(mantissa == 0.5)):
                return False
    return True


def _computes_on_integers(node: ir.Node) -> bool:
    return node.op_type in _INTEGER_OPERATORS or node.op_type.startswith("QLinear")


def _reads_floats(node: ir.Node) -> bool:
    """Say whether neither of the node's first two inputs comes from a DequantizeLinear."""
    producers = [value.producer() for value in node.inputs[:2] if value is not None]
    return not any(
        producer is not None and producer.op_type == "DequantizeLinear" for producer in producers
    )


def _float_format(model: ir.Model) -> str:
    sizes: Counter[str] = Counter()
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.dtype in _FLOAT_FORMATS:
                sizes[_FLOAT_FORMATS[tensor.dtype]] += tensor.size
    for node in model.graph.all_nodes():
        tensor = constant_of(node.outputs[0]) if is_operator(node, "Constant") else None
        if tensor is not None and tensor.dtype in _FLOAT_FORMATS:
            sizes[_FLOAT_FORMATS[tensor.dtype]] += tensor.size
    if not sizes:
        sizes.update(
            _FLOAT_FORMATS[value.dtype]
            for value in [*model.graph.inputs, *model.graph.outputs]
            if value.dtype in _FLOAT_FORMATS
        )
    # float32 first where two are level: it is what most files are.
    return max(("fp32", "fp16", "bf16", "fp64"), key=lambda name: sizes[name])
