"""The blocks that random networks grow from: each adds nodes, and gives a tensor of known shape."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from random_networks import KINDS, Block, Graph, Tensor


def conv(g: Graph, x: Tensor) -> Tensor:
    """A convolution: plain, grouped, depthwise, dilated, with and without a bias."""
    _, channels, height, width = x.shape
    outputs, group = g.pick(4, 6, 8), 1
    form = g.pick("plain", "plain", "depthwise", "grouped", "pointwise")
    if form == "depthwise":
        group = channels
        outputs = channels * g.pick(1, 1, 2)
    elif form == "grouped" and channels % 2 == 0:
        group = 2
    kernel = 1 if form == "pointwise" else g.pick(1, 3, 3)
    dilation = g.pick(1, 1, 1, 2) if kernel == 3 and min(height, width) > 4 else 1
    stride = g.pick(1, 1, 2) if min(height, width) > 4 else 1
    pad = dilation * (kernel // 2)
    inputs = [
        x.name,
        g.weight((outputs, channels // group, kernel, kernel), channels // group * kernel**2),
    ]
    if g.maybe(0.6):
        inputs.append(g.vector(outputs))
    named = {"group": group} if group > 1 or g.maybe(0.5) else {}
    if g.maybe(0.15) and dilation == 1:
        named |= {"auto_pad": g.pick("SAME_UPPER", "SAME_LOWER")}
    else:
        named |= {"pads": [pad] * 4}
    y = g.op("Conv", *inputs, strides=[stride] * 2, dilations=[dilation] * 2, **named)
    return Tensor(y, (1, outputs, (height - 1) // stride + 1, (width - 1) // stride + 1))


def conv_transpose(g: Graph, x: Tensor) -> Tensor | None:
    _, channels, height, width = x.shape
    if height > 12:
        return None
    group = 2 if channels % 2 == 0 and g.maybe(0.4) else 1
    outputs = g.pick(2, 3, 4)
    inputs = [x.name, g.weight((channels, outputs, 2, 2), channels // group)]
    if g.maybe(0.5):
        inputs.append(g.vector(outputs * group))
    y = g.op("ConvTranspose", *inputs, strides=[2, 2], group=group)
    return Tensor(y, (1, outputs * group, 2 * height, 2 * width))


def conv_1d(g: Graph, x: Tensor) -> Tensor:
    """A convolution along time: rows are turned and turned back."""
    batch, time, width = x.shape
    outputs = g.pick(8, 12)
    turned = g.op("Transpose", x.name, perm=[0, 2, 1])
    inputs = [turned, g.weight((outputs, width, 3), 3 * width)]
    if g.maybe(0.5):
        inputs.append(g.vector(outputs))
    y = g.op("Conv", *inputs, pads=[1, 1])
    return Tensor(g.op("Transpose", y, perm=[0, 2, 1]), (batch, time, outputs))


def batch_norm(g: Graph, x: Tensor) -> Tensor:
    n = x.shape[1]
    given = [g.vector(n, 0.5, 1.5), g.vector(n), g.vector(n), g.vector(n, 0.5, 2.0)]
    return Tensor(g.op("BatchNormalization", x.name, *given), x.shape)


def instance_norm(g: Graph, x: Tensor) -> Tensor | None:
    if min(x.shape[2:]) < 3:
        return None
    n = x.shape[1]
    y = g.op("InstanceNormalization", x.name, g.vector(n, 0.5, 1.5), g.vector(n))
    return Tensor(y, x.shape)


def activation(g: Graph, x: Tensor) -> Tensor:
    names = ["Relu", "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Elu", "Softplus", "Softsign"]
    if g.opset >= 14 and g.kind == "float32":
        names.append("HardSwish")
    if g.opset >= 11:
        names.append("Clip")
    name = str(g.pick(*names))
    if name == "Clip":
        return Tensor(g.op("Clip", x.name, g.real(np.float32(0)), g.real(np.float32(6))), x.shape)
    return Tensor(g.op(name, x.name), x.shape)


def gate(g: Graph, x: Tensor) -> Tensor:
    """x · sigmoid(x), or x times a squeezed and excited vector."""
    if len(x.shape) != 4 or g.maybe(0.5):
        return Tensor(g.op("Mul", x.name, g.op("Sigmoid", x.name)), x.shape)
    n = x.shape[1]
    s = g.op("GlobalAveragePool", x.name)
    s = g.op("Conv", s, g.weight((4, n, 1, 1), n), g.vector(4))
    s = g.op("Conv", g.op("Relu", s), g.weight((n, 4, 1, 1), 4), g.vector(n))
    return Tensor(g.op("Mul", x.name, g.op("Sigmoid", s)), x.shape)


def residual(g: Graph, x: Tensor) -> Tensor:
    _, channels, _, _ = x.shape
    y = g.op("Conv", x.name, g.weight((channels, channels, 3, 3), 9 * channels), pads=[1] * 4)
    return Tensor(g.op(g.pick("Add", "Add", "Sub", "Mul"), y, x.name), x.shape)


def pool(g: Graph, x: Tensor) -> Tensor | None:
    _, channels, height, width = x.shape
    if min(height, width) < 4 or height % 2 or width % 2:
        return None
    kind = g.pick("MaxPool", "AveragePool")
    y = g.op(kind, x.name, kernel_shape=[2, 2], strides=[2, 2])
    return Tensor(y, (1, channels, height // 2, width // 2))


def joined(g: Graph, x: Tensor) -> Tensor | None:
    _, channels, height, width = x.shape
    if channels > 16:
        return None
    a = g.op("Conv", x.name, g.weight((4, channels, 1, 1), channels))
    y = g.op("Concat", *((a, x.name) if g.maybe(0.5) else (x.name, a, a)), axis=1)
    count = y and (channels + 4 if len(g.nodes[-1].input) == 2 else channels + 8)
    return Tensor(y, (1, int(count), height, width))


def split(g: Graph, x: Tensor) -> Tensor | None:
    _, channels, height, width = x.shape
    if channels % 2:
        return None
    named = {"num_outputs": 2} if g.opset >= 18 else {}
    y = g.op("Split", x.name, outputs=2, axis=1, **named)
    other = g.nodes[-1].output[1]
    half = (1, channels // 2, height, width)
    return Tensor(g.op("Add", y, g.op("Relu", other)), half)


def padded(g: Graph, x: Tensor) -> Tensor | None:
    _, channels, height, width = x.shape
    if max(height, width) > 24:
        return None
    pads = [0, 0, 1, 1, 0, 0, 1, 1]
    mode = (
        g.pick("constant", "constant", "edge", "reflect") if min(height, width) > 2 else "constant"
    )
    y = (
        g.op("Pad", x.name, g.whole(*pads), mode=mode)
        if g.opset >= 11
        else g.op("Pad", x.name, pads=pads, mode=mode)
    )
    return Tensor(y, (1, channels, height + 2, width + 2))


def resized(g: Graph, x: Tensor) -> Tensor | None:
    _, channels, height, width = x.shape
    if height > 12 or g.opset < 11:
        return None
    scales = g.constant(np.asarray([1, 1, 2, 2], np.float32))
    mode = g.pick("nearest", "linear")
    roi = "" if g.opset >= 13 else g.constant(np.zeros(0, np.float32))
    y = g.op("Resize", x.name, roi, scales, mode=mode, coordinate_transformation_mode="asymmetric")
    return Tensor(y, (1, channels, 2 * height, 2 * width))


def moved(g: Graph, x: Tensor) -> Tensor:
    if len(x.shape) == 4:
        _, n, h, w = x.shape
        y = g.op("Transpose", x.name, perm=[0, 1, 3, 2])
        return Tensor(g.op("Relu", y) if g.maybe(0.5) else y, (1, n, w, h))
    y = g.op("Reshape", x.name, g.whole(x.shape[0], -1, x.shape[2]))
    return Tensor(y, x.shape)


def as_rows(g: Graph, x: Tensor) -> Tensor:
    """Return an image as rows (1, H·W, C)."""
    _, channels, height, width = x.shape
    y = g.op("Reshape", x.name, g.whole(1, channels, height * width))
    return Tensor(g.op("Transpose", y, perm=[0, 2, 1]), (1, height * width, channels))


def dense(g: Graph, x: Tensor) -> Tensor:
    batch, time, width = x.shape
    outputs = g.pick(8, 16, 24)
    y = g.op("MatMul", x.name, g.weight((width, outputs), width))
    if g.maybe(0.7):
        bias = (
            g.vector(outputs) if g.maybe(0.7) else g.real(g.random.normal(0, 0.3, (1, 1, outputs)))
        )
        y = g.op("Add", *((y, bias) if g.maybe(0.7) else (bias, y)))
    return Tensor(y, (batch, time, outputs))


def gemm(g: Graph, x: Tensor) -> Tensor:
    """A Gemm: turned either way, scaled, with an addend of any form or none."""
    batch, time, width = x.shape
    rows, outputs = batch * time, g.pick(8, 12)
    flat = g.op("Reshape", x.name, g.whole(-1, width))
    named: dict[str, float | int] = {}
    if g.maybe(0.2):
        flat = g.op("Transpose", flat, perm=[1, 0])
        named["transA"] = 1
    turned = g.maybe(0.5)
    if turned:
        named["transB"] = 1
    if g.maybe(0.2):
        named["alpha"] = 0.5
    inputs = [flat, g.weight((outputs, width) if turned else (width, outputs), width)]
    if g.opset < 11 or g.maybe(0.8):
        form = g.pick((outputs,), (outputs,), (1, outputs), (rows, outputs), (rows, 1), (1,), ())
        inputs.append(g.real(g.random.normal(0, 0.3, form)))
        if g.maybe(0.3):
            named["beta"] = 0.5
    y = g.op("Gemm", *inputs, **named)
    return Tensor(g.op("Reshape", y, g.whole(batch, time, outputs)), (batch, time, outputs))


def einsum(g: Graph, x: Tensor) -> Tensor | None:
    batch, time, width = x.shape
    if g.opset < 12:
        return None
    outputs = g.pick(8, 12)
    form = g.pick("row", "turned", "heads", "scores", "bare")
    if form == "row":
        y = g.op("Einsum", x.name, g.weight((width, outputs), width), equation="btd,de->bte")
    elif form == "turned":
        y = g.op("Einsum", x.name, g.weight((outputs, width), width), equation="btd,ed->bte")
    elif form == "bare":
        y = g.op("Einsum", x.name, g.weight((width, outputs), width), equation="btd, de -> bte")
    elif form == "heads":
        y = g.op("Einsum", x.name, g.weight((width, 2, 4), width), equation="btd,dhk->bthk")
        y = g.op("Einsum", y, g.weight((2, 4, outputs), 8), equation="bthk,hke->bte")
    else:
        s = g.op("Einsum", x.name, x.name, equation="btd,bsd->bts")
        p = g.op("Softmax", g.op("Mul", s, g.real(np.float32(width**-0.5))), axis=2)
        y, outputs = g.op("Einsum", p, x.name, equation="bts,bsd->btd"), width
    return Tensor(y, (batch, time, outputs))


def attention(g: Graph, x: Tensor) -> Tensor | None:
    """Attention of one head, with a mask of any depth, or none."""
    _, time, width = x.shape
    if g.opset < 13 and g.maybe(0.5):
        return None
    q, k, v = (g.op("MatMul", x.name, g.weight((width, width), width)) for _ in range(3))
    s = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1]))
    s = g.op("Mul", s, g.real(np.float32(width**-0.5)))
    low = g.pick(None, -1e4, -1e9, -3.4e38, -np.inf)
    if low is not None:
        low = max(low, -6.5e4) if g.kind == "float16" and np.isfinite(low) else low
        mask = np.where(np.triu(np.ones((time, time), np.bool_), 1), low, 0.0)
        s = g.op("Add", s, g.real(mask))
    y = g.op("MatMul", g.op("Softmax", s, axis=2), v)
    return Tensor(g.op("Add", y, x.name) if g.maybe(0.5) else y, x.shape)


def layer_norm(g: Graph, x: Tensor) -> Tensor:
    """A LayerNormalization, or spelled out."""
    n = x.shape[-1]
    scale, shift = g.vector(n, 0.5, 1.5), g.vector(n)
    if g.opset >= 17 and g.maybe(0.6):
        return Tensor(g.op("LayerNormalization", x.name, scale, shift), x.shape)
    if g.opset >= 18:
        return activation(g, x)
    centred = g.op("Sub", x.name, g.op("ReduceMean", x.name, axes=[-1]))
    variance = g.op("ReduceMean", g.op("Mul", centred, centred), axes=[-1])
    deviation = g.op("Sqrt", g.op("Add", variance, g.real(np.float32(1e-3))))
    y = g.op("Mul", g.op("Div", centred, deviation), scale)
    return Tensor(g.op("Add", y, shift), x.shape)


def recurrent(g: Graph, x: Tensor) -> Tensor:
    """An LSTM, GRU or RNN, at times in both directions."""
    batch, time, width = x.shape
    kind, hidden = g.pick(("LSTM", 4), ("GRU", 3), ("RNN", 1)), 8
    ways = g.pick(1, 2)
    gates = kind[1] * hidden
    turned = g.op("Transpose", x.name, perm=[1, 0, 2])
    inputs = [
        turned, g.weight((ways, gates, width), width), g.weight((ways, gates, hidden), hidden)
    ]  # fmt: skip
    if g.maybe(0.5):
        inputs.append(g.real(g.random.normal(0, 0.2, (ways, 2 * gates))))
    named = {"direction": "bidirectional"} if ways == 2 else {}
    y = g.op(kind[0], *inputs, hidden_size=hidden, **named)  # (T, ways, B, hidden)
    y = g.op("Transpose", y, perm=[2, 0, 1, 3])
    return Tensor(
        g.op("Reshape", y, g.whole(batch, time, ways * hidden)), (batch, time, ways * hidden)
    )


def branch(g: Graph, x: Tensor) -> Tensor | None:
    """An If whose branches hold products; their weights lie inside or outside."""
    if g.opset < 11:
        return None
    top = g.op("ReduceMax", x.name, keepdims=0)
    top = g.op("Cast", top, to=TensorProto.FLOAT)
    condition = g.op("Greater", top, g.constant(np.float32(g.pick(2.0, 2.5, 1e9))))
    made = []
    for word in ("then", "else"):
        inner = g.inner(g.name(word))
        if g.maybe(0.3):
            inner.weights = list(g.weights)  # of the outer graph
        found = _product(inner, x)
        if g.maybe(0.4):
            found = _product(inner, Tensor(inner.op("Relu", found.name), found.shape))
        made.append((word, inner, found))
    if made[0][2].shape != made[1][2].shape:
        return None
    bodies = {f"{w}_branch": inner.body(g.name(w), [], found) for w, inner, found in made}
    return Tensor(g.op("If", condition, **bodies), made[0][2].shape)


def _product(g: Graph, x: Tensor) -> Tensor:
    """A product that leaves the shape as it is."""
    if len(x.shape) == 4:
        n = x.shape[1]
        y = g.op("Conv", x.name, g.weight((n, n, 3, 3), 9 * n), g.vector(n), pads=[1] * 4)
    else:
        y = g.op("MatMul", x.name, g.weight((x.shape[-1],) * 2, x.shape[-1]))
    return Tensor(y, x.shape)


def loop(g: Graph, x: Tensor) -> Tensor | None:
    """A Loop that runs a product two or three times over what it carries."""
    if g.opset < 11:
        return None
    kind, inner = KINDS[g.kind][0], g.inner(g.name("loop"))
    n, go, state = (inner.name(word) for word in ("n", "go", "state"))
    y = _product(inner, Tensor(state, x.shape))
    y = Tensor(inner.op("Tanh", y.name), x.shape)
    if g.maybe(0.4):
        y = Tensor(inner.op("Add", y.name, x.name), x.shape)  # of the outer graph
    still = Tensor(inner.op("Identity", go), ())
    inputs = [(n, TensorProto.INT64, ()), (go, TensorProto.BOOL, ()), (state, kind, x.shape)]
    body = inner.body(g.name("body"), inputs, still, y)
    count, yes = g.constant(np.asarray(g.pick(2, 3), np.int64)), g.constant(np.asarray(True))
    return Tensor(g.op("Loop", count, yes, x.name, body=body), x.shape)


def scan(g: Graph, x: Tensor) -> Tensor | None:
    """A Scan over time: a cell with a product of what it reads and one of what it carries."""
    if g.opset < 11:
        return None
    batch, time, width = x.shape
    kind, inner, hidden = KINDS[g.kind][0], g.inner(g.name("scan")), 8
    state, row = inner.name("state"), inner.name("row")
    a = inner.op("MatMul", row, inner.weight((width, hidden), width))
    b = inner.op("MatMul", state, inner.weight((hidden, hidden), hidden))
    h = Tensor(inner.op("Tanh", inner.op("Add", a, b)), (batch, hidden))
    out = Tensor(inner.op("Identity", h.name), (batch, hidden))
    inputs = [(state, kind, (batch, hidden)), (row, kind, (batch, width))]
    body = inner.body(g.name("body"), inputs, h, out)
    begin = g.real(np.zeros((batch, hidden)))
    turned = g.op("Transpose", x.name, perm=[1, 0, 2])
    g.op("Scan", begin, turned, body=body, num_scan_inputs=1, outputs=2)
    y = g.nodes[-1].output[1]
    return Tensor(g.op("Transpose", y, perm=[1, 0, 2]), (batch, time, hidden))


BOTH: Mapping[str, Block] = {
    "activation": activation, "gate": gate, "moved": moved, "branch": branch, "loop": loop,
}  # fmt: skip
IMAGE_BLOCKS: Mapping[str, Block] = {
    **BOTH, "conv": conv, "conv again": conv, "conv transpose": conv_transpose,
    "batch norm": batch_norm, "instance norm": instance_norm, "residual": residual, "pool": pool,
    "joined": joined, "split": split, "padded": padded, "resized": resized,
}  # fmt: skip
ROW_BLOCKS: Mapping[str, Block] = {
    **BOTH, "dense": dense, "gemm": gemm, "einsum": einsum, "attention": attention,
    "layer norm": layer_norm, "recurrent": recurrent, "scan": scan, "conv 1d": conv_1d,
}  # fmt: skip
