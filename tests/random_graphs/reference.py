"""What a graph means: every node run alone by ONNX Runtime, its result rounded to its type.

Where ONNX Runtime has no kernel for a node, our interpreter computes it.

A node alone meets no fusion. float16 and bfloat16 nodes are run on float32, which holds their
inputs exactly, because ONNX Runtime has few kernels for them; rounding the result is what they
differ in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from vermilion.errors import VermilionError
from vermilion.ir.literal.interpret import interpret

Array = NDArray[Any]
# An array, and how many roundings it has.
Noise = Callable[[Array, float], Array]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NARROW_FLOATS = (np.dtype(np.float16), BFLOAT16)
_NARROW = {TensorProto.FLOAT16: np.dtype(np.float16), TensorProto.BFLOAT16: BFLOAT16}


class NotRunError(Exception):
    """ONNX Runtime has no kernel for a node, or refuses it."""


def ir_version(opset: int) -> int:
    """Return an IR version that may hold this opset."""
    return 8 if opset < 19 else 10 if opset < 23 else 11


def element_type(array: Array) -> int:
    """Return ONNX's number of an array's type."""
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def is_float(array: Array) -> bool:
    """Say whether an array holds floats, narrow ones too."""
    return array.dtype.kind == "f" or array.dtype == BFLOAT16


class NodeRunner:
    """A node, open in ONNX Runtime, to be run on inputs of these types and shapes."""

    def __init__(self, node: onnx.NodeProto, opset: int, inputs: Sequence[Array | None]) -> None:
        self.node = node
        self._names = [name for name in node.input if name]
        arrays = dict(zip(node.input, inputs, strict=True))
        narrow = any(a is not None and a.dtype in NARROW_FLOATS for a in inputs)
        self._to = {output: None for output in node.output if output}
        twin = onnx.NodeProto()
        twin.CopyFrom(node)
        for attribute in twin.attribute:
            narrow |= self._widen(attribute, node.op_type)
        types, self._shapes = _types_of(node, opset, arrays)
        if narrow or node.op_type in ("Cast", "CastLike"):
            self._to = types
        if node.op_type == "Constant":
            self._constant: Array | None = _constant(node)
            return
        self._constant = None
        self._is_batch_first = _make_time_first(twin)
        given = {n: _wide(a) for n, a in arrays.items() if n}
        self._interpreted: ir.Model | None = None
        try:
            self._session = _session(twin, opset, self._turned(given))
        except NotRunError as error:
            if "NOT_IMPLEMENTED" not in str(error):
                raise
            infos = [_info(n, a) for n, a in arrays.items() if n and a is not None]
            self._interpreted = ir.from_proto(_alone(node, opset, infos))

    def _widen(self, attribute: onnx.AttributeProto, op_type: str) -> bool:
        if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type in _NARROW:
            array = numpy_helper.to_array(attribute.t).astype(np.float32)
            attribute.t.CopyFrom(numpy_helper.from_array(array, attribute.t.name))
            return True
        is_type = attribute.name in ("to", "dtype", "output_dtype")
        if is_type and op_type != "Constant" and attribute.i in _NARROW:
            attribute.i = TensorProto.FLOAT
            return True
        return False

    def _interpret(self, model: ir.Model, inputs: Sequence[Array | None]) -> list[Array]:
        """Run a node for which ONNX Runtime has no kernel."""
        fed = {n: a for n, a in zip(self.node.input, inputs, strict=True) if n and a is not None}
        try:
            return list(interpret(model, fed).values())
        except VermilionError as error:
            raise NotRunError(f"{self.node.op_type}: {_line(error)}") from error

    def _turned(self, given: dict[str, Array]) -> dict[str, Array]:
        """Return the inputs with time or directions first, as ONNX Runtime wants them."""
        if not self._is_batch_first:
            return given
        names = {self.node.input[at] for at in (0, 5, 6) if at < len(self.node.input)}
        return {n: a.swapaxes(0, 1) if n in names else a for n, a in given.items()}

    def run(self, inputs: Sequence[Array | None]) -> list[Array]:
        """Return the node's results, those that have a name."""
        if self._constant is not None:
            return [self._constant]
        if self._interpreted is not None:
            return self._interpret(self._interpreted, inputs)
        fed = {n: _wide(a) for n, a in zip(self.node.input, inputs, strict=True) if n}
        try:
            found = self._session.run(None, self._turned(fed))
        except Exception as error:
            raise NotRunError(f"{self.node.op_type}: {_line(error)}") from error
        if self._is_batch_first:
            found = [a.transpose(2, 0, 1, 3) if a.ndim == 4 else a.swapaxes(0, 1) for a in found]
        for name, array in zip(self._to, found, strict=True):
            if self._shapes[name] not in (None, list(np.shape(array))):
                raise NotRunError(f"{self.node.op_type}: ONNX infers another shape")
        with np.errstate(over="ignore", invalid="ignore"):
            return [
                np.asarray(a) if to is None or np.asarray(a).dtype == to else np.asarray(a, to)
                for a, to in zip(found, self._to.values(), strict=True)
            ]


