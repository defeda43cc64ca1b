"""Holding a device's outputs against the CPU's: every output, every batch entry, every NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from vermilion.backends.base import Array, Tensors
from vermilion.backends.process.child import unwritten
from vermilion.ir.measure import agreement

FaultKind = Literal["unwritten", "nan", "wrong-entry", "wrong"]

# BF16 keeps 8 bits of a number and INT8 fewer: what is right is above 0.999 on whole networks, and
# what is wrong is far below.
MIN_COSINE = 0.99
# Saturated outputs are all rounding: 1e-7 beside the 1.0 it is computed from.
_NOTHING = 1e-6


@dataclass(frozen=True)
class Fault:
    """What is wrong with one output. `entry` is the place in the batch, None where it is all."""

    kind: FaultKind
    output: str
    words: str
    entry: int | None = None


def find_faults(reference: Tensors, found: Tensors, *, batch: int | None) -> list[Fault]:
    """Compare a device's outputs with the reference's.

    `found` began as what `unwritten` gives. Where outputs have a leading `batch`, each entry is
    compared by itself: a device that computes only the first is right on it.
    """
    return [
        fault
        for name, expected in reference.items()
        if (fault := _fault(name, expected, found[name], batch)) is not None
    ]


def _fault(name: str, expected: Array, found: Array, batch: int | None) -> Fault | None:
    has_batch = batch is not None and batch > 1 and expected.ndim > 0 and len(expected) == batch
    entries = list(range(len(expected))) if has_batch else []
    missing = [e for e in entries if _is_unwritten(expected[e], found[e])]
    if missing and len(missing) < len(entries):
        words = f"entry {missing[0]} of the batch of {batch} is never written"
        return Fault("unwritten", name, words, missing[0])
    if _is_unwritten(expected, found):
        return Fault("unwritten", name, "it is never written")
    if found.dtype.kind == "f":
        strange = np.isnan(found) & ~np.isnan(expected)
        if strange.any():
            entry = int(np.argwhere(strange)[0][0]) if has_batch else None
            share = float(strange.mean())
            words = f"{share:.1%} of its values are NaN where the CPU's are numbers"
            return Fault("nan", name, words, entry)
    wrong = [e for e in entries if _is_wrong(name, expected[e], found[e])]
    if wrong and len(wrong) < len(entries):
        words = f"entry {wrong[0]} of the batch of {batch} is wrong, the others are right"
        return Fault("wrong-entry", name, words, wrong[0])
    if _is_wrong(name, expected, found):
        row = agreement(name, expected, found)
        words = f"cosine {row.cosine:.4f}, largest error {row.max_abs_error:.3g}"
        return Fault("wrong", name, words)
    return None


def _is_unwritten(expected: Array, found: Array) -> bool:
    blank = unwritten(found.dtype)
    if found.size == 0 or found.dtype.kind == "b":
        return False
    if found.dtype.kind == "f":
        return bool(np.isnan(found).all() and not np.isnan(expected).all())
    return bool((found == blank).all() and not (expected == blank).all())


def _is_wrong(name: str, expected: Array, found: Array) -> bool:
    row = agreement(name, expected, found)
    return row.cosine < MIN_COSINE and row.max_abs_error > _NOTHING
