"""Single nodes drawn at random, for whatever has to agree about what an operator means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass
class Drawn:
    """A node, what it is fed, and its opset."""

    op_type: str
    inputs: list[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 21
    outputs: int = 1
    domain: str = ""

    def __post_init__(self) -> None:
        self.inputs = [None if x is None else np.asarray(x) for x in self.inputs]

    def model(self) -> onnx.ModelProto:
        """Return the node as a model whose outputs have no declared shape."""
        names = ["" if x is None else f"x{at}" for at, x in enumerate(self.inputs)]
        results = [f"y{at}" for at in range(self.outputs)]
        node = onnx.helper.make_node(
            self.op_type, names, results, domain=self.domain, **self.attributes
        )
        given = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape
            )
            for name, x in zip(names, self.inputs, strict=True)
            if x is not None
        ]
        graph = onnx.GraphProto(name="one")
        graph.node.append(node)
        graph.input.extend(given)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in results)
        imports = [("", self.opset), ("com.microsoft", 1)]
        return onnx.ModelProto(
            ir_version=10,
            graph=graph,
            opset_import=[onnx.OperatorSetIdProto(domain=d, version=v) for d, v in imports],
        )

    def feed(self) -> dict[str, Array]:
        """Return the inputs by name."""
        return {f"x{at}": x for at, x in enumerate(self.inputs) if x is not None}


def _floats(rng: Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def _pick(rng: Generator, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _windows(rng: Generator, rank: int) -> tuple[list[int], dict[str, Any], list[int]]:
    """Return a kernel, attributes that go with it, and an image in which a window fits."""
    kernel = [int(k) for k in rng.integers(1, 4, rank)]
    dilations = [int(d) for d in rng.integers(1, 3, rank)]
    attributes: dict[str, Any] = {"strides": [int(s) for s in rng.integers(1, 4, rank)]}
    image = [int(rng.integers((k - 1) * d + 1, 12)) for k, d in zip(kernel, dilations, strict=True)]
    way = _pick(rng, "NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    if way == "NOTSET":
        # Pads have to be smaller than the kernel for poolings.
        attributes["pads"] = [int(rng.integers(0, k)) for k in kernel * 2]
    else:
        attributes["auto_pad"] = way
    if "SAME" in way:
        # ONNX Runtime refuses dilations beside it, and where a stride passes the kernel it cuts
        # the image in front for one operator and not for the next.
        dilations = [1] * rank
        attributes["strides"] = [
            min(s, k) for s, k in zip(attributes["strides"], kernel, strict=True)
        ]
    attributes["dilations"] = dilations
    return kernel, attributes, image


def conv(rng: Generator) -> Drawn:
    kernel, attributes, image = _windows(rng, _pick(rng, 1, 2, 2, 3))
    group = _pick(rng, 1, 1, 2, 3)
    per_group, outputs = int(rng.integers(1, 4)), group * int(rng.integers(1, 4))
    x = _floats(rng, int(rng.integers(1, 3)), group * per_group, *image)
    bias = _floats(rng, outputs) if rng.random() < 0.5 else None
    inputs = [x, _floats(rng, outputs, per_group, *kernel)] + ([] if bias is None else [bias])
    return Drawn("Conv", inputs, {**attributes, "group": group})


def conv_transpose(rng: Generator) -> Drawn:
    kernel, attributes, image = _windows(rng, _pick(rng, 1, 2, 2))
    group = _pick(rng, 1, 1, 2)
    per_group, outputs = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    if "auto_pad" in attributes:
        attributes["dilations"] = [1] * len(kernel)
    elif rng.random() < 0.4:
        attributes["output_padding"] = [
            int(rng.integers(0, max(s, d)))
            for s, d in zip(attributes["strides"], attributes["dilations"], strict=True)
        ]
    x = _floats(rng, 2, group * per_group, *image)
    inputs = [x, _floats(rng, group * per_group, outputs, *kernel)]
    if rng.random() < 0.5:
        inputs.append(_floats(rng, group * outputs))
    return Drawn("ConvTranspose", inputs, {**attributes, "group": group})


def pool(rng: Generator) -> Drawn:
    name = _pick(rng, "MaxPool", "AveragePool", "AveragePool", "LpPool")
    kernel, attributes, image = _windows(rng, _pick(rng, 1, 2, 2, 3))
    attributes |= {"kernel_shape": kernel, "ceil_mode": int(rng.integers(0, 2))}
    if name == "AveragePool":
        attributes["count_include_pad"] = int(rng.integers(0, 2))
    if name == "LpPool":
        attributes["p"] = _pick(rng, 1, 2, 3)
    return Drawn(name, [_floats(rng, 2, 3, *image)], attributes, opset=_pick(rng, 19, 22))


def normalization(rng: Generator) -> Drawn:
    name = _pick(
        rng, "BatchNormalization", "InstanceNormalization", "LayerNormalization",
        "LpNormalization", "MeanVarianceNormalization", "LRN", "GroupNormalization",
    )  # fmt: skip
    n, c, h, w = (int(size) for size in rng.integers(1, 6, 4))
    # ONNX Runtime's mean of one pixel is not that pixel (`interpret_test.py` has the case).
    c, h = c * 2, h + 1
    x = _floats(rng, n, c, h, w) * 3 + 1
    if name == "BatchNormalization":
        parts = [_floats(rng, c) for _ in range(3)]
        return Drawn(name, [x, *parts, np.abs(_floats(rng, c))], {"epsilon": 1e-3})
    if name == "InstanceNormalization":
        return Drawn(name, [x, _floats(rng, c), _floats(rng, c)])
    if name == "GroupNormalization":
        opset = _pick(rng, 18, 21)
        groups = _pick(rng, 1, 2, c)
        size = groups if opset == 18 else c
        attributes = {"num_groups": groups}
        return Drawn(name, [x, _floats(rng, size), _floats(rng, size)], attributes, opset)
    if name == "LayerNormalization":
        axis = int(rng.integers(-4, 4))
        shape = x.shape[axis % 4 :]
        inputs = [x, _floats(rng, *shape)] + ([_floats(rng, *shape)] if rng.random() < 0.5 else [])
        return Drawn(name, inputs, {"axis": axis}, opset=17, outputs=_pick(rng, 1, 3))
    if name == "LpNormalization":
        return Drawn(name, [x], {"p": _pick(rng, 1, 2), "axis": int(rng.integers(-4, 4))})
    if name == "LRN":
        size = _pick(rng, 1, 3, 5)  # ONNX Runtime wants odd ones
        return Drawn(name, [x], {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.5})
    return Drawn(name, [x], {"axes": _pick(rng, [0, 2, 3], [1], [0, 1, 2, 3])})


def resize(rng: Generator) -> Drawn:
    h, w = (int(size) for size in rng.integers(1, 9, 2))
    mode = _pick(rng, "nearest", "linear", "cubic")
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": _pick(
            rng, "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"
        ),
    }
    if mode == "nearest":
        attributes["nearest_mode"] = _pick(
            rng, "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"
        )
    if mode == "cubic":
        attributes["cubic_coeff_a"] = _pick(rng, -0.75, -0.5)
        attributes["exclude_outside"] = int(rng.integers(0, 2))
    x = _floats(rng, 1, 2, h, w)
    if rng.random() < 0.5:
        sizes = np.array([1, 2, *rng.integers(1, 14, 2)], np.int64)
        return Drawn("Resize", [x, None, None, sizes], attributes, opset=_pick(rng, 13, 18, 19))
    scales = np.array(
        [1, 1, *(_pick(rng, 0.5, 0.6, 1, 1.5, 2, 3, 1 / 3) for _ in "hw")], np.float32
    )
    if np.floor(scales[2:] * np.float32((h, w))).min() < 1:
        scales[2:] = 2
    return Drawn("Resize", [x, None, scales], attributes, opset=_pick(rng, 11, 13, 18))


def quantize(rng: Generator) -> Drawn:
    """Draw numbers of which many lie in the middle between two codes."""
    kind = _pick(rng, np.uint8, np.int8, np.uint16, np.int16)
    size = _pick(rng, np.float32, np.float32, np.float16)
    scale = size(_pick(rng, 0.5, 0.25, 0.1, 0.037))
    x = ((rng.integers(-600, 600, (3, 4, 5)) / 2) * scale).astype(size)
    point = kind(_pick(rng, 0, 3, 100))
    if rng.random() < 0.5:
        return Drawn("QuantizeLinear", [x, np.array(scale), np.array(point)])
    axis = int(rng.integers(-3, 3))
    count = x.shape[axis]
    scales = (scale * rng.integers(1, 4, count)).astype(size)
    points = np.full(count, point)
    return Drawn("QuantizeLinear", [x, scales, points], {"axis": axis})


def dequantize(rng: Generator) -> Drawn:
    kind = _pick(rng, np.uint8, np.int8, np.uint16, np.int16)
    info = np.iinfo(kind)
    x = rng.integers(info.min, info.max, (4, 6), endpoint=True).astype(kind)
    way = _pick(rng, "one", "axis", "block")
    if way == "one":
        return Drawn("DequantizeLinear", [x, np.float32(0.3) * np.ones((), np.float32)])
    axis = _pick(rng, 0, 1, -1)
    if way == "axis":
        size = x.shape[axis]
        points = rng.integers(info.min, info.max, size).astype(kind)
        return Drawn("DequantizeLinear", [x, np.abs(_floats(rng, size)), points], {"axis": axis})
    shape = (2, 6) if axis == 0 else (4, 3)
    points = rng.integers(info.min, info.max, shape).astype(kind)
    attributes = {"axis": axis, "block_size": 2}
    return Drawn("DequantizeLinear", [x, np.abs(_floats(rng, *shape)), points], attributes)


def quantized_product(rng: Generator) -> Drawn:
    kind = _pick(rng, np.uint8, np.int8)
    info = np.iinfo(kind)

    def codes(*shape: int) -> Array:
        return rng.integers(info.min, info.max, shape, endpoint=True).astype(kind)

    def scale(*shape: int) -> Array:
        return np.asarray(rng.uniform(0.01, 0.1, shape), np.float32)

    way = _pick(rng, "QLinearMatMul", "QLinearConv", "MatMulInteger", "ConvInteger")
    if way == "QLinearMatMul":
        a = [codes(3, 7), scale(), codes()]
        b = (
            [codes(7, 5), scale(5), codes(5)]
            if rng.random() < 0.5
            else [codes(7, 5), scale(), codes()]
        )
        return Drawn(way, [*a, *b, scale() * 20, codes()])
    if way == "MatMulInteger":
        return Drawn(way, [codes(2, 3, 7), codes(7, 5), codes(), codes()])
    x, weights = codes(1, 2, 5, 6), codes(3, 2, 3, 2)
    attributes = {"pads": [1, 0, 0, 1], "strides": [1, 2]}
    if way == "ConvInteger":
        x = x.astype(np.int16).astype(np.uint8)
        return Drawn(way, [x, weights, x.reshape(-1)[0].reshape(()), codes()], attributes)
    bias = rng.integers(-999, 999, 3).astype(np.int32)
    zero = np.zeros(3, kind)
    inputs = [x, scale(), codes(), weights, scale(3), zero, scale() * 20, codes(), bias]
    return Drawn(way, inputs, attributes)


def recurrent(rng: Generator) -> Drawn:
    name = _pick(rng, "LSTM", "GRU", "RNN")
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[name]
    way = _pick(rng, "forward", "reverse", "bidirectional")
    directions = 2 if way == "bidirectional" else 1
    steps, batch, size, hidden = (int(n) for n in rng.integers(1, 6, 4))
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": way}
    if rng.random() < 0.4:
        count = {"LSTM": 3, "GRU": 2, "RNN": 1}[name] * directions
        attributes["activations"] = [
            _pick(rng, "Sigmoid", "Tanh", "Relu", "Softsign", "HardSigmoid") for _ in range(count)
        ]
    inputs: list[Array | None] = [
        _floats(rng, steps, batch, size),
        _floats(rng, directions, gates * hidden, size),
        _floats(rng, directions, gates * hidden, hidden),
        _floats(rng, directions, 2 * gates * hidden) if rng.random() < 0.7 else None,
        rng.integers(1, steps + 1, batch).astype(np.int32) if rng.random() < 0.4 else None,
        _floats(rng, directions, batch, hidden) if rng.random() < 0.5 else None,
    ]
    if name == "LSTM":
        inputs.append(_floats(rng, directions, batch, hidden) if rng.random() < 0.5 else None)
        inputs.append(_floats(rng, directions, 3 * hidden) if rng.random() < 0.4 else None)
        attributes["input_forget"] = int(rng.random() < 0.2)
    if name == "GRU":
        attributes["linear_before_reset"] = int(rng.integers(0, 2))
    while inputs[-1] is None:
        inputs.pop()
    return Drawn(name, inputs, attributes, outputs=3 if name == "LSTM" else 2, opset=14)


def attention(rng: Generator) -> Drawn:
    kv_heads, batch = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    heads, size = kv_heads * int(rng.integers(1, 3)), 4
    queries, keys = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    attributes: dict[str, Any] = {}
    if rng.random() < 0.5:
        shape = [(batch, heads, queries, size)] + [(batch, kv_heads, keys, size)] * 2
    else:
        shape = [(batch, queries, heads * size)] + [(batch, keys, kv_heads * size)] * 2
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    inputs: list[Array | None] = [_floats(rng, *part) for part in shape]
    way = _pick(rng, "none", "bool", "float", "causal")
    if way == "bool":
        mask = rng.random((queries, keys)) < 0.7
        mask[:, 0] = True
        inputs.append(mask)
    elif way == "float":
        inputs.append(_floats(rng, batch, heads, queries, keys))
    elif way == "causal":
        attributes["is_causal"] = 1
    if rng.random() < 0.3:
        attributes["scale"] = 0.3
    if rng.random() < 0.3:
        attributes["softcap"] = 2.0
    return Drawn("Attention", inputs, attributes, opset=23)


def reduction(rng: Generator) -> Drawn:
    name = "Reduce" + _pick(
        rng, "Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp"
    )
    rank = int(rng.integers(0, 5))
    x = _floats(rng, *rng.integers(1, 5, rank))
    axes = [int(axis) for axis in rng.permutation(rank)[: int(rng.integers(0, rank + 1))]]
    axes = [axis - rank if rng.random() < 0.3 else axis for axis in axes]
    attributes: dict[str, Any] = {"keepdims": int(rng.integers(0, 2))}
    opset = _pick(rng, 11, 13, 18)
    if opset >= (13 if name == "ReduceSum" else 18):
        attributes["noop_with_empty_axes"] = int(rng.integers(0, 2))
        inputs = [x, np.array(axes, np.int64)] if rng.random() < 0.8 else [x]
        return Drawn(name, inputs, attributes, opset)
    if axes:
        attributes["axes"] = axes
    return Drawn(name, [x], attributes, opset)


def product(rng: Generator) -> Drawn:
    m, n, k = (int(size) for size in rng.integers(1, 7, 3))
    if rng.random() < 0.5:
        across, down = int(rng.integers(0, 2)), int(rng.integers(0, 2))
        attributes = {"transA": across, "transB": down, "alpha": 0.7, "beta": 1.3}
        a, b = (
            _floats(rng, *((k, m) if across else (m, k))),
            _floats(rng, *((n, k) if down else (k, n))),
        )
        c = _floats(rng, *_pick(rng, (m, n), (1, n), (m, 1), (n,), ()))
        return Drawn("Gemm", [a, b, c], attributes)
    left = _pick(rng, (k,), (m, k), (2, m, k), (3, 1, m, k))
    right = _pick(rng, (k,), (k, n), (2, k, n))
    return Drawn("MatMul", [_floats(rng, *left), _floats(rng, *right)])


def softmax(rng: Generator) -> Drawn:
    name = _pick(rng, "Softmax", "LogSoftmax", "Hardmax")
    rank = int(rng.integers(1, 5))
    attributes = {"axis": int(rng.integers(-rank, rank))} if rng.random() < 0.7 else {}
    opset = _pick(rng, 11, 12, 13, 21)
    if rank == 1 and not attributes and opset < 13:
        attributes = {"axis": 0}
    return Drawn(name, [_floats(rng, *rng.integers(1, 5, rank)) * 3], attributes, opset)


def movement(rng: Generator) -> Drawn:
    name = _pick(rng, "Slice", "Pad", "Gather", "GatherElements", "GatherND", "ScatterElements",
                 "Split", "Tile", "CumSum", "TopK", "Trilu", "DepthToSpace")  # fmt: skip
    shape = [int(size) for size in rng.integers(2, 6, 3)]
    x = _floats(rng, *shape)
    axis = int(rng.integers(-3, 3))
    length = shape[axis]
    if name == "Slice":
        count = int(rng.integers(1, 4))
        axes = rng.permutation(3)[:count]
        bounds = [rng.integers(-9, 9, count) for _ in range(2)]
        steps = rng.choice([-3, -2, -1, 1, 2, 3], count)
        return Drawn(name, [x, *bounds, axes, steps])
    if name == "Pad":
        mode = _pick(rng, "constant", "edge", "reflect", "wrap")
        most = min(shape) - 1
        pads = rng.integers(-1 if mode == "constant" else 0, most + 1, 6)
        return Drawn(name, [x, pads, np.float32(7) * np.ones((), np.float32)], {"mode": mode})
    if name == "Gather":
        return Drawn(name, [x, rng.integers(-length, length, (2, 3))], {"axis": axis})
    if name == "GatherElements":
        return Drawn(name, [x, rng.integers(-length, length, shape)], {"axis": axis})
    if name == "GatherND":
        return Drawn(name, [x, rng.integers(-2, 2, (4, _pick(rng, 1, 2, 3)))])
    if name == "ScatterElements":
        how = _pick(rng, "none", "add", "mul", "max", "min")
        places = np.argsort(_floats(rng, *shape), axis=axis)
        if how != "none":
            places = rng.integers(-length, length, shape)
        return Drawn(name, [x, places, _floats(rng, *shape)], {"axis": axis, "reduction": how})
    if name == "Split":
        return Drawn(name, [x], {"axis": axis, "num_outputs": 2}, opset=18, outputs=2)
    if name == "Tile":
        return Drawn(name, [x, rng.integers(1, 4, 3)])
    if name == "CumSum":
        attributes = {"exclusive": int(rng.integers(0, 2)), "reverse": int(rng.integers(0, 2))}
        return Drawn(name, [x, np.array(axis)], attributes)
    if name == "TopK":
        x = rng.integers(0, 4, shape).astype(np.float32)
        attributes = {"axis": axis, "largest": int(rng.integers(0, 2))}
        return Drawn(name, [x, np.array([int(rng.integers(1, length + 1))])], attributes, outputs=2)
    if name == "Trilu":
        return Drawn(
            name, [x, np.array(int(rng.integers(-4, 5)))], {"upper": int(rng.integers(0, 2))}
        )
    attributes = {"blocksize": 2, "mode": _pick(rng, "DCR", "CRD")}
    return Drawn(name, [_floats(rng, 1, 8, 3, 2)], attributes)


DRAWS: Mapping[str, Callable[[Generator], Drawn]] = {
    draw.__name__: draw
    for draw in (
        attention, conv, conv_transpose, dequantize, movement, normalization, pool, product,
        quantize, quantized_product, recurrent, reduction, resize, softmax,
    )
}  # fmt: skip
