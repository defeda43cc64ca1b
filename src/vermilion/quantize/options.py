"""What can be asked of the quantizer, checked, and as it stands in a recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, get_args

from vermilion.errors import OptionError
from vermilion.files import shown
from vermilion.quantize.ranges import METHODS, Method

Rounding = Literal["nearest", "compensated"]
ROUNDINGS: tuple[Rounding, ...] = get_args(Rounding)


class Settings(TypedDict, total=False):
    """The fields of `Options`, as keyword arguments."""

    scheme: str
    method: Method | None
    ranges: Mapping[str, Method]
    rounding: Rounding
    per_channel: bool | None
    symmetric: bool
    equalize: bool
    migrate: bool
    correct_bias: bool
    wide: Sequence[str]
    exclude: Sequence[str]
    bfloat: Sequence[str]
    block: int
    headroom: bool
    all_tensors: bool
    middle: bool
    dpu: bool


@dataclass(frozen=True)
class Options:
    """How a model is quantized.

    `method` chooses the ranges of activations where scales may be any number (power-of-two scales
    always take the least squared error), `ranges` those of single tensors. `rounding` is that of
    weights. `method` and `per_channel` None are what the scheme does by itself. `symmetric` asks
    for zero points of zero. `equalize` evens out weights across layers, `migrate` moves outlying
    channels of what products read into their weights; both before anything is rounded. `wide`
    names tensors (`*` matches anything) that get 16 bits, `bfloat` nodes that compute in bfloat16,
    `exclude` nodes that stay in float. `block` is how many weights share a scale in weight-only
    schemes.

    The others are for files like another tool's: `headroom` widens ranges of 16 bits beyond what
    was seen; `all_tensors` rounds between elementwise operators as well; `middle` writes int8
    activations as uint8 with a zero point of 128; `dpu` computes averages, LeakyRelu and Sigmoid as
    the first NPU generations do (see `dpu.py`).
    """

    scheme: str = "xint8"
    method: Method | None = None
    ranges: Mapping[str, Method] = field(default_factory=dict)
    rounding: Rounding = "compensated"
    per_channel: bool | None = None
    symmetric: bool = False
    equalize: bool = False
    migrate: bool = False
    correct_bias: bool = True
    wide: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    bfloat: tuple[str, ...] = ()
    block: int = 32
    headroom: bool = True
    all_tensors: bool = False
    middle: bool = False
    dpu: bool = False

    def __post_init__(self) -> None:
        if self.method is not None:
            _among("method", self.method, METHODS)
        for method in self.ranges.values():
            _among("method", method, METHODS)
        _among("rounding", self.rounding, ROUNDINGS)
        if self.block not in BLOCKS:
            raise OptionError(
                f"blocks of {self.block} weights are not possible",
                hint=f"they hold {', '.join(map(str, BLOCKS))}",
            )

    @property
    def without_integers(self) -> tuple[str, ...]:
        """The patterns of all nodes that get no integers."""
        return (*self.exclude, *self.bfloat)

    def as_json(self) -> dict[str, object]:
        """Return the recipe: `from_json` makes the same options of it."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }


# What may be None, and of which type it is otherwise.
_LEFT_TO_SCHEME: dict[str, type] = {"method": str, "per_channel": bool}

# Source: ONNX Runtime, docs/ContribOperators.md, MatMulNBits: a power of 2, not below 16.
BLOCKS = (16, 32, 64, 128, 256)


def make_options(settings: Settings) -> Options:
    """Return options; lists become tuples."""
    fields: dict[str, Any] = dict(settings)
    for name in ("wide", "exclude", "bfloat"):
        if name in fields:
            fields[name] = tuple(fields[name])
    return Options(**fields)


def from_json(recipe: Mapping[str, Any]) -> Options:
    """Read what `as_json` wrote.

    Raises: OptionError for a key that is none, or a value of the wrong kind.
    """
    known = {field.name: getattr(Options(), field.name) for field in dataclasses.fields(Options)}
    for name, value in recipe.items():
        if name not in known:
            raise OptionError(
                f"a recipe has no `{name}`", hint=f"it has {', '.join(f'`{k}`' for k in known)}"
            )
        if not _fits(name, value, known[name]):
            raise OptionError(
                f"`{name}` in the recipe is {shown(value)}", hint=f"like {known[name]!r}"
            )
    return make_options(Settings(**recipe))  # type: ignore[typeddict-item]


def _fits(name: str, value: object, default: object) -> bool:
    if isinstance(default, tuple):
        return isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)
    if isinstance(default, dict):
        return isinstance(value, dict) and all(isinstance(word, str) for word in value.values())
    if name in _LEFT_TO_SCHEME and value is None:
        return True
    return type(value) is _LEFT_TO_SCHEME.get(name, type(default))


def _among(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        listed = ", ".join(f"`{word}`" for word in known)
        raise OptionError(f"unknown {name} `{value}`", hint=f"known: {listed}")
