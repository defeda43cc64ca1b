"""One small model for every operator that code is generated for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx_ir as ir

from vermilion.ir.elementwise import ELEMENTWISE

_VERSIONS = onnx.defs.get_all_schemas_with_history()

_FLOAT = ("Abs", "Dropout", "Identity", "LogSoftmax", "LpNormalization", "Neg", "Relu", "Sign",
          "Softmax", "Trilu")  # fmt: skip
_PAIRS = (
    "Add", "Div", "Max", "Mean", "Min", "Mul", "PRelu", "Pow", "Sub", "Sum",
)  # fmt: skip
_COMPARED = (
    "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
)  # fmt: skip
_REDUCED = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
_WEIGHTS = {
    "w": np.ones((4, 4, 3, 3), np.float32), "c": np.ones(4, np.float32),
    "m": np.ones((6, 4), np.float32), "one": np.array(1), "axis1": np.array([1]),
    "row": np.ones(6, np.float32), "three": np.array(3, np.int32),
    "sizes": np.array([6, 4]), "wide": np.array([2, 4, 6]), "twice": np.array([2, 2]),
    "pads": np.array([1, 0, 1, 2]), "scales": np.array([1, 1, 2, 2], np.float32),
    "from": np.array([1, 0]), "to": np.array([3, 5]), "index": np.array([1, 3, 0]),
    "pairs": np.array([[1, 3], [0, 5], [-1, 2]]),
    "picks": np.array([[1, 3, 0]]), "each": np.array([[1, 3, 0]] * 4),
    "s": np.array(0.5, np.float32), "z": np.array(3, np.uint8),
    "q": np.ones((4, 4, 3, 3), np.uint8), "qm": np.ones((6, 4), np.uint8),
    "zero": np.array(0.0, np.float32), "six": np.array(6.0, np.float32),
    "lw": np.ones((1, 20, 6), np.float32), "lr": np.ones((1, 20, 5), np.float32),
    "gw": np.ones((1, 15, 6), np.float32), "gr": np.ones((1, 15, 5), np.float32),
    "rw": np.ones((1, 5, 6), np.float32), "rr": np.ones((1, 5, 5), np.float32),
    "pieces": np.array([2, 4]), "two": np.array(2.0, np.float32),
}  # fmt: skip

# Operator: inputs, results, node.
_SINGLE = {
    "And": ("bool[4,6] x, bool[4,6] b", "bool[4,6] y", "y = And(x, b)"),
    "Or": ("bool[4,6] x, bool[4,6] b", "bool[4,6] y", "y = Or(x, b)"),
    "Xor": ("bool[4,6] x, bool[4,6] b", "bool[4,6] y", "y = Xor(x, b)"),
    "Not": ("bool[4,6] x", "bool[4,6] y", "y = Not(x)"),
    "IsNaN": ("float[4,6] x", "bool[4,6] y", "y = IsNaN(x)"),
    "IsInf": ("float[4,6] x", "bool[4,6] y", "y = IsInf(x)"),
    "Mod": ("int64[4,6] x, int64[6] b", "int64[4,6] y", "y = Mod(x, b)"),
    "Where": ("bool[4,1] x, float[6] a, float[4,6] b", "float[4,6] y", "y = Where(x, a, b)"),
    "Cast": ("float[4,6] x", "int32[4,6] y", "y = Cast<to=6>(x)"),
    "Clip": ("float[4,6] x", "float[4,6] y", "y = Clip(x, zero, six)"),
    "ArgMax": ("float[4,6] x", "int64[4,1] y", "y = ArgMax<axis=1>(x)"),
    "ArgMin": ("float[4,6] x", "int64[6] y", "y = ArgMin<axis=0, keepdims=0>(x)"),
    "TopK": ("float[4,6] x", "float[4,1] y, int64[4,1] k", "y, k = TopK(x, axis1)"),
    "CumSum": ("float[4,6] x", "float[4,6] y", "y = CumSum(x, one)"),
    "Concat": ("float[4,6] x, float[4,2] b", "float[4,8] y", "y = Concat<axis=1>(x, b)"),
    "Conv": ("float[2,4,8,8] x", "float[2,4,6,6] y", "y = Conv(x, w, c)"),
    "ConvTranspose": ("float[2,4,8,8] x", "float[2,4,10,10] y", "y = ConvTranspose(x, w)"),
    "Gemm": ("float[2,6] x", "float[2,4] y", "y = Gemm(x, m, c)"),
    "MatMul": ("float[3,2,6] x", "float[3,2,4] y", "y = MatMul(x, m)"),
    "MaxPool": ("float[2,4,8,8] x", "float[2,4,6,6] y", "y = MaxPool<kernel_shape=[3,3]>(x)"),
    "AveragePool": ("float[2,4,8,8] x", "float[2,4,4,4] y",
                    "y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)"),
    "GlobalAveragePool": ("float[2,4,8,8] x", "float[2,4,1,1] y", "y = GlobalAveragePool(x)"),
    "GlobalMaxPool": ("float[2,4,8,8] x", "float[2,4,1,1] y", "y = GlobalMaxPool(x)"),
    "Resize": ("float[2,4,8,8] x", "float[2,4,16,16] y", "y = Resize(x, , scales)"),
    "LRN": ("float[2,4,8,8] x", "float[2,4,8,8] y", "y = LRN<size=3>(x)"),
    "BatchNormalization": ("float[2,4,8,8] x", "float[2,4,8,8] y",
                           "y = BatchNormalization(x, c, c, c, c)"),
    "InstanceNormalization": ("float[2,4,8,8] x", "float[2,4,8,8] y",
                              "y = InstanceNormalization(x, c, c)"),
    "LayerNormalization": ("float[4,6] x", "float[4,6] y", "y = LayerNormalization(x, row)"),
    "DepthToSpace": ("float[2,4,8,8] x", "float[2,1,16,16] y", "y = DepthToSpace<blocksize=2>(x)"),
    "SpaceToDepth": ("float[2,4,8,8] x", "float[2,16,4,4] y", "y = SpaceToDepth<blocksize=2>(x)"),
    "Reshape": ("float[4,6] x", "float[6,4] y", "y = Reshape(x, sizes)"),
    "Flatten": ("float[4,3,2] x", "float[4,6] y", "y = Flatten(x)"),
    "Squeeze": ("float[4,1,6] x", "float[4,6] y", "y = Squeeze(x, axis1)"),
    "Unsqueeze": ("float[4,6] x", "float[4,1,6] y", "y = Unsqueeze(x, axis1)"),
    "Transpose": ("float[4,6] x", "float[6,4] y", "y = Transpose(x)"),
    "Slice": ("float[4,6] x", "float[2,5] y", "y = Slice(x, from, to)"),
    "Split": ("float[4,6] x", "float[4,2] y, float[4,4] o", "y, o = Split<axis=1>(x, pieces)"),
    "Expand": ("float[4,1] x", "float[2,4,6] y", "y = Expand(x, wide)"),
    "Gather": ("float[4,6] x", "float[3,6] y", "y = Gather(x, index)"),
    "GatherND": ("float[4,6] x", "float[3] y", "y = GatherND(x, pairs)"),
    "ScatterElements": ("float[4,6] x, float[4,3] u", "float[4,6] y",
                        "y = ScatterElements<axis=1>(x, each, u)"),
    "ScatterND": ("float[4,6] x, float[3] u", "float[4,6] y", "y = ScatterND(x, pairs, u)"),
    "GatherElements": ("float[4,6] x", "float[1,3] y", "y = GatherElements(x, picks)"),
    "Pad": ("float[4,6] x", "float[6,8] y", "y = Pad(x, pads)"),
    "Tile": ("float[4,6] x", "float[8,12] y", "y = Tile(x, twice)"),
    "QuantizeLinear": ("float[4,6] x", "uint8[4,6] y", "y = QuantizeLinear(x, s, z)"),
    "DequantizeLinear": ("uint8[4,6] x", "float[4,6] y", "y = DequantizeLinear(x, s, z)"),
    "QLinearConv": ("uint8[2,4,8,8] x", "uint8[2,4,6,6] y",
                    "y = QLinearConv(x, s, z, q, s, z, s, z)"),
    "QLinearMatMul": ("uint8[2,6] x", "uint8[2,4] y", "y = QLinearMatMul(x, s, z, qm, s, z, s, z)"),
    "DynamicQuantizeLinear": ("float[4,6] x", "uint8[4,6] y, float h, uint8 k",
                              "y, h, k = DynamicQuantizeLinear(x)"),
    "MatMulInteger": ("uint8[2,6] x", "int32[2,4] y", "y = MatMulInteger(x, qm, z, z)"),
    "ConvInteger": ("uint8[2,4,8,8] x", "int32[2,4,6,6] y", "y = ConvInteger(x, q, z, z)"),
    "LSTM": ("float[7,2,6] x", "float[7,1,2,5] y, float[1,2,5] h, float[1,2,5] k",
             "y, h, k = LSTM<hidden_size=5>(x, lw, lr)"),
    "GRU": ("float[7,2,6] x", "float[7,1,2,5] y, float[1,2,5] h",
            "y, h = GRU<hidden_size=5>(x, gw, gr)"),
    "RNN": ("float[7,2,6] x", "float[7,1,2,5] y, float[1,2,5] h",
            "y, h = RNN<hidden_size=5>(x, rw, rr)"),
}  # fmt: skip
_NEWER = {
    "GroupNormalization": (21, "float[2,4,8,8] x", "float[2,4,8,8] y",
                           "y = GroupNormalization<num_groups=2>(x, c, c)"),
    "RMSNormalization": (23, "float[4,6] x", "float[4,6] y", "y = RMSNormalization(x, row)"),
    "Attention": (23, "float[2,4,5,8] x, float[2,2,7,8] k, float[2,2,7,6] v", "float[2,4,5,6] y",
                  "y = Attention(x, k, v)"),
    "RotaryEmbedding": (23, "float[2,3,5,8] x, float[2,5,4] cos, float[2,5,4] sin",
                        "float[2,3,5,8] y", "y = RotaryEmbedding(x, cos, sin)"),
    "BitwiseNot": (18, "int32[4,6] x", "int32[4,6] y", "y = BitwiseNot(x)"),
    **{name: (18, "int32[4,6] x, int32[6] b", "int32[4,6] y", f"y = {name}(x, b)")
       for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
}  # fmt: skip


def functions() -> Mapping[str, int]:
    """Return every operator whose row says that it is a function of a float, and an opset of it."""
    found = {}
    for (domain, name), row in ELEMENTWISE.items():
        if domain or row.takes != "floats" or row.gives_bool:
            continue
        schema = onnx.defs.get_schema(name)
        if schema.min_input == schema.max_input == 1:
            is_old = any(s.since_version <= 17 for s in _VERSIONS if s.name == name)
            found[name] = 17 if is_old else schema.since_version
    return found


def texts() -> Iterator[tuple[str, int, str]]:
    """Go through operators, opsets and models as text."""
    for name, opset in (*dict.fromkeys(_FLOAT, 17).items(), *functions().items()):
        yield name, opset, f"(float[4,6] x) => (float[4,6] y) {{ y = {name}(x) }}"
    for name in _PAIRS:
        other = "two" if name == "Pow" else "row"
        yield name, 17, f"(float[4,6] x) => (float[4,6] y) {{ y = {name}(x, {other}) }}"
    for name in _COMPARED:
        yield name, 17, f"(float[4,6] x, float[6] b) => (bool[4,6] y) {{ y = {name}(x, b) }}"
    for name in _REDUCED:
        axes = "(x, axis1)" if name == "ReduceSum" else "<axes=[1]>(x)"
        node = name + axes.replace("]>", "], keepdims=0>") if "<" in axes else name + axes
        kept = "" if "<" in axes else ",1"
        yield name, 17, f"(float[4,6] x) => (float[4{kept}] y) {{ y = {node} }}"
    for name, (inputs, results, node) in _SINGLE.items():
        yield name, 17, f"({inputs}) => ({results}) {{ {node} }}"
    for name, (opset, inputs, results, node) in _NEWER.items():
        yield name, opset, f"({inputs}) => ({results}) {{ {node} }}"


def model_of(text: str, opset: int) -> ir.Model:
    """Read a model as it is written; what its node names and is no input are the weights above."""
    words = text[text.index("{") :].replace("(", " ").replace(")", " ").replace(",", " ").split()
    model = ir.from_onnx_text(
        f'<ir_version: 8, opset_import: ["": {opset}]> g {_with_weights(text, words)}'
    )
    for value in list(model.graph.inputs):
        if value.name in _WEIGHTS:
            model.graph.inputs.remove(value)
            value.const_value = ir.tensor(_WEIGHTS[value.name], name=value.name)
            model.graph.register_initializer(value)
    return model


def _with_weights(text: str, words: list[str]) -> str:
    declared = [
        f"{_KINDS[array.dtype.name]}{list(array.shape) if array.ndim else ''} {name}"
        for name, array in _WEIGHTS.items()
        if name in words
    ]
    return text.replace(") =>", f"{''.join(f', {one}' for one in declared)}) =>", 1)


_KINDS = {"float32": "float", "uint8": "uint8", "int64": "int64", "int32": "int32"}
