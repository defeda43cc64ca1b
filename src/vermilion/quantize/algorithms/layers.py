"""Layers with a constant weight, seen as matrix products: what they read, row by row.

A convolution multiplies each patch of its input with the weight; a Gemm or MatMul multiplies each
row. In groups G, outputs of a group O and numbers read K, a weight is (G, O, K), what it is
multiplied with (G, rows, K). A long row without groups is cut into blocks, which stand in the
place of groups: relations between blocks are not looked at, and time and memory stay in bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.attributes import Window, integer, number, window_of
from vermilion.ir.execute import Array

Float32 = NDArray[np.float32]

LONGEST = 160
"""Numbers in a block, at most; time and memory grow with the square and the cube of it.

(Measured on a trained ResNet-50 with five sets of samples: blocks of up to 160 and up to 320 give
the same accuracy, 15.5 and 15.6 dB in XINT8, 22.3 dB in A8W8; single sets differ by half a
decibel either way.)
"""


@dataclass(frozen=True)
class Drawn:
    """Where rows lie in a tensor, in numbers from its beginning: (rows, places), -1 outside."""

    places: NDArray[np.int64]
    step: int  # from one channel to the next


@dataclass(frozen=True)
class Layer:
    """One layer whose weight is a constant of its own."""

    node: ir.Node
    groups: int
    width: int  # K
    blocks: int  # of one group; 1 where there are several groups
    transposed: bool  # the stored weight is (K, O)
    window: Window | None  # None: a matrix product

    @property
    def source(self) -> str:
        """Name of the tensor that is read."""
        value = self.node.inputs[0]
        assert value is not None, "a layer reads something"
        return str(value.name)

    @property
    def weight(self) -> ir.Value:
        """The weight."""
        value = self.node.inputs[1]
        assert value is not None, "a layer has a weight"
        return value

    @property
    def bias(self) -> ir.Value | None:
        """The bias, where there is one."""
        return self.node.inputs[2] if len(self.node.inputs) > 2 else None

    def reads_as(self, other: Layer) -> bool:
        """Say whether both are plain products that read the same rows, their weights alike."""
        own, theirs = (
            (layer.source, layer.groups, layer.width, layer.blocks, layer.transposed)
            for layer in (self, other)
        )
        return self.window is None and other.window is None and own == theirs

    def matrices(self, weight: Array) -> Array:
        """Return the weight as (G, O, K), where it lies."""
        if self.blocks == 1 and not self.transposed:
            return weight.reshape(self.groups, -1, self.width)
        whole = self.width * self.blocks
        rows = weight.T if self.transposed else weight.reshape(-1, whole)
        return rows.reshape(len(rows), self.blocks, -1).transpose(1, 0, 2)

    def by_output(self, values: Float32, shape: tuple[int, ...]) -> Float32:
        """Return what belongs to each output, or to all, as (G, O, 1).

        Shapes: `shape` is that of the stored weight.
        """
        each = np.broadcast_to(values, shape[1] if self.transposed else shape[0])
        if self.blocks == 1:
            return each.reshape(self.groups, -1, 1)
        return np.broadcast_to(each[:, None], (self.blocks, len(each), 1))

    def stored(self, matrices: Array, shape: tuple[int, ...]) -> Array:
        """Undo `matrices`."""
        if self.blocks == 1 and not self.transposed:
            return matrices.reshape(shape)
        rows = np.concatenate(list(matrices), axis=1)
        return np.ascontiguousarray(rows.T if self.transposed else rows.reshape(shape))

    def drawn(self, read: Float32, limit: int, turn: int) -> Drawn | None:
        """Return where the same rows as of `rows` lie, None where only `rows` can tell.

        Their numbers come place by place: each place with all channels of a block.
        """
        if self.groups > 1 or read.dtype != np.float32:
            return None
        steps = [stride // read.itemsize for stride in read.strides]
        if self.window is None:
            length = self.width * self.blocks
            if not read.flags.c_contiguous:
                return None
            count = read.size // length
            chosen = np.arange(count) if count <= limit else _drawn(count, limit, turn)
            return Drawn((chosen * length)[:, None], 1)
        for axis in range(2, read.ndim - 1):
            if steps[axis] != steps[axis + 1] * read.shape[axis + 1]:
                return None
        shape = (len(read), *read.shape[2:])
        places = _places_in(shape, self.window, limit, turn % _DRAWS, steps[0], steps[-1])
        return Drawn(places, steps[1])

    def rows(self, read: Float32, limit: int, turn: int) -> Float32:
        """Return at most `limit` rows of one sample as (G, rows, K), drawn evenly.

        With the next turn the rows lie at other places.
        """
        if self.window is not None:
            return _patches(read, self.groups * self.blocks, self.window, limit, turn)
        flat = read.reshape(-1, self.width * self.blocks)
        if len(flat) > limit:
            flat = flat[_drawn(len(flat), limit, turn)]
        # Copied in any case: what was read may lie in a buffer that is used again.
        return flat.reshape(len(flat), self.blocks, -1).transpose(1, 0, 2).copy()


@dataclass(frozen=True)
class Recurrence(Layer):
    """One of the two weights of a recurrent layer of one direction.

    `read` and `multiplied` are what it is multiplied with and the weight itself: X and W, or the
    states, which are what the layer gives, and R.
    """

    read: ir.Value
    multiplied: ir.Value

    @property
    def source(self) -> str:
        """Name of the tensor that is read."""
        return str(self.read.name)

    @property
    def weight(self) -> ir.Value:
        """The weight."""
        return self.multiplied


def recurrences_of(nodes: Iterable[ir.Node]) -> list[Recurrence]:
    """Return the weights of recurrent layers that go one way, and that nobody shares."""
    found = []
    for node in nodes:
        if node.op_type not in {"LSTM", "GRU", "RNN"} or node.domain not in ("", "ai.onnx"):
            continue
        for read, weight in zip((node.inputs[0], node.outputs[0]), node.inputs[1:3], strict=True):
            stored = None if weight is None else weight.const_value
            if read is None or weight is None or stored is None or len(weight.uses()) != 1:
                continue
            shape = stored.shape.numpy()
            if shape[0] != 1 or read.const_value is not None or not read.name or not read.uses():
                continue
            blocks = _blocks(shape[2], shape[2], LONGEST)
            width = shape[2] // blocks
            found.append(Recurrence(node, 1, width, blocks, False, None, read, weight))
    return found


def layers_of(nodes: Iterable[ir.Node], longest: int | None = None) -> list[Layer]:
    """Return the layers among `nodes`: Conv, Gemm and MatMul with a weight that nobody shares.

    A long row is cut into blocks of no more than `longest` numbers, `LONGEST` by default.
    """
    longest = LONGEST if longest is None else longest
    return [layer for node in nodes if (layer := _layer(node, longest)) is not None]


def _layer(node: ir.Node, longest: int) -> Layer | None:
    if node.op_type not in {"Conv", "Gemm", "MatMul"} or node.domain not in ("", "ai.onnx"):
        return None
    weight = node.inputs[1]
    if weight is None or weight.const_value is None or node.inputs[0] is None:
        return None
    if node.inputs[0].const_value is not None or len(weight.uses()) != 1:
        return None
    shape = weight.const_value.shape.numpy()
    if 0 in shape:  # no numbers, nothing to round
        return None
    if node.op_type == "Conv":
        groups = integer(node, "group", 1)
        width = int(np.prod(shape[1:]))
        blocks = _blocks(width, shape[1], longest) if groups == 1 else 1
        return Layer(node, groups, width // blocks, blocks, False, window_of(node, shape[2:]))
    if len(shape) != 2 or integer(node, "transA", 0) or number(node, "alpha", 1.0) != 1.0:
        return None
    transposed = not integer(node, "transB", 0)
    width = shape[0] if transposed else shape[1]
    blocks = _blocks(width, width, longest)
    return Layer(node, 1, width // blocks, blocks, transposed, None)


def _blocks(width: int, channels: int, longest: int) -> int:
    """Return the least number of blocks that holds whole channels and stays in bounds."""
    return next(
        n
        for n in range(1, channels + 1)
        if channels % n == 0 and (width // n <= longest or n == channels)
    )


# Places for each one that is drawn, from which on drawing one twice is rare.
_MANY = 16

# Draws of places that differ; further ones come again.
_DRAWS = 8


@dataclass(frozen=True)
class _Draw:
    """Places that patches are taken from, (rows,) and (rows, kernel)."""

    picture: NDArray[np.intp]
    inside: NDArray[np.bool_]
    at: NDArray[np.intp]  # in a flat image
    all_inside: bool


def _drawn(places: int, limit: int, turn: int) -> NDArray[np.intp]:
    """Return at most `limit` of so many places, others for the next turn."""
    rng = np.random.default_rng(turn % _DRAWS)
    if places <= limit:
        return np.arange(places)
    if places < _MANY * limit:
        return rng.choice(places, limit, replace=False)
    return rng.integers(0, places, limit)  # few come twice, and it takes a tenth of the time


@lru_cache(maxsize=1024)
def _draw(shape: tuple[int, ...], window: Window, limit: int, turn: int) -> _Draw:
    """Draw patches of images (N, …): a network's layers share few shapes and windows."""
    pictures, *lengths = shape
    pads, axes = window.explicit_pads(lengths), len(lengths)
    steps = [
        (length + before + after - (kernel - 1) * dilation - 1) // stride + 1
        for length, before, after, kernel, dilation, stride in zip(
            lengths,
            pads[:axes],
            pads[axes:],
            window.kernel,
            window.dilations,
            window.strides,
            strict=True,
        )
    ]
    chosen = _drawn(pictures * int(np.prod(steps)), limit, turn)
    picture, *corner = np.unravel_index(chosen, (pictures, *steps))
    inside, at = _places(corner, lengths, window, pads)
    return _Draw(picture, inside, at, bool(inside.all()))


