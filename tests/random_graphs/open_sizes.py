"""The same graph with some sizes left open, and inputs of other sizes for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Array = NDArray[Any]

_MOST_OPEN = 2


def open_some(model: onnx.ModelProto, seed: int) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    """Return a copy in which one or two sizes of inputs are open, and what they were.

    Equal sizes are one dimension. Sizes that weights have too mostly belong together with them.
    """
    random = np.random.default_rng([seed, 78])
    weights = {size for tensor in model.graph.initializer for size in tensor.dims}
    names = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in names]
    sizes = {d.dim_value for value in inputs for d in value.type.tensor_type.shape.dim}
    known = sorted(size for size in sizes if size > 1)
    free = [size for size in known if size not in weights] or known
    chosen = tuple(int(n) for n in random.permutation(free)[: random.integers(1, _MOST_OPEN + 1)])
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    del opened.graph.value_info[:]
    for value in opened.graph.input:
        if value.name not in names:
            for dimension in value.type.tensor_type.shape.dim:
                if dimension.dim_value in chosen:
                    dimension.dim_param = f"size_{dimension.dim_value}"
    for value in opened.graph.output:
        for at, dimension in enumerate(value.type.tensor_type.shape.dim):
            dimension.dim_param = f"{value.name}_{at}"
    return opened, chosen


def of_other_sizes(
    inputs: Mapping[str, Array], chosen: tuple[int, ...], seed: int
) -> list[dict[str, Array]]:
    """Return inputs in which the open sizes are others: drawn ones, some 1 or 2, and 1 each.

    The numbers are the same ones, repeated. Of sizes that are 1 there is one row, one word.
    """
    random = np.random.default_rng([seed, 79])
    drawn = {size: int(random.integers(1, 3 * size)) for size in chosen}
    mixed = {size: int(random.choice([1, 2, size, 5 * size + 1])) for size in chosen}
    return [
        {
            name: np.resize(array, [other.get(size, size) for size in array.shape])
            for name, array in inputs.items()
        }
        for other in (drawn, mixed, dict.fromkeys(chosen, 1))
    ]
