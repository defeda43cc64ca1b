"""What is wrong with a provider's outputs, by output and by entry of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vermilion.backends.base import Array, Tensors
from vermilion.errors import DeviceError
from vermilion.ir.execute import run_session, session_from_bytes
from vermilion.proof.check import OutputCheck, check_output
from vermilion.proof.judge import Question, judge

FaultKind = Literal["nan", "wrong-entry", "wrong"]


@dataclass(frozen=True)
class Fault:
    """What is wrong with one output. `entry` is the place in the batch, None where it is all."""

    kind: FaultKind
    output: str
    words: str
    entry: int | None = None


def find_faults(question: Question, *, batch: int | None) -> list[Fault]:
    """Return what is wrong with the outputs that the judge does not accept.

    Where outputs have a leading `batch`, one that is wrong for some entries names the first.
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


@dataclass(frozen=True)
class NanCheck:
    """The part as it was given to the provider, for telling what NaN in an output are worth.

    A model may compute NaN; a provider that fails leaves some. The CPU says which it is, and is
    asked only where there are any.
    """

    serialized: bytes
    weights: Mapping[str, Array]

    def check(self, inputs: Tensors, found: Tensors) -> None:
        """Raise DeviceError where an output is NaN and the CPU's is a number."""
        if not any(array.dtype.kind == "f" and np.isnan(array).any() for array in found.values()):
            return
        session = session_from_bytes(self.serialized, self.weights, optimize=False, quiet=True)
        for name, expected in run_session(session, inputs).items():
            strange = np.isnan(found[name]) if found[name].dtype.kind == "f" else np.zeros(0, bool)
            if strange.any():
                strange &= ~np.isnan(expected)
            if strange.any():
                raise DeviceError(
                    f"output `{name}`: {int(strange.sum())} of its {strange.size} values are NaN"
                    " where the CPU's are numbers",
                    where="the provider, running",
                    hint="report it to AMD with the model; `--target cpu` computes it meanwhile",
                )