@lru_cache(maxsize=1024)
def _places_in(
    shape: tuple[int, ...], window: Window, limit: int, turn: int, image_step: int, pixel_step: int
) -> NDArray[np.int64]:
    draw = _draw(shape, window, limit, turn)
    places = draw.picture[:, None] * image_step + draw.at * pixel_step
    if not draw.all_inside:
        places[~draw.inside] = -1
    return places


def _patches(read: Float32, groups: int, window: Window, limit: int, turn: int) -> Float32:
    """Return patches at places drawn at random, each flattened as channels × kernel."""
    draw = _draw((len(read), *read.shape[2:]), window, limit, turn % _DRAWS)
    channels = read.shape[1]
    flat = read.reshape(len(read), channels, -1)
    if flat.strides[1] == flat.itemsize:
        return _patches_channels_last(flat, groups, draw)
    if len(read) == groups == draw.at.shape[1] == 1 and draw.all_inside:
        return np.ascontiguousarray(flat[0].take(draw.at[:, 0], axis=1).T)[None]
    # Only what the patches hold is fetched: (channels, rows, kernel), zeros outside the image.
    picked = np.empty((channels, *draw.at.shape), np.float32)
    for place in range(len(read)):
        here = draw.picture == place
        if len(read) == 1:
            np.take(flat[0], draw.at, axis=1, out=picked, mode="clip")
        elif here.any():
            picked[:, here] = np.take(flat[place], draw.at[here], axis=1, mode="clip")
    if not draw.all_inside:
        picked[:, ~draw.inside] = 0.0
    rows = picked.reshape(groups, channels // groups, len(draw.at), -1)
    if channels != groups:
        rows = np.ascontiguousarray(rows.transpose(0, 2, 1, 3))
    return rows.reshape(groups, len(draw.at), -1)


def _patches_channels_last(flat: Float32, groups: int, draw: _Draw) -> Float32:
    """Return the same patches of an image whose channels are neighbours in memory."""
    places = draw.picture[:, None] * flat.shape[2] + draw.at
    picked = flat.transpose(0, 2, 1).reshape(-1, flat.shape[1]).take(places, axis=0, mode="clip")
    if not draw.all_inside:
        picked[~draw.inside] = 0.0  # (rows, kernel, channels)
    rows = picked.reshape(*places.shape, groups, -1).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(rows).reshape(groups, len(places), -1)


def _places(
    corner: Sequence[NDArray[np.intp]],
    lengths: Sequence[int],
    window: Window,
    pads: Sequence[int],
) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """Return where patches lie in a flat image, (rows, kernel), and which of it is in the image."""
    rows = len(corner[0])
    inside = np.ones((rows, 1), np.bool_)
    at = np.zeros((rows, 1), np.intp)
    for axis, length in enumerate(lengths):
        first = corner[axis] * window.strides[axis] - pads[axis]
        here = first[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
        within = (here >= 0) & (here < length)
        inside = (inside[:, :, None] & within[:, None, :]).reshape(rows, -1)
        at = (at[:, :, None] * length + here[:, None, :]).reshape(rows, -1)
    return inside, at
