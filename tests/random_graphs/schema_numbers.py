"""Operands that must fit the first one: shapes of weights, and sizes and places as numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Random = np.random.Generator
Shape = tuple[int, ...]


def _reshaped(random: Random, x: Array) -> list[int]:
    shape = list(x.shape) or [1]
    ways = [[-1], [shape[0], -1], [*shape[:-1], 1, shape[-1]], shape[::-1], [0, -1]]
    return ways[int(random.integers(len(ways)))]


def _expanded(random: Random, x: Array) -> list[int]:
    sizes = [
        size if size > 1 or random.random() < 0.5 else int(random.integers(1, 4))
        for size in x.shape
    ]
    return ([int(random.integers(1, 3))] if random.random() < 0.3 else []) + sizes


def _scales(random: Random, x: Array) -> list[float]:
    sides = random.choice([0.5, 1.0, 1.5, 2.0, 2.0, 3.0, 0.7], max(x.ndim - 2, 0))
    return [1.0] * min(2, x.ndim) + [float(scale) for scale in sides]


def _sizes(random: Random, x: Array) -> list[int]:
    return [s if at < 2 else int(random.integers(1, 12)) for at, s in enumerate(x.shape)]


def _smaller(random: Random, x: Array) -> Shape:
    return tuple(int(random.integers(1, size + 1)) for size in x.shape)


def _places(random: Random, shape: Shape) -> Array:
    return random.integers(-1, 2, shape)


def _whole(low: int, high: int) -> Callable[[Random, Array], Any]:
    return lambda random, x: random.integers(low, high)


def _one_or_more(random: Random, x: Array | None) -> Any:
    return random.integers(1, 6, () if random.random() < 0.6 else int(random.integers(1, 4)))


Numbers = Callable[[Random, Any], Any]

# Operator and input → numbers that it may take, from the first input.
NUMBERS: Mapping[tuple[str, int], Numbers] = {
    ("Reshape", 1): _reshaped, ("Expand", 1): _expanded,
    ("Resize", 2): _scales, ("Upsample", 1): _scales, ("Resize", 3): _sizes,
    ("Slice", 1): lambda random, x: random.integers(-5, 9, 1),
    ("Slice", 2): lambda random, x: random.integers(-5, 9, 1)
    if random.random() < 0.8 else [2**63 - 1],
    ("Slice", 3): lambda random, x: random.integers(0, max(x.ndim, 1), 1),
    ("Slice", 4): lambda random, x: random.choice([1, 1, 2], 1),
    ("Tile", 1): lambda random, x: random.integers(1, 3, x.ndim),
    ("Pad", 1): lambda random, x: random.choice([0, 0, 1, 2, -1], 2 * x.ndim),
    ("Pad", 3): lambda random, x: np.arange(x.ndim),
    ("Squeeze", 1): lambda random, x: [at for at, size in enumerate(x.shape) if size == 1][:1],
    ("Unsqueeze", 1): lambda random, x: random.permutation(x.ndim + 1)[:1],
    ("Gather", 1): lambda random, x: _places(random, (int(random.integers(1, 4)),)),
    ("GatherND", 1): lambda random, x: _places(
        random, (int(random.integers(1, 4)), int(random.integers(1, max(x.ndim, 1) + 1)))
    ),
    ("GatherElements", 1): lambda random, x: _places(random, _smaller(random, x)),
    ("ScatterElements", 1): lambda random, x: _places(random, x.shape),
    ("Scatter", 1): lambda random, x: _places(random, x.shape),
    ("ScatterND", 1): lambda random, x: _places(random, (3, 1)),
    ("ReverseSequence", 1): lambda random, x: random.integers(1, 3, (*x.shape, 1, 1)[1]),
    ("Compress", 1): lambda random, x: random.random(int(random.integers(1, 5))) < 0.6,
    ("ConstantOfShape", 0): lambda random, x: random.integers(1, 9, int(random.integers(0, 4))),
    ("TopK", 1): lambda random, x: random.integers(1, 4, 1),
    ("OneHot", 1): _whole(2, 9), ("Trilu", 1): _whole(-3, 4),
    ("CumSum", 1): lambda random, x: random.integers(-x.ndim, max(x.ndim, 1)),
    ("CumProd", 1): lambda random, x: random.integers(-x.ndim, max(x.ndim, 1)),
    **dict.fromkeys(
        [
            ("Range", 0), ("Range", 1), ("Range", 2), ("CenterCropPad", 1), ("DFT", 1),
            ("DFT", 2), ("Col2Im", 1), ("Col2Im", 2), ("AffineGrid", 1), ("HannWindow", 0),
            ("HammingWindow", 0), ("BlackmanWindow", 0), ("MelWeightMatrix", 0),
            ("NonMaxSuppression", 2),
        ],
        _one_or_more,
    ),
}  # fmt: skip

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def shape_beside(
    random: Random, operator: str, at: int, x: Array, attributes: dict[str, Any]
) -> Shape | None:
    """Return the shape of input `at` beside the first one, None where any may do.

    Attributes that decide it are set where they do not fit.
    """
    rank, channels = x.ndim, x.shape[1] if x.ndim > 1 else 0
    if operator in ("Conv", "ConvTranspose") and rank >= 3:
        return _of_convolution(random, operator, at, x, attributes)
    if operator in _GATES and rank == 3:
        return _of_recurrence(operator, at, x, attributes)
    if operator == "MatMul" and rank:
        inner = x.shape[-1]
        ways = [(inner,), (inner, 4), (2, 1, inner, 3), (*x.shape[:-2], inner, 5)]
        return ways[int(random.integers(len(ways)))]
    if operator == "Gemm" and rank == 2:
        height, inner = x.shape[::-1] if attributes.get("transA") else x.shape
        ways = [(), (1,), (4,), (1, 4), (height, 1), (height, 4)]
        weight = (4, inner) if attributes.get("transB") else (inner, 4)
        return weight if at == 1 else ways[int(random.integers(len(ways)))]
    if operator in ("BatchNormalization", "InstanceNormalization", "GroupNormalization"):
        return (channels,) if channels else None
    if operator in ("LayerNormalization", "RMSNormalization") and rank:
        return x.shape[attributes.get("axis", -1) % rank :]
    if operator == "PRelu":
        return [(1,), x.shape, x.shape[-1:]][int(random.integers(3))]
    if operator == "Attention" and at in (1, 2):
        return x.shape
    if operator in ("ScatterElements", "Scatter") and at == 2:
        return x.shape
    if operator == "ScatterND" and at == 2:
        return (3, *x.shape[1:])
    return None


def _of_convolution(
    random: Random, operator: str, at: int, x: Array, attributes: dict[str, Any]
) -> Shape | None:
    channels = x.shape[1]
    if channels % attributes.setdefault("group", 1):
        attributes["group"] = 1
    group = attributes["group"]
    kernel = attributes.setdefault(
        "kernel_shape", [int(size) for size in random.choice([1, 2, 3], x.ndim - 2)]
    )
    if at == 2:
        return (2 * group,)
    if operator == "ConvTranspose":
        return (channels, 2, *kernel)
    return (2 * group, channels // group, *kernel)


def _of_recurrence(operator: str, at: int, x: Array, attributes: dict[str, Any]) -> Shape | None:
    hidden = attributes.setdefault("hidden_size", 4)
    gates, directions = _GATES[operator], 2 if attributes.get("direction") == "bidirectional" else 1
    state = (directions, x.shape[1], hidden)
    if attributes.get("layout"):
        state = (x.shape[0], directions, hidden)
    shapes: dict[int, Shape] = {
        1: (directions, gates * hidden, x.shape[2]), 2: (directions, gates * hidden, hidden),
        3: (directions, 2 * gates * hidden), 5: state, 6: state, 7: (directions, 3 * hidden),
    }  # fmt: skip
    return shapes.get(at)
