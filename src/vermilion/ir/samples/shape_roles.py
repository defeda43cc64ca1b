"""What operators ask of operands that are shapes, bounds, axes, repeats and lengths.

Where a vector is partly known, the rest is chosen so that it fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import product

import numpy as np

from vermilion.ir.opset import constant_of
from vermilion.ir.samples.facts import Dim, attribute_list, equal_sizes
from vermilion.ir.samples.use import Use
from vermilion.ir.samples.values import Want, between, exactly

Role = Callable[[Use], Want | None]

_MOST_BLOCK = 8  # elements along one side of a block


def _target(use: Use) -> Want | None:
    """Reshape: sizes whose product is the number of elements."""
    known = use.partial()
    declared = use.declared()
    sizes: list[int | None] = [None if math.isnan(size) else int(size) for size in known]
    for wanted in (declared, _wanted_by_readers(use, len(sizes))):
        if len(wanted) == len(sizes):
            sizes = [w if s is None else s for s, w in zip(sizes, wanted, strict=True)]
    data = use.shape(0)
    for at, size in enumerate(sizes):
        if size == 0 and not use.integer("allowzero", 0) and data is not None and at < len(data):
            sizes[at] = data[at]
    total = None if data is None or None in data else math.prod(s for s in data if s is not None)
    free = [at for at, size in enumerate(sizes) if size is None]
    if not free:
        return _filled(known, sizes)
    fixed = math.prod(size for size in sizes if size is not None and size > 0)
    if total is None or total % fixed:
        sizes = [1 if size is None else size for size in sizes]
        if -1 not in sizes:
            sizes[free[0]] = -1
        return _filled(known, sizes)
    left = total // fixed
    for at in free[:-1] if -1 not in sizes else free:
        factors = [n for n in range(1, min(left, 64) + 1) if left % n == 0]
        chosen = int(use.random.choice(factors)) if factors else 1
        sizes[at] = chosen
        left //= chosen
    if -1 not in sizes:
        sizes[free[-1]] = left if use.kind != "edges" else -1 if left else 0
    return _filled(known, sizes)


def _wanted_by_readers(use: Use, rank: int) -> list[int | None]:
    """Return the sizes that constants fix in the nodes that read the result."""
    names = [f"d{axis}" for axis in range(rank)]
    wanted: list[int | None] = [None] * rank
    for reader, at in use.node.outputs[0].uses():
        tensors = [constant_of(value) for value in reader.inputs]
        shapes: list[Sequence[Dim]] = [
            [] if tensor is None else [int(size) for size in tensor.shape.numpy()]
            for tensor in tensors
        ]
        shapes[at] = names
        with suppress(IndexError):
            for pair in equal_sizes(reader, shapes):
                name, size = sorted(pair, key=lambda dim: isinstance(dim, int))
                if name in names and isinstance(size, int):
                    wanted[names.index(str(name))] = size
    return wanted


def _filled(known: np.ndarray, sizes: list[int | None]) -> Want:
    """Return a request for the chosen sizes where nothing is known, and for what is known."""
    chosen = np.array([math.nan if size is None else size for size in sizes], np.float64)
    return exactly(np.where(np.isnan(known), chosen, known))


def _expanded(use: Use) -> Want | None:
    """Expand: sizes that broadcast with the data's."""
    data, known, declared = use.shape(0), use.partial(), use.declared()
    sizes: list[int | None] = []
    for at in range(len(known)):
        back = at - len(known)
        own = data[back] if data is not None and -back <= len(data) else 1
        wanted = declared[back] if -back <= len(declared) else None
        if own is None or own > 1:
            sizes.append(1 if use.kind == "edges" or own is None else own)
        else:
            sizes.append(wanted if wanted is not None else int(use.random.integers(1, 4)))
    return _filled(known, sizes)


def _sizes(use: Use) -> Want | None:
    known, declared = use.partial(), use.declared()
    sizes: list[int | None] = [int(size) for size in use.random.integers(1, 5, len(known))]
    if len(declared) == len(sizes):
        sizes = [d if d is not None else s for s, d in zip(sizes, declared, strict=True)]
    return _filled(known, sizes)


