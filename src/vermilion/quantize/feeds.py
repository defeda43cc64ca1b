"""Samples on their way into a model: checked one by one, never collected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from vermilion.errors import OptionError
from vermilion.ir.execute import Array
from vermilion.ir.pictures import described


@dataclass(frozen=True)
class InputSlot:
    """An input of a model: None in `shape` takes any length, no shape at all any shape."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None

    def describe(self) -> str:
        """Return type and shape as messages show them: `float32[?,3,224,224]`."""
        return described(self.dtype, self.shape)

    def takes_shape(self, shape: tuple[int, ...]) -> bool:
        """Say whether an array of this shape may be fed."""
        if self.shape is None:
            return True
        lengths = zip(self.shape, shape, strict=False)
        return len(self.shape) == len(shape) and all(a is None or a == b for a, b in lengths)


def input_slots(model: ir.Model) -> tuple[InputSlot, ...]:
    """Return the inputs that a sample must hold: weights listed as inputs are none."""
    weights = model.graph.initializers
    return tuple(_slot(value) for value in model.graph.inputs if value.name not in weights)


def _slot(value: ir.Value) -> InputSlot:
    dtype = np.dtype(np.float32) if value.dtype is None else value.dtype.numpy()
    if value.shape is None:
        return InputSlot(str(value.name), dtype, None)
    lengths = tuple(n if isinstance(n, int) else None for n in value.shape)
    return InputSlot(str(value.name), dtype, lengths)


def checked(
    samples: Iterable[Mapping[str, Array]], slots: tuple[InputSlot, ...]
) -> Iterator[dict[str, Array]]:
    """Yield each sample once it fits the inputs.

    Raises: OptionError that names sample and input, what it got and what it expected.
    """
    expected = {slot.name for slot in slots}
    for number, sample in enumerate(samples):
        where = f"calibration sample {number}"
        if set(sample) != expected:
            raise OptionError(
                f"a sample has the inputs {_listed(sample)}, the model takes {_listed(expected)}",
                where=where,
                hint="give one array for each input, under the input's name",
            )
        for slot in slots:
            _check_array(slot, sample[slot.name], where)
        yield dict(sample)


def _check_array(slot: InputSlot, array: object, where: str) -> None:
    if not isinstance(array, np.ndarray):
        raise OptionError(
            f"input `{slot.name}` got `{type(array).__name__}` and expected a NumPy array",
            where=where,
        )
    if array.dtype != slot.dtype:
        raise OptionError(
            f"input `{slot.name}` got {array.dtype} and expected {slot.dtype}",
            where=where,
            hint=f"convert it first: `array.astype(numpy.{slot.dtype})`",
        )
    if not slot.takes_shape(array.shape):
        raise OptionError(
            f"input `{slot.name}` got {described(array.dtype, array.shape)} "
            f"and expected {slot.describe()}",
            where=where,
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"
