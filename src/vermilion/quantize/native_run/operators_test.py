from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.ir.execute import Array, open_session, run_session
from vermilion.quantize.native_run.operators import operator_of

RNG = np.random.default_rng(2)

# Of the largest result: float32 in another order, and exponentials by other polynomials.
ERROR = 2e-6

IMAGE = (2, 6, 7, 9)

# Operator, opset, what it reads after x; arrays are constants.
CASES: dict[str, tuple[str, int, list[Array]]] = {
    "Add": ("Add(x, a)", 17, [np.ones((1, 6, 1, 1))]),
    "Sub, the constant first": ("Sub(a, x)", 17, [np.ones((9,))]),
    "Mul": ("Mul(x, a)", 17, [RNG.standard_normal((7, 1))]),
    "Div": ("Div(x, a)", 17, [np.full((1,), 3.0)]),
    "Relu": ("Relu(x)", 17, []),
    "LeakyRelu": ("LeakyRelu<alpha=0.3>(x)", 17, []),
    "LeakyRelu, steep": ("LeakyRelu<alpha=-1.5>(x)", 17, []),
    "Clip": ("Clip(x, a, b)", 17, [np.array(-0.5), np.array(0.7)]),
    "Clip, one side": ("Clip(x, , a)", 17, [np.array(0.7)]),
    "Clip of old": ("Clip<min=-0.25, max=6.0>(x)", 6, []),
    "Sigmoid": ("Sigmoid(x)", 17, []),
    "HardSigmoid": ("HardSigmoid<alpha=0.3>(x)", 17, []),
    "HardSwish": ("HardSwish(x)", 17, []),
    "Sqrt": ("Sqrt(x)", 17, []),
    "Abs": ("Abs(x)", 17, []),
    "Neg": ("Neg(x)", 17, []),
    "Exp": ("Exp(x)", 17, []),
    "Tanh": ("Tanh(x)", 17, []),
    "Pow": ("Pow(x, a)", 17, [np.array(3.0)]),
    "Pow, a square": ("Pow(x, a)", 17, [np.array(2.0)]),
    "Slice": ("Slice(x, a, b)", 17, [np.array([0, 1]), np.array([1, 100])]),
    "Slice of axes": ("Slice(x, a, b, c)", 17, [np.array([-4]), np.array([-1]), np.array([-1])]),
    "Slice, backwards": (
        "Slice(x, a, b, c, d)",
        17,
        [np.array([-1, 5]), np.array([-1000, 0]), np.array([2, 3]), np.array([-2, -1])],
    ),
    "ConvTranspose": (
        "ConvTranspose<strides=[2,3]>(x, a)",
        17,
        [RNG.standard_normal((6, 4, 2, 3))],
    ),
    "ConvTranspose with a bias": (
        "ConvTranspose<strides=[2,2]>(x, a, b)",
        17,
        [RNG.standard_normal((6, 5, 2, 2)), RNG.standard_normal(5)],
    ),
    "BatchNormalization": (
        "BatchNormalization<epsilon=0.01>(x, a, b, c, d)",
        17,
        [RNG.uniform(0.5, 1.5, 6) for _ in range(4)],
    ),
    "MaxPool": ("MaxPool<kernel_shape=[3,2], strides=[2,1], pads=[1,0,1,1]>(x)", 17, []),
    "MaxPool, dilated": ("MaxPool<kernel_shape=[2,3], dilations=[3,2]>(x)", 17, []),
    "MaxPool, rounded up": ("MaxPool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)", 17, []),
    "MaxPool, same": (
        'MaxPool<kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_UPPER">(x)',
        17,
        [],
    ),
    "AveragePool": ("AveragePool<kernel_shape=[3,3], pads=[1,1,0,2]>(x)", 17, []),
    "AveragePool, with its border": (
        "AveragePool<kernel_shape=[3,3], pads=[1,1,0,2], count_include_pad=1>(x)",
        17,
        [],
    ),
    "GlobalAveragePool": ("GlobalAveragePool(x)", 17, []),
    "ReduceMean": ("ReduceMean<axes=[2,-1], keepdims=0>(x)", 17, []),
    "ReduceMean of rows": ("ReduceMean<axes=[-1]>(x)", 17, []),
    "Identity": ("Identity(x)", 17, []),
    "ReduceMean by an input": ("ReduceMean(x, a)", 18, [np.array([1])]),
    "ReduceMean of all": ("ReduceMean(x)", 17, []),
    "Softmax": ("Softmax<axis=1>(x)", 17, []),
    "Concat": ("Concat<axis=1>(x, a, x)", 17, [np.ones((2, 1, 7, 9))]),
    "Transpose": ("Transpose<perm=[0,2,3,1]>(x)", 17, []),
    "Transpose, reversed": ("Transpose(x)", 17, []),
    "Flatten": ("Flatten(x)", 17, []),
    "Pad": ("Pad(x, a)", 17, [np.array([0, 0, 1, 2, 0, 0, 2, 1])]),
    "SpaceToDepth": ("SpaceToDepth<blocksize=1>(x)", 17, []),
    "DepthToSpace": ("DepthToSpace<blocksize=1>(x)", 17, []),
    "Gather": ("Gather<axis=1>(x, a)", 17, [np.array([4, 0, 5])]),
    "Expand": ("Expand(x, a)", 17, [np.array([1, 2, 1, 1, 1])]),
    "Tile": ("Tile(x, a)", 17, [np.array([1, 2, 1, 3])]),
    "Reshape": ("Reshape(x, a)", 17, [np.array([0, 3, -1])]),
    "Unsqueeze": ("Unsqueeze(x, a)", 17, [np.array([0, 3])]),
    "MatMul": ("MatMul(x, a)", 17, [RNG.standard_normal((9, 4))]),
    "Resize": (
        'Resize<mode="nearest", coordinate_transformation_mode="asymmetric", '
        'nearest_mode="floor">(x, , a)',
        17,
        [np.array([1.0, 1.0, 2.0, 3.0])],
    ),
    "Resize, centres": ('Resize<mode="nearest">(x, , a)', 17, [np.array([1.0, 1.0, 4.0, 2.0])]),
}


