"""Shape buckets: which fixed sizes to compile for, so that requests fit with little padding.

A program for a GPU or NPU has fixed sizes. A request of another size is padded up to the next
program, and what is computed for the padding is lost; or it is refused. Given what was asked for in
the past, a line of JSON a request, the sizes are chosen that lose the least work.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import onnx_ir as ir

from vermilion.errors import OptionError
from vermilion.ir.cost import model_cost
from vermilion.ir.load import load_model
from vermilion.ir.opset import required_inputs
from vermilion.ir.passes.bind_dimensions import (
    Dimensions,
    bind_dimensions,
    dimension_name,
    symbolic_names,
)
from vermilion.ir.passes.pipeline import simplify
from vermilion.progress import Progress, no_progress

Sizes = tuple[int, ...]  # a value for each open dimension, in the order of their names

# Each size that is priced is a pass over the graph; beyond this many, sizes are rounded up.
MAX_PRICED = 24
MAX_TRACE_BYTES = 1 << 28
_FORM = 'a line is `{"INPUT": [1, 128], …}`, the shape of each input of one request'


@dataclass(frozen=True)
class Bucket:
    """One set of sizes to compile for, and what falls into it."""

    sizes: Mapping[str, int]
    gops: float  # of one run
    requests: int
    needed_gops: float  # of its requests at their own sizes, all together

    @property
    def padding(self) -> float:
        """The share of what it computes that is padding."""
        spent = self.gops * self.requests
        return 1 - self.needed_gops / spent if spent else 0.0

    def as_json(self) -> dict[str, object]:
        """Return the keys of a row of `buckets` in `inspect --shapes --json`."""
        return {
            "sizes": dict(self.sizes),
            "gops": self.gops,
            "requests": self.requests,
            "padding": self.padding,
        }


@dataclass(frozen=True)
class Proposal:
    """The buckets for each number of them, fewest first, and what the requests need by themselves.

    `steps` are the sizes that were rounded to because there were too many, by dimension.
    """

    names: tuple[str, ...]
    requests: int
    distinct: int
    needed_gops: float
    options: tuple[tuple[Bucket, ...], ...]
    steps: Mapping[str, int]

    @property
    def chosen(self) -> tuple[Bucket, ...]:
        """The largest number that was asked for, or fewer where more gain nothing."""
        return self.options[-1]

    def as_json(self) -> dict[str, object]:
        """Return the keys of `inspect --shapes --json`."""
        return {
            "dimensions": list(self.names),
            "requests": self.requests,
            "distinct": self.distinct,
            "needed_gops": self.needed_gops,
            "rounded_to": dict(self.steps),
            "buckets": [bucket.as_json() for bucket in self.chosen],
            "by_number": [
                {"buckets": len(option), "padding": padding_of(option)} for option in self.options
            ],
        }


def padding_of(buckets: Sequence[Bucket]) -> float:
    """Return the share of all the work that is padding."""
    spent = sum(bucket.gops * bucket.requests for bucket in buckets)
    return 1 - sum(bucket.needed_gops for bucket in buckets) / spent if spent else 0.0


def propose_buckets(
    path: Path,
    trace: Path,
    *,
    most: int = 4,
    dims: Dimensions | None = None,
    progress: Progress = no_progress,
) -> Proposal:
    """Choose up to `most` sets of sizes for a model from the requests in a trace.

    Raises: OptionError for a trace that does not fit the model.
    """
    if most < 1:
        raise OptionError("at least one bucket is needed", where="--buckets")
    model = bind_dimensions(load_model(path), dims or {})
    names = symbolic_names(model)
    if not names:
        raise OptionError("every size of the model is fixed already", hint="compile it as it is")
    asked = read_trace(model, names, trace)
    steps = _steps(asked)
    rounded = Counter[Sizes]()
    for sizes, count in asked.items():
        rounded[_round_up(sizes, steps)] += count
    gops = _priced(model, names, rounded, progress)
    options: list[tuple[Bucket, ...]] = []
    for number in range(1, most + 1):
        buckets = _buckets(_choose(rounded, gops, number), rounded, gops, names)
        if options and padding_of(buckets) >= padding_of(options[-1]):
            break
        options.append(buckets)
    return Proposal(
        names=names,
        requests=sum(asked.values()),
        distinct=len(asked),
        needed_gops=sum(gops[sizes] * count for sizes, count in rounded.items()),
        options=tuple(options),
        steps={name: step for name, step in zip(names, steps, strict=True) if step > 1},
    )


def read_trace(model: ir.Model, names: Sequence[str], trace: Path) -> Counter[Sizes]:
    """Return how often each set of sizes was asked for. Raises: OptionError with the line."""
    if trace.stat().st_size > MAX_TRACE_BYTES:
        raise OptionError(f"`{trace}` is larger than {MAX_TRACE_BYTES >> 20} MiB")
    found = Counter[Sizes]()
    with trace.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                found[_sizes(model, names, line, f"{trace}, line {number}")] += 1
    if not found:
        raise OptionError(f"`{trace}` holds no request", hint=_FORM)
    return found


def _sizes(model: ir.Model, names: Sequence[str], line: str, where: str) -> Sizes:
    try:
        shapes = json.loads(line)
    except ValueError as error:
        raise OptionError(f"this is no JSON: {error}", where=where, hint=_FORM) from error
    if not isinstance(shapes, dict):
        raise OptionError("this is no JSON object", where=where, hint=_FORM)
    known: dict[str, int] = {}
    for value in required_inputs(model):
        shape = shapes.get(value.name)
        declared = list(value.shape.dims) if value.shape is not None else []
        if not _is_shape(shape, len(declared)):
            raise OptionError(
                f"`{value.name}` needs {len(declared)} sizes above zero", where=where, hint=_FORM
            )
        for size, dimension in zip(shape, declared, strict=True):
            name = dimension_name(dimension)
            wanted = dimension if isinstance(dimension, int) else known.setdefault(name, size)
            if wanted != size:
                what = f"`{name}` is {wanted} elsewhere" if name else f"the model has {wanted}"
                raise OptionError(f"`{value.name}` has {size}, {what}", where=where)
    return tuple(known[name] for name in names)


def _is_shape(shape: object, rank: int) -> TypeGuard[list[int]]:
    """Say whether JSON holds as many sizes; `true` is no size."""
    if not isinstance(shape, list) or len(shape) != rank:
        return False
    return all(type(size) is int and 0 < size < 1 << 31 for size in shape)


def _steps(asked: Mapping[Sizes, int]) -> Sizes:
    """Return what each dimension is rounded up to, so that few enough sets are left."""
    steps = [1] * len(next(iter(asked)))
    while len({_round_up(sizes, steps) for sizes in asked}) > MAX_PRICED:
        spread = [
            len({-(-sizes[axis] // step) for sizes in asked}) for axis, step in enumerate(steps)
        ]
        steps[spread.index(max(spread))] *= 2
    return tuple(steps)


def _round_up(sizes: Sizes, steps: Sequence[int]) -> Sizes:
    return tuple(-(-size // step) * step for size, step in zip(sizes, steps, strict=True))


def _priced(
    model: ir.Model, names: Sequence[str], asked: Mapping[Sizes, int], progress: Progress
) -> dict[Sizes, float]:
    """Return the GOPs of one run at each set of sizes, and at the largest of all together."""
    largest = tuple(max(column) for column in zip(*asked, strict=True))
    wanted = sorted({*asked, largest})
    found = {}
    for done, sizes in enumerate(wanted):
        progress("price", done, len(wanted))
        bound = bind_dimensions(model, dict(zip(names, sizes, strict=True)))
        found[sizes] = model_cost(simplify(bound).model).gops
    return found


def _fits(sizes: Sizes, bucket: Sizes) -> bool:
    return all(size <= room for size, room in zip(sizes, bucket, strict=True))


def _choose(asked: Mapping[Sizes, int], gops: Mapping[Sizes, float], number: int) -> list[Sizes]:
    """Choose sets of sizes: the largest, then greedily, then each exchanged while that gains."""
    largest = tuple(max(column) for column in zip(*asked, strict=True))
    chosen = [largest]

    def spent(buckets: Sequence[Sizes]) -> float:
        return sum(
            count * min((gops[b] for b in buckets if _fits(sizes, b)), default=math.inf)
            for sizes, count in asked.items()
        )

    while len(chosen) < number:
        best = min(gops, key=lambda sizes: (spent([*chosen, sizes]), sizes))
        if best in chosen:
            break
        chosen.append(best)
    improved = True
    while improved:
        improved = False
        for at in range(1, len(chosen)):
            rest = [*chosen[:at], *chosen[at + 1 :]]
            best = min(gops, key=lambda sizes: (spent([*rest, sizes]), sizes))
            if spent([*rest, best]) < spent(chosen):
                chosen, improved = [*rest, best], True
    return chosen


def _buckets(
    chosen: Sequence[Sizes],
    asked: Mapping[Sizes, int],
    gops: Mapping[Sizes, float],
    names: Sequence[str],
) -> tuple[Bucket, ...]:
    """Return each request to the cheapest bucket that it fits into; leave out what none needs."""
    requests = Counter[Sizes]()
    needed: dict[Sizes, float] = dict.fromkeys(chosen, 0.0)
    for sizes, count in asked.items():
        home = min((b for b in chosen if _fits(sizes, b)), key=lambda b: (gops[b], b))
        requests[home] += count
        needed[home] += gops[sizes] * count
    return tuple(
        Bucket(dict(zip(names, b, strict=True)), gops[b], requests[b], needed[b])
        for b in sorted(chosen, key=lambda b: (gops[b], b))
        if requests[b]
    )
