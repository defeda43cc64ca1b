"""Checking what a caller feeds to a model before anything native sees it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vermilion.backends.base import Array
from vermilion.errors import OptionError
from vermilion.ir.element_types import UNUSUAL_TYPES, numpy_type
from vermilion.runtime.manifest import Dimension, TensorRecord


class NamedSizesError(OptionError):
    """One dimension's name stands for two sizes: a program that relies on it cannot run."""


# What some exporters (Paddle) write for any size: the same word need not mean the same size.
_NO_NAMES = frozenset({"", "?"})


class Feeds:
    """The inputs that a model has, and the check of what is fed to it."""

    def __init__(self, wanted: Sequence[TensorRecord]) -> None:
        self._wanted = tuple(wanted)
        # Of inputs of fixed sizes: what an array must be to need no more than two comparisons.
        self._plain: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        for record in wanted:
            dtype, sizes = numpy_type(record.type), record.shape or ()
            fixed = tuple(size for size in sizes if isinstance(size, int))
            is_fixed = record.shape is not None and len(fixed) == len(sizes)
            if dtype is not None and dtype.kind != "O" and is_fixed:
                self._plain[record.name] = (dtype, fixed)

    def checked(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Return the inputs as arrays; give and raise what `checked_feeds` does."""
        if len(inputs) == len(self._plain) == len(self._wanted):
            found: dict[str, Array] = {}
            for name, (dtype, shape) in self._plain.items():
                value = inputs.get(name)
                if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                    break
                found[name] = value
            else:
                return found
        return checked_feeds(inputs, self._wanted)


def checked_feeds(inputs: Mapping[str, object], wanted: Sequence[TensorRecord]) -> dict[str, Array]:
    """Return the inputs as arrays of the names, types and shapes that the model has.

    Raises: OptionError that names the input, what it got and what it wants.
    """
    names = [record.name for record in wanted]
    for name in inputs:
        if name not in names:
            raise OptionError(
                f"the model has no input `{name}`", hint=nearest(str(name), names, "input")
            )
    bound: dict[str, tuple[int, str]] = {}
    return {record.name: _checked(inputs, record, bound) for record in wanted}


def nearest(name: str, names: Iterable[str], what: str) -> str:
    """Return a hint: the name that was meant, or all that there are."""
    known = list(names)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"its {what}s are {', '.join(f'`{known_name}`' for known_name in known) or 'none'}"


def _checked(
    inputs: Mapping[str, object], record: TensorRecord, bound: dict[str, tuple[int, str]]
) -> Array:
    if record.name not in inputs:
        given = ", ".join(f"`{name}`" for name in inputs) or "nothing"
        raise OptionError(
            f"input `{record.name}` is missing",
            hint=f"it is {record.type} of shape {shape_text(record.shape)}; given was {given}",
        )
    value = inputs[record.name]
    if not record.type.startswith("tensor("):
        return value  # type: ignore[return-value]  # a sequence or a map: the runtime checks it
    array = _array(value, record)
    dtype = numpy_type(record.type)
    unusual = UNUSUAL_TYPES.get(record.type)
    if unusual is not None and array.dtype != unusual:
        # What numpy itself wrote has lost its type: two bytes of what. Other numbers are rounded.
        array = array.view(unusual) if _is_bits_of(array.dtype, unusual) else array.astype(unusual)
    if dtype is not None and not _same_type(array.dtype, dtype):
        raise OptionError(
            f"input `{record.name}` is {array.dtype}, the model wants {dtype}",
            hint=f"convert it: `{record.name}.astype('{dtype}')`",
        )
    if record.shape is not None:
        _check_shape(array, record, record.shape, bound)
    return array


def _array(value: object, record: TensorRecord) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "numpy"):  # ONNX Runtime's values, PyTorch's tensors
        return np.asarray(value.numpy())
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise OptionError(
            f"input `{record.name}` is not an array: {error}",
            hint=f"give a numpy array of shape {shape_text(record.shape)}",
        ) from error
    # Numbers of Python have no width of their own; a fraction is no whole number, though.
    dtype = numpy_type(record.type)
    is_near = dtype is not None and np.can_cast(array.dtype, dtype, "same_kind")
    return array.astype(dtype) if is_near else array


def _same_type(given: np.dtype[np.generic], wanted: np.dtype[np.generic]) -> bool:
    # Strings come as objects or as numpy's own fixed-width text; both are taken.
    return given == wanted or (wanted.kind == "O" and given.kind in "UO")


def _is_bits_of(given: np.dtype[np.generic], wanted: np.dtype[np.generic]) -> bool:
    """Say whether numpy's own files have lost the type: it writes bfloat16 as two bytes of what."""
    return given.type is np.void and given.names is None and given.itemsize == wanted.itemsize


def _check_shape(
    array: Array,
    record: TensorRecord,
    shape: tuple[Dimension, ...],
    bound: dict[str, tuple[int, str]],
) -> None:
    fits = array.ndim == len(shape) and all(
        not isinstance(wanted, int) or wanted == given
        for wanted, given in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise OptionError(
            f"input `{record.name}` has shape {shape_text(array.shape)}, "
            f"the model wants {shape_text(shape)}",
            hint="give it in that shape, or compile with other sizes (`--dim`)",
        )
    for wanted, given in zip(shape, array.shape, strict=True):
        if not isinstance(wanted, str) or wanted in _NO_NAMES:
            continue
        before, where = bound.setdefault(wanted, (given, record.name))
        if before != given:
            raise NamedSizesError(
                f"dimension `{wanted}` is {before} in input `{where}` and {given} in "
                f"input `{record.name}`",
                hint="one name stands for one size in a run",
            )


def shape_text(shape: Sequence[Dimension] | None) -> str:
    """Return a shape for people: `1×3×h×224`."""
    if shape is None:
        return "any"
    return "×".join("?" if size is None else str(size) for size in shape) or "scalar"