def _axes_of(use: Use, at: int) -> list[int] | None:
    """Return the axes that stand in an operand, those that `_axes` chooses, or all from the first.

    None where the rank of the data is not known.
    """
    rank = use.rank(0)
    if rank is None:
        return None
    found = use.certain(at)
    if found is not None:
        return [int(axis) % rank for axis in found.ravel()]
    return list(range(rank))


def _axes(use: Use) -> Want | None:
    """Distinct axes of the data."""
    rank, count = use.rank(0), use.own_count()
    if not rank or count > rank:
        return between(0, 0)
    axes = np.arange(count)
    if use.at_ends:
        axes = axes - rank
    return exactly(axes.reshape(use.own_sizes()))


def _new_axes(use: Use) -> Want | None:
    return exactly(np.arange(use.own_count()).reshape(use.own_sizes()))


def _axes_of_one(use: Use) -> Want | None:
    shape = use.shape(0)
    ones = [axis for axis, size in enumerate(shape or ()) if size == 1][: use.own_count()]
    return exactly(np.array(ones).reshape(use.own_sizes())) if ones else between(0, 0)


def _bound(use: Use, choose: Callable[[int, int], float]) -> Want | None:
    """Return a bound for each axis of a Slice, from its size and step."""
    axes, count = _axes_of(use, 3), use.own_count()
    steps = use.certain(4) if use.has(4) else np.ones(count)
    if axes is None:
        return exactly(np.full(use.own_sizes(), choose(1, 1)))
    bounds = []
    for at, axis in enumerate(axes[:count]):
        size = use.size(0, axis)
        step = 1 if steps is None else int(steps.ravel()[at])
        bounds.append(choose(1 if size is None else size, step))
    return exactly(np.array(bounds).reshape(use.own_sizes()))


