"""Why a device's outputs are not the expected ones: never written, NaN, one entry of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from vermilion.backends.base import Array
from vermilion.backends.process.child import unwritten
from vermilion.proof.check import OutputCheck, check_output
from vermilion.proof.judge import Question, judge

FaultKind = Literal["unwritten", "nan", "wrong-entry", "wrong"]


@dataclass(frozen=True)
class Fault:
    """What is wrong with one output. `entry` is the place in the batch, None where it is all."""

    kind: FaultKind
    output: str
    words: str
    entry: int | None = None


def find_faults(question: Question, *, batch: int | None) -> list[Fault]:
    """Return what is wrong with the outputs that the judge does not accept.

    What was found began as what `unwritten` gives. Where outputs have a leading `batch`, an output
    that is never written for some entries is one however small the others make the difference.
    """
    answer = judge(question)
    wrong = {check.name: check for check in answer.wrong}
    found = []
    for name, expected in question.expected.items():
        check = wrong.get(name)
        fault = _fault(name, expected, question.found[name], check, question, batch)
        if fault is not None:
            found.append(fault)
    return found


def _fault(
    name: str,
    expected: Array,
    found: Array,
    check: OutputCheck | None,
    question: Question,
    batch: int | None,
) -> Fault | None:
    has_batch = batch is not None and batch > 1 and expected.ndim > 0 and len(expected) == batch
    entries = list(range(len(expected))) if has_batch and found.shape == expected.shape else []
    missing = [e for e in entries if _is_unwritten(expected[e], found[e])]
    if missing and len(missing) < len(entries):
        words = f"entry {missing[0]} of the batch of {batch} is never written"
        return Fault("unwritten", name, words, missing[0])
    if _is_unwritten(expected, found):
        return Fault("unwritten", name, "it is never written")
    if check is None:
        return None
    if found.dtype.kind == "f" and found.shape == expected.shape:
        strange = np.isnan(found) & ~np.isnan(expected)
        if strange.any():
            entry = int(np.argwhere(strange)[0][0]) if entries else None
            share = float(strange.mean())
            words = f"{share:.1%} of its values are NaN where the CPU's are numbers"
            return Fault("nan", name, words, entry)
    apart = [
        e for e in entries
        if not check_output(name, expected[e], found[e], question.form).passed
    ]  # fmt: skip
    if apart and len(apart) < len(entries):
        words = f"entry {apart[0]} of the batch of {batch} is wrong, the others are right"
        return Fault("wrong-entry", name, words, apart[0])
    return Fault("wrong", name, str(check))


def _is_unwritten(expected: Array, found: Array) -> bool:
    if found.size == 0 or found.dtype.kind == "b":
        return False
    if found.dtype.kind == "f":
        return bool(np.isnan(found).all() and not np.isnan(expected).all())
    blank = unwritten(found.dtype)
    return bool((found == blank).all() and not (expected == blank).all())
