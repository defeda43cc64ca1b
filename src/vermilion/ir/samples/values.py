"""What a graph asks of a value's elements, and arrays of each kind and type within it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import ModelError, UnsupportedError

Array = NDArray[Any]
Floats = NDArray[np.float64]

SampleKind = Literal["ordinary", "edges", "large"]


@dataclass(frozen=True)
class Want:
    """The interval that elements of a value must lie in.

    Shapes: `low` and `high` broadcast to the value's shape; integers up to 2^53 are exact in them.
    `nonzero` leaves out zero, `whole` all but whole numbers; `marked` asks for at least one 1 in
    each row (a mask that hides everything makes 0/0). What is not `hard` is plausible only: it
    gives way to what is.
    """

    low: Floats
    high: Floats
    nonzero: bool = False
    whole: bool = False
    marked: bool = False
    hard: bool = True

    @property
    def is_bounded(self) -> bool:
        """Whether every element has both ends."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Say whether the ends are of a value of this shape. Not where it is two things at once."""
        try:
            return np.broadcast_shapes(self.low.shape, self.high.shape, shape) == shape
        except ValueError:
            return False

    def reshaped(self, old: Sequence[int] | None, new: Sequence[int] | None) -> Want | None:
        """Return what is wanted of a value whose elements are those of another, in the same order.

        None where the elements cannot be followed.
        """
        if self.low.ndim == 0 and self.high.ndim == 0:
            return self
        if old is None or new is None or np.prod(old) != np.prod(new):
            return None
        return self.moved(lambda array: np.broadcast_to(array, old).reshape(new))

    def moved(self, move: Any) -> Want:
        """Return the request with both ends moved alike."""
        return replace(self, low=move(self.low), high=move(self.high))


def between(low: float, high: float, **flags: bool) -> Want:
    """Return a request for the interval from `low` to `high`, both included."""
    return Want(np.array(low, np.float64), np.array(max(low, high), np.float64), **flags)


def exactly(values: Any, **flags: bool) -> Want:
    """Return a request for these very values."""
    array = np.asarray(values, np.float64)
    return Want(array, array, **flags)


def joined(first: Want | None, second: Want | None) -> Want | None:
    """Return the request that meets both, or the stronger, or the first where they conflict."""
    if first is None or second is None:
        return second if first is None else first
    if first.hard != second.hard:
        return first if first.hard else second
    try:
        low = np.maximum(first.low, second.low)
        high = np.minimum(first.high, second.high)
    except ValueError:  # ends of two shapes: one of them lies about its value
        return first
    if (low > high).any():
        return first
    return Want(
        low,
        high,
        first.nonzero or second.nonzero,
        first.whole or second.whole,
        first.marked or second.marked,
        first.hard,
    )


MAX_INPUT_BYTES = 1 << 30
"""A model that lies about its input sizes must not fill the machine's memory."""

_MOST_DRAWN = 1 << 22

# Beyond these an element is not spread: sums of products stay exact in 32 bits.
_SPREAD = {"ordinary": 10, "edges": 10_000, "large": 1000}
_LARGE_FACTOR = 30.0
_PIXEL = 255.0

# Zeros of both signs, equal values, small and large ones: where functions bend, and where what
# rounds or saturates shows.
_EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 1e-3, -1e-5, 6.0, 0.0, -8.0, 1e3, -2e3, 1e4)
_LONGEST_RUN = 5


def draw_array(
    value: ir.Value,
    shape: tuple[int, ...],
    want: Want | None,
    kind: SampleKind,
    floats: np.random.Generator,
    integers: np.random.Generator,
) -> Array:
    """Return an array for an input; floats and all else come from streams of their own.

    Raises: UnsupportedError for types of which no sample can be made; ModelError where the array
    would need more than `MAX_INPUT_BYTES`.
    """
    place = f"input `{value.name}`"
    dtype = value.dtype
    if dtype is None:
        raise UnsupportedError(
            "no sample can be made for an input that is not a plain tensor",
            where=place,
            hint="supply the inputs yourself",
        )
    _check_bytes(shape, dtype, place)
    want = want if want is None or want.fits(shape) else None
    few = _repeated_shape(shape, want)
    if few != shape:
        return np.resize(draw_array(value, few, want, kind, floats, integers), shape)
    if dtype == ir.DataType.STRING:
        return _strings(shape, want, kind, integers)
    if dtype == ir.DataType.BOOL:
        return _booleans(shape, want, kind, integers)
    if dtype.is_integer():
        drawn = _integers(shape, _within(want, dtype), kind, integers)
        return np.asarray(drawn, dtype.numpy())
    if dtype.is_floating_point():
        limit = _limit(dtype)
        drawn = np.clip(_floats(shape, want, kind, floats), -limit, limit)
        return np.asarray(drawn, np.float32).astype(dtype.numpy())
    raise UnsupportedError(
        f"no sample can be made for the type {dtype.name}",
        where=place,
        hint="supply the inputs yourself",
    )


def _repeated_shape(shape: tuple[int, ...], want: Want | None) -> tuple[int, ...]:
    """Return the shape that is drawn: of a large array a part, which is then repeated.

    Drawing needs up to twenty times the memory of what is drawn.
    """
    alike = want is None or (want.low.ndim == want.high.ndim == 0 and not want.marked)
    if math.prod(shape) <= _MOST_DRAWN or not alike:
        return shape
    return (*[1] * (len(shape) - 1), _MOST_DRAWN)