def channels_last(array: Array) -> Array:
    """Return the same array, its channels neighbours in memory."""
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_an_operator_gives_what_onnx_runtime_gives(case: str, last: bool) -> None:
    body, opset, constants = CASES[case]
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[{",".join(map(str, IMAGE))}] x) => (float y) {{ y = {body} }}"""
    proto = onnx.parser.parse_model(text)
    for name, array in zip("abcd", constants, strict=False):
        kept = array if array.dtype.kind == "i" else array.astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(kept, name))
    model = ir.from_proto(proto)
    model.graph.outputs[0].shape = None
    x = RNG.standard_normal(IMAGE).astype(np.float32) * 3
    if case == "Sqrt":
        x = np.abs(x)
    exact = run_session(open_session(model), {"x": x})["y"]
    (node,) = model.graph
    given = [
        value and (x if value.const_value is None else value.const_value.numpy())
        for value in node.inputs
    ]
    if last and exact.ndim == 4:
        given = [channels_last(x) if array is x else array for array in given]
    shapes = [array.shape for array in given if array is not None]
    (fill,) = operator_of(node, shapes, [exact.shape])
    out = np.full_like(exact, np.nan)
    if last and exact.ndim == 4:
        out = channels_last(out)
    fill(given, out)
    np.testing.assert_allclose(out, exact, atol=ERROR * max(1.0, np.abs(exact).max()), rtol=0)


@pytest.mark.parametrize(
    "body",
    [
        "Erf(x)",
        "AveragePool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)",
        'Resize<mode="linear">(x, , a)',
        'Resize<mode="nearest", coordinate_transformation_mode="align_corners">(x, , a)',
        "Clip(x, b)",
        "Slice(x, b, b)",
        "ReduceMean<noop_with_empty_axes=1>(x)",
    ],
)
def test_what_is_done_otherwise_is_left_alone(body: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,6,7,9] x, float b) => (float[2,6,14,18] y) <float[4] a = {{1.0, 1.0, 2.0, 2.0}}>
        {{ y = {body} }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    (node,) = model.graph
    shapes = [IMAGE, (0,), (4,)][: len(node.inputs)]
    assert operator_of(node, shapes, [(2, 6, 14, 18)]) == []


@pytest.mark.parametrize("axis", [1, -1])
def test_every_part_of_a_split_is_filled(axis: int) -> None:
    sizes = "2, 4" if axis == 1 else "1, 8"
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2,6,7,9] x) => (float y, float z)
        <int64[2] a = {{{sizes}}}> {{ y, z = Split<axis={axis}>(x, a) }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    for value in model.graph.outputs:
        value.shape = None
    x = RNG.standard_normal(IMAGE).astype(np.float32)
    exact = list(run_session(open_session(model), {"x": x}).values())
    (node,) = model.graph
    sizes = node.inputs[1].const_value
    fills = operator_of(node, [IMAGE, (2,)], [array.shape for array in exact])
    for fill, array in zip(fills, exact, strict=True):
        out = np.full_like(array, np.nan)
        fill([x, sizes.numpy()], out)
        np.testing.assert_array_equal(out, array)