def _starts(use: Use) -> Want | None:
    def choose(size: int, step: int) -> float:
        if step < 0:
            return -1
        start = int(use.random.integers(0, max(size // 2, 0) + 1)) if size > 1 else 0
        return start - size if use.at_ends else start

    return _bound(use, choose)


def _ends(use: Use) -> Want | None:
    def choose(size: int, step: int) -> float:
        if step < 0:
            return -size - 1
        if use.kind == "edges":
            # As exporters write `to the end`; a bound that is computed with may be a size as well.
            return 2**31 - 1 if use.is_all_that_reads_an_input() and use.at_ends else size
        return size // 2 + 1 if size > 1 else 1

    return _bound(use, choose)


def _steps(use: Use) -> Want | None:
    return exactly(np.full(use.own_sizes(), 1 + use.attempt % 2 if use.kind != "ordinary" else 2))


def _resized(use: Use) -> Want | None:
    """Sizes of a Resize: batch and channels as they are, the rest between once and twice."""
    sizes, count = use.shape(0), use.own_count()
    if sizes is None:
        return None
    chosen: list[int | None] = []
    for at, size in enumerate(sizes[len(sizes) - count :]):
        spatial = at + len(sizes) - count >= 2 or len(sizes) < 3
        known = 1 if size is None else size
        chosen.append(int(use.random.integers(known, 2 * known + 1)) if spatial else known)
    return _filled(use.partial(), chosen)


def _scales(use: Use) -> Want | None:
    rank, count = use.rank(0), use.own_count()
    spatial = np.arange((rank or count) - count, rank or count) >= (2 if (rank or count) > 2 else 0)
    factor = {"ordinary": 2.0, "edges": 1.0, "large": 1.5}[use.kind]
    return exactly(np.where(spatial, factor, 1.0))


def _second(use: Use) -> Want | None:
    """The second operand of a Resize: the scales up to version 10, then the region."""
    if len(use.node.inputs) == 2:
        return _scales(use)
    half = use.own_count() // 2
    return exactly(np.repeat([0.0, 1.0], half)) if half else None


def _pieces(use: Use) -> Want | None:
    """Sizes of a Split: as many as there are outputs, together the whole."""
    size = use.size(0, use.integer("axis", 0))
    count = len(use.node.outputs)
    if size is None:
        return None
    pieces = np.full(count, size // count)
    pieces[-1] += size % count
    if use.kind == "edges" and size > count:
        pieces[0], pieces[-1] = 1, pieces[-1] + pieces[0] - 1
    return exactly(pieces)


def _sequence_pieces(use: Use) -> Want | None:
    size = use.size(0, use.integer("axis", 0)) or 1
    count = use.own_count()
    if use.rank(use.at) == 0 or size < count:
        return between(1, size)
    pieces = np.full(count, size // count)
    pieces[-1] += size % count
    return exactly(pieces)


def _highest(use: Use) -> Want | None:
    size = use.size(0, use.integer("axis", -1)) or 1
    return between(1, size)


def _padding(use: Use) -> Want | None:
    axes, count = _axes_of(use, 3), use.own_count()
    mode = use.node.attributes["mode"].as_string() if "mode" in use.node.attributes else "constant"
    most = []
    for axis in (axes or list(range(count // 2)))[: count // 2]:
        size = use.size(0, axis) or 1
        most.append(min(2, size - 1) if mode == "reflect" else 2)
    high = np.array([*most, *most], np.float64)
    return Want(np.zeros_like(high), high)


def _always(*values: float) -> Role:
    return lambda use: exactly(values[0]) if len(values) == 1 else between(values[0], values[-1])


def _one_axis(use: Use) -> Want | None:
    rank = use.rank(0)
    return between(-rank if rank and use.at_ends else 0, max((rank or 1) - 1, 0))


def _folded(use: Use) -> tuple[list[int], list[int]] | None:
    """Return the first image and block of a Col2Im of which the data are the columns."""
    data, rank = use.static(0), use.own_count()
    if data is None or len(data) != 3:
        return None
    known = use.certain(2)
    strides = attribute_list(use.node, "strides") or [1] * rank
    dilations = attribute_list(use.node, "dilations") or [1] * rank
    pads = attribute_list(use.node, "pads") or [0] * (2 * rank)
    sides = [n for n in range(1, _MOST_BLOCK + 1) if data[1] % n == 0]
    blocks = product(sides, repeat=rank) if known is None else [tuple(int(n) for n in known)]
    counts = [n for n in range(1, data[2] + 1) if data[2] % n == 0]
    for block in blocks:
        if data[1] % math.prod(block):
            continue
        for along in product(counts, repeat=rank):
            image = [
                (along[d] - 1) * strides[d]
                + (block[d] - 1) * dilations[d]
                + 1
                - pads[d]
                - pads[d + rank]
                for d in range(rank)
            ]
            if math.prod(along) == data[2] and min(image) > 0:
                return image, list(block)
    return None


def _image(use: Use) -> Want | None:
    found = _folded(use)
    return None if found is None else exactly(found[0])


def _block(use: Use) -> Want | None:
    found = _folded(use)
    return None if found is None else exactly(found[1])


def _grid(use: Use) -> Want | None:
    batch = use.size(0, 0) or 1
    return exactly([batch, 3, *[4] * (use.own_count() - 2)])


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

SHAPE_ROLES: Mapping[str, Mapping[int, Role]] = {
    "AffineGrid": {1: _grid},
    "BlackmanWindow": {0: _always(4, 9)},
    "CenterCropPad": {1: _sizes},
    "Col2Im": {1: _image, 2: _block},
    "ConstantOfShape": {0: _sizes},
    "CumProd": {1: _one_axis},
    "CumSum": {1: _one_axis},
    "DFT": {1: _always(4, 8), 2: _always(1)},
    "Expand": {1: _expanded},
    "HammingWindow": {0: _always(4, 9)},
    "HannWindow": {0: _always(4, 9)},
    "MelWeightMatrix": {
        0: _always(8),
        1: _always(16),
        2: _always(8192),
        3: _always(0),
        4: _always(4096),
    },
    "Pad": {1: _padding, 3: _axes},
    "Range": {0: _always(0, 2), 1: _always(5, 12), 2: _always(1, 3)},
    **{f"Reduce{name}": {1: _axes} for name in _REDUCTIONS},
    "Reshape": {1: _target},
    "Resize": {1: _second, 2: _scales, 3: _resized},
    "Slice": {1: _starts, 2: _ends, 3: _axes, 4: _steps},
    "Split": {1: _pieces},
    "SplitToSequence": {1: _sequence_pieces},
    "Squeeze": {1: _axes_of_one},
    "STFT": {1: _always(2), 3: _always(4)},
    "Tile": {1: _always(1, 3)},
    "TopK": {1: _highest},
    "Trilu": {1: _always(-2, 2)},
    "Unsqueeze": {1: _new_axes},
    "Upsample": {1: _scales},
}