def _check_bytes(shape: tuple[int, ...], dtype: ir.DataType, place: str) -> None:
    element_bytes = 16 if dtype == ir.DataType.STRING else max(1, dtype.bitwidth // 8)
    if math.prod(shape) * element_bytes > MAX_INPUT_BYTES:
        raise ModelError(
            f"a sample of shape {list(shape)} would need more than {MAX_INPUT_BYTES >> 20} MiB",
            where=place,
            hint="bind a smaller size with `--dim`",
        )


def _limit(dtype: ir.DataType) -> float:
    if dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return math.inf
    return float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]


def _within(want: Want | None, dtype: ir.DataType) -> Want:
    """Return the interval that the type and the graph allow together."""
    info = ml_dtypes.iinfo(dtype.numpy())  # type: ignore[no-untyped-call]
    if want is None:
        # A byte is a pixel or a quantized value; what nobody asks anything of is small.
        free = dtype.bitwidth <= 8
        return between(info.min, info.max) if free else between(max(info.min, 0), 1, hard=False)
    low = np.maximum(want.low, float(info.min))
    high = np.minimum(want.high, float(info.max))
    return Want(np.ceil(low), np.floor(np.maximum(low, high)), want.nonzero, marked=want.marked)


def _integers(
    shape: tuple[int, ...], want: Want, kind: SampleKind, random: np.random.Generator
) -> Floats:
    spread = _SPREAD[kind]
    low = np.where(want.low < -(2**40), np.minimum(-spread, want.high), want.low)
    high = np.where(want.high > 2**40, np.maximum(spread, low), want.high)
    part = random.random(shape)
    if kind == "edges":
        # Both ends, now and then something between.
        part = np.choose(random.integers(0, 5, shape), [0.0, 1.0, 0.0, 1.0, 0.5])
    drawn: Floats = np.clip(np.floor(low + part * (high - low + 1)), low, high)
    if want.nonzero:
        other = np.where(high >= 1, 1.0, -1.0)
        drawn = np.where(drawn == 0, np.broadcast_to(other, drawn.shape), drawn)
    if want.marked and drawn.ndim:
        drawn = _marked(drawn, kind)
    return drawn


def _marked(drawn: Floats, kind: SampleKind) -> Floats:
    """Return a mask in which each row begins with a one; at the edges, as padding has it."""
    marked = np.array(drawn)
    if kind == "edges":
        half = (marked.shape[-1] + 1) // 2
        marked[..., :half], marked[..., half:] = 1, 0
    elif kind == "large":
        marked[...] = 1
    marked[..., :1] = 1
    return marked


def _floats(
    shape: tuple[int, ...], want: Want | None, kind: SampleKind, random: np.random.Generator
) -> Array:
    if want is not None and want.hard and (want.whole or want.is_bounded):
        if want.whole:
            return _integers(shape, want, kind, random).astype(np.float32)
        return (want.low + random.random(shape) * (want.high - want.low)).astype(np.float32)
    drawn: Array = _DRAWN[kind](shape, random)
    if want is not None and (want.hard or want.marked):
        if want.marked:
            return _integers(shape, want, kind, random).astype(np.float32)
        drawn = np.clip(drawn, want.low, want.high).astype(np.float32)
        if want.nonzero:
            drawn = np.where(drawn == 0, np.float32(1), drawn)
    return drawn


def _normal(shape: tuple[int, ...], random: np.random.Generator) -> Array:
    return random.standard_normal(shape, dtype=np.float32)


def _edges(shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Runs of equal values from `_EDGES` between normal ones."""
    count = math.prod(shape)
    drawn = random.standard_normal(count, dtype=np.float32)
    at = 0
    lengths = random.integers(1, _LONGEST_RUN + 1, count)
    ends = np.minimum(np.cumsum(lengths), count)
    runs = int(np.searchsorted(ends, count) + 1) if count else 0
    kinds = random.integers(0, 2 * len(_EDGES), runs)
    chosen = np.repeat(kinds, np.diff(ends[:runs], prepend=at))
    table = np.array(_EDGES, np.float32)
    fixed = chosen < len(_EDGES)
    drawn[fixed] = table[chosen[fixed]]
    return drawn.reshape(shape)


def _large(shape: tuple[int, ...], random: np.random.Generator) -> Array:
    if len(shape) == 4:
        return (_PIXEL * random.random(shape, dtype=np.float32)).astype(np.float32)
    return random.standard_normal(shape, dtype=np.float32) * np.float32(_LARGE_FACTOR)


def _booleans(
    shape: tuple[int, ...], want: Want | None, kind: SampleKind, random: np.random.Generator
) -> Array:
    if want is not None and want.is_bounded and (want.low == want.high).any():
        return np.broadcast_to(want.low != 0, shape).copy()
    if kind == "large":
        return random.integers(0, 2, shape).astype(bool)
    if kind == "edges" and want is None:
        return np.zeros(shape, bool)
    alternating: Array = np.arange(math.prod(shape)) % 2 == 0
    return alternating.reshape(shape)


def _strings(
    shape: tuple[int, ...], want: Want | None, kind: SampleKind, random: np.random.Generator
) -> Array:
    if want is not None:
        drawn = _integers(shape, want, kind, random)
        texts = [str(int(number)) for number in drawn.ravel()]
    else:
        words = ("a",) if kind == "ordinary" else ("", "a", "B c", "a")
        texts = [words[at % len(words)] for at in range(math.prod(shape))]
    return np.array(texts, dtype=object).reshape(shape)


_DRAWN: Mapping[str, Callable[[tuple[int, ...], np.random.Generator], Any]] = {
    "ordinary": _normal,
    "edges": _edges,
    "large": _large,
}
