"""Products: of matrices, convolutions and their transposes, sums by index."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.ir.literal.call import Call, Table, computes, wrapped_int32
from vermilion.ir.literal.windows import Windows, find_windows

Array = NDArray[Any]

# Room for the windows of one block, unfolded: more gains nothing in speed.
_UNFOLDED_BYTES = 64 << 20


def product(a: Array, b: Array) -> Array:
    """Return the product of matrices, with a batch in front or as vectors.

    Raises: ValueError where their sizes do not fit.
    """
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError("MatMul of a number")
    return np.asarray(np.matmul(a, b))


def _matmul(call: Call) -> Array:
    return product(call[0], call[1])


def _gemm(call: Call) -> Array:
    a, b = call[0], call[1]
    if a.ndim != 2 or b.ndim != 2:
        raise call.error(f"its matrices have {a.ndim} and {b.ndim} dimensions")
    a = a.T if call.integer("transA", 0) else a
    b = b.T if call.integer("transB", 0) else b
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    result = a @ b
    is_whole = result.dtype.kind in "iu"
    scaled: Array = result * alpha if alpha != 1.0 else result
    if call.has(2) and beta != 0.0:
        added = call[2] if beta == 1.0 else call[2] * beta
        if np.broadcast_shapes(added.shape, result.shape) != result.shape:
            raise call.error(f"C of shape {added.shape} does not fit a result of {result.shape}")
        scaled = scaled + added
    return scaled.astype(result.dtype) if is_whole else scaled


def _einsum(call: Call) -> Array:
    operands = [call[index] for index in range(len(call.inputs))]
    equation = call.text("equation", "").replace(" ", "")
    return np.asarray(np.einsum(equation, *operands, optimize=len(operands) > 1))


def convolved(x: Array, weights: Array, windows: Windows, groups: int) -> Array:
    """Return the convolution of float64 without its bias.

    Shapes: x (N, C, …), weights (M, C ÷ groups, kernel…) → (N, M, counts…).
    """
    n, m = x.shape[0], weights.shape[0]
    per_group = weights.shape[1]
    rows = weights.reshape(groups, m // groups, -1)
    unfolded = windows.unfolded(windows.padded(x, 0))
    unfolded = unfolded.reshape(n, groups, per_group, *unfolded.shape[2:])
    result = np.empty((n, groups, m // groups, *windows.counts))
    lines = windows.counts[0]
    line_bytes = 8 * x.shape[1] * math.prod(windows.kernel) * math.prod(windows.counts[1:])
    step = max(1, _UNFOLDED_BYTES // max(1, line_bytes))
    first_count = 3 + len(windows.kernel)
    for image in range(n):
        for start in range(0, lines, step):
            stop = min(lines, start + step)
            cut = (slice(image, image + 1), *[slice(None)] * (first_count - 1), slice(start, stop))
            block = unfolded[cut].reshape(1, groups, rows.shape[2], -1)
            result[image, :, :, start:stop] = np.matmul(rows, block)[0].reshape(
                groups, m // groups, stop - start, *windows.counts[1:]
            )
    return result.reshape(n, m, *windows.counts)


def convolution(call: Call, x: Array, weights: Array, bias: Array | None) -> Array:
    """Return what Conv gives with the node's attributes, all in float64.

    Raises: ModelError where the sizes do not fit.
    """
    groups = call.integer("group", 1)
    if x.ndim < 3 or weights.ndim != x.ndim:
        raise call.error(f"its input has {x.ndim} dimensions, its weights {weights.ndim}")
    if weights.shape[1] * groups != x.shape[1] or weights.shape[0] % groups:
        raise call.error(
            f"{x.shape[1]} channels do not fit weights of {weights.shape} in {groups} groups"
        )
    kernel = call.integers("kernel_shape") or list(weights.shape[2:])
    if tuple(kernel) != weights.shape[2:]:
        raise call.error(f"`kernel_shape` {kernel} is not that of weights of {weights.shape}")
    windows = find_windows(call, x.shape[2:], kernel)
    result = convolved(x, weights, windows, groups)
    if bias is not None:
        result += bias.reshape((-1,) + (1,) * (x.ndim - 2))
    return result


def _conv(call: Call) -> Array:
    return convolution(call, call[0], call[1], call.get(2))


def _conv_transpose(call: Call) -> Array:
    x, weights = call[0], call[1]
    groups, rank = call.integer("group", 1), x.ndim - 2
    if weights.ndim != x.ndim or weights.shape[0] != x.shape[1] or x.shape[1] % groups:
        raise call.error(f"{x.shape[1]} channels do not fit weights of {weights.shape}")
    kernel = weights.shape[2:]
    strides = call.integers("strides") or [1] * rank
    dilations = call.integers("dilations") or [1] * rank
    before, sizes = _transposed_sizes(call, x.shape[2:], kernel, strides, dilations)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    whole = [(i - 1) * s + span for i, s, span in zip(x.shape[2:], strides, spans, strict=True)]
    # As long as both the products reach and the result is, in front of which `before` is cut.
    room = [max(w, b + size) for w, b, size in zip(whole, before, sizes, strict=True)]
    n, c, m = x.shape[0], x.shape[1], weights.shape[1]
    columns = x.reshape(n, groups, c // groups, -1)
    taps = weights.reshape(groups, c // groups, m, *kernel)
    result = np.zeros((n, groups, m, *room))
    windows = Windows(
        tuple(kernel),
        tuple(strides),
        tuple(dilations),
        (0,) * rank,
        (0,) * rank,
        x.shape[2:],
        tuple(room),
    )
    for tap, places in windows.taps():
        rows = taps[tap].transpose(0, 2, 1)
        result[places] += np.matmul(rows, columns).reshape(n, groups, m, *x.shape[2:])
    result = result.reshape(n, groups * m, *room)
    cut: Any = tuple(slice(b, b + size) for b, size in zip(before, sizes, strict=True))
    result = result[(slice(None), slice(None), *cut)]
    return result + call[2].reshape((-1,) + (1,) * rank) if call.has(2) else result


def _transposed_sizes(
    call: Call,
    image: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: list[int],
    dilations: list[int],
) -> tuple[list[int], list[int]]:
    """Return what is cut in front, and the size of the result, along each axis."""
    rank = len(image)
    extra = call.integers("output_padding") or [0] * rank
    pads = call.integers("pads") or [0] * (2 * rank)
    automatic = call.text("auto_pad", "NOTSET")
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    full = [
        s * (i - 1) + e + span for s, i, e, span in zip(strides, image, extra, spans, strict=True)
    ]
    wanted = call.integers("output_shape")
    if wanted is None and automatic in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [i * s for i, s in zip(image, strides, strict=True)]
    if wanted is None:
        before, after = (pads[:rank], pads[rank:]) if automatic != "VALID" else ([0] * rank,) * 2
        return before, [f - b - a for f, b, a in zip(full, before, after, strict=True)]
    wanted = wanted[-rank:]
    total = [max(0, f - w) for f, w in zip(full, wanted, strict=True)]
    # Source: ONNX ConvTranspose-11: the odd one lies behind for SAME_UPPER, else in front.
    if automatic == "SAME_UPPER":
        return [t // 2 for t in total], wanted
    return [t - t // 2 for t in total], wanted


def without_zero_point(codes: Array, zero_point: Array | None, axis: int | None = None) -> Array:
    """Return whole numbers less their zero point as float64, which holds them exactly."""
    wide = codes.astype(np.float64)
    if zero_point is None:
        return wide
    points = zero_point.astype(np.float64)
    if points.size == 1:
        return wide - points.reshape(())
    if points.ndim == 1 and axis is not None:
        shape = [1] * wide.ndim
        shape[axis] = points.size
        points = points.reshape(shape)
    return wide - points


def _matmul_integer(call: Call) -> Array:
    # A vector of A's zero points runs along its rows, one of B's along its columns.
    a = without_zero_point(call[0], call.get(2), axis=max(0, call[0].ndim - 2))
    b = without_zero_point(call[1], call.get(3), axis=call[1].ndim - 1)
    return wrapped_int32(product(a, b))


def _conv_integer(call: Call) -> Array:
    x = without_zero_point(call[0], call.get(2))
    weights = without_zero_point(call[1], call.get(3), axis=0)
    return wrapped_int32(convolution(call, x, weights, None))


OPERATORS: Table = {
    "MatMul": computes(_matmul),
    "Gemm": computes(_gemm),
    "Einsum": computes(_einsum),
    "Conv": computes(_conv),
    "ConvTranspose": computes(_conv_transpose),
    "MatMulInteger": computes(_matmul_integer),
    "ConvInteger": computes(_conv_integer),
}