def _alone(
    node: onnx.NodeProto, opset: int, inputs: Sequence[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    outputs = [helper.make_empty_tensor_value_info(o) for o in node.output if o]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version(opset)
    )


def _make_time_first(node: onnx.NodeProto) -> bool:
    """Take `layout` off a recurrent node, which ONNX Runtime does not know; say if it was set."""
    for attribute in node.attribute:
        if attribute.name == "layout" and node.op_type in ("LSTM", "GRU", "RNN"):
            was = bool(attribute.i)
            attribute.i = 0
            return was
    return False


def _wide(array: Array | None) -> Array:
    assert array is not None
    return array.astype(np.float32) if array.dtype in NARROW_FLOATS else array


def _constant(node: onnx.NodeProto) -> Array:
    (attribute,) = node.attribute
    match attribute.name:
        case "value":
            return numpy_helper.to_array(attribute.t)
        case "value_float":
            return np.array(attribute.f, np.float32)
        case "value_int":
            return np.array(attribute.i, np.int64)
        case "value_floats":
            return np.array(attribute.floats, np.float32)
    return np.array(attribute.ints, np.int64)


def _types_of(
    node: onnx.NodeProto, opset: int, arrays: Mapping[str, Array | None]
) -> tuple[dict[str, Any], dict[str, list[int] | None]]:
    """Return type and shape of each result, as ONNX's own rules say."""
    model = _alone(node, opset, [_info(n, a) for n, a in arrays.items() if n and a is not None])
    try:
        found = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        raise NotRunError(f"{node.op_type}: {_line(error)}") from error
    kinds, shapes = {}, {}
    for value in found.graph.output:
        kind = value.type.tensor_type
        kinds[value.name] = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        is_known = kind.HasField("shape") and None not in sizes
        shapes[value.name] = [size or 0 for size in sizes] if is_known else None
    return kinds, shapes


def _info(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type(array), array.shape)


def session_options() -> ort.SessionOptions:
    """Return options under which ONNX Runtime computes what the file says, on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return options


def _session(node: onnx.NodeProto, opset: int, arrays: Mapping[str, Array]) -> ort.InferenceSession:
    model = _alone(node, opset, [_info(n, a) for n, a in arrays.items()])
    try:
        return ort.InferenceSession(
            model.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise NotRunError(f"{node.op_type}: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "")[:300]


class Reference:
    """A model run node by node; opened once, run on any inputs of the same shapes."""

    def __init__(self, model: onnx.ModelProto, inputs: Mapping[str, Array]) -> None:
        self.model = model
        self.opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        self.weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self._runners: list[NodeRunner] = []
        self.values = self._open(dict(inputs))

    def _open(self, inputs: dict[str, Array]) -> dict[str, Array]:
        values = {**self.weights, **inputs}
        for node in self.model.graph.node:
            given = [values[name] if name else None for name in node.input]
            runner = NodeRunner(node, self.opset, given)
            self._runners.append(runner)
            values.update(_named(node, runner.run(given)))
        return values

    def run(self, inputs: Mapping[str, Array], noise: Noise) -> dict[str, Array]:
        """Return every value where each float, given or computed, has some noise put on it."""
        exact = {
            name
            for node in self.model.graph.node if node.op_type in _HAS_PARAMETERS
            for name in node.input[1:]
        }  # fmt: skip
        values = {
            name: a if name in exact and name in self.weights else noise(a, 1.0)
            for name, a in {**self.weights, **inputs}.items()
        }
        for runner in self._runners:
            node = runner.node
            given = [values[name] if name else None for name in node.input]
            found = runner.run(given)
            is_new = node.op_type not in _NO_ARITHMETIC
            if node.op_type == "Constant" and node.output[0] in exact:
                is_new = False
            times = roundings(node)
            values.update(_named(node, [noise(a, times) for a in found] if is_new else found))
        return values


def roundings(node: onnx.NodeProto) -> float:
    """Return how many roundings the result of a node has.

    ONNX Runtime computes the weights of a cubic Resize in float32 from terms that cancel, and is
    off by more than one (0.0000015 of a result beside float64).
    """
    modes = [helper.get_attribute_value(one) for one in node.attribute if one.name == "mode"]
    return 16.0 if node.op_type in ("Resize", "Upsample") and modes == [b"cubic"] else 1.0


# Operators whose constants are exact: scales, exponents, bounds.
_HAS_PARAMETERS = frozenset(
    {
        "Resize", "Upsample", "QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul",
        "Pow", "Clip", "Pad", "Dropout",
    }
)  # fmt: skip

# What only moves values puts no rounding on them.
_NO_ARITHMETIC = frozenset(
    {
        "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split",
        "Concat", "Expand", "Tile", "Gather", "GatherElements", "GatherND", "Pad",
        "DepthToSpace", "SpaceToDepth", "Trilu", "Dropout", "Relu", "MaxPool", "GlobalMaxPool",
        "ReduceMax", "ReduceMin", "Max", "Min", "Neg", "Abs", "Where", "Clip",
    }
)  # fmt: skip


def _named(node: onnx.NodeProto, found: Sequence[Array]) -> dict[str, Array]:
    return dict(zip([name for name in node.output if name], found, strict=True))


def run_whole(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of ONNX Runtime without optimizations, the model opened as a whole."""
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
        )
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))
    except Exception as error:
        raise NotRunError(_line(error)) from error
