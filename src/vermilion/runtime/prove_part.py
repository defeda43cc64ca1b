"""One compiled part, held against its literal run on the very inputs that it got.

Generated code is watched step by step: the part is cut at every tensor that the program keeps in
memory, and each piece is judged by itself. Of all others there are only the outputs to judge.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from vermilion.backends.base import (
    INTERPRETED,
    LARGEST_FLOAT16,
    ON_CPU,
    TWIN,
    Array,
    Executable,
    Numerics,
    Tensors,
)
from vermilion.backends.native_open import OpenExecutable
from vermilion.backends.native_run import BatchExecutable, NativeExecutable
from vermilion.codegen.workers import aligned_bytes
from vermilion.errors import Refusal, UnsupportedError, VermilionError
from vermilion.hardware.targets.target import Target
from vermilion.ir.literal.interpret import interpret
from vermilion.ir.literal.run import open_literally
from vermilion.ir.opset import required_inputs, static_shape
from vermilion.proof.bounds import FormatName
from vermilion.proof.check import OutputCheck
from vermilion.proof.cut import CutModel, cut_at, piece_of
from vermilion.proof.judge import Answer, Question, judge, where_in
from vermilion.runtime.write import CompiledPart

# Copies of inner tensors that are held at one time.
_WATCHED_BYTES = 1 << 30
# Wrong tensors whose nodes are looked for: of more, one is usually wrong because of another kernel.
_MOST_NAMED = 32


@dataclass(frozen=True)
class StagedFiles:
    """A part's files before they are in a bundle."""

    compiled: CompiledPart

    def read(self, name: str) -> memoryview:
        """Return the bytes of a file of the part, aligned as kernels need their weights."""
        with (self.compiled.folder / name).open("rb") as file:
            content = aligned_bytes(os.fstat(file.fileno()).st_size)
            file.readinto(content.data)
        return content.data

    def weights(self) -> Mapping[str, Array]:
        """Return the weights that lie beside its programs."""
        return self.compiled.weights()


@dataclass(frozen=True)
class WrongPart:
    """What is wrong in a part; `results` are those of the nodes that are, where that is known."""

    refusal: Refusal
    results: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PartProof:
    """What was found of one part on one sample.

    `wrong` are the tensors that no rounding explains, `where` names the nodes that compute the
    first of them; `results` are the names of all results of such nodes. `unproven` says why
    nothing could be judged, empty where it was. `decided` are the integers that the literal run
    gives from the numbers that the part itself computed.
    """

    name: str
    backend: str
    compared: int = 0
    wrong: tuple[OutputCheck, ...] = ()
    where: str = ""
    results: frozenset[str] = frozenset()
    unproven: str = ""
    literal_off: Mapping[str, str] = field(default_factory=dict)
    decided: Mapping[str, Array] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Say what is wrong."""
        first = self.wrong[0]
        place = f", computed by {self.where}" if self.where else ""
        return f"its region gives another `{first.name}` than the model: {first}{place}"


def prove_part(
    compiled: CompiledPart, loaded: Executable, inputs: Tensors, outputs: Tensors
) -> PartProof:
    """Hold what a part computed from `inputs` against its literal run on the same inputs."""
    name, backend = compiled.part.name, compiled.part.backend
    numerics = compiled.program.numerics or Numerics()
    found: dict[str, Array] = dict(outputs)
    if isinstance(loaded, NativeExecutable | OpenExecutable) and numerics.tensors:
        # The kind of the tensors is that of the program.
        again, copies = loaded.run_watched(inputs, numerics.tensors, _WATCHED_BYTES)  # type: ignore[arg-type]
        differs = next((key for key in outputs if not _same(again[key], outputs[key])), None)
        if differs is not None:
            return _unequal(name, backend, differs, outputs[differs].size)
        found = {**_whole(copies, _of_these_sizes(compiled.part.model, loaded, inputs)), **found}
    try:
        cut = cut_at(_literal_form(compiled), found)
        if not cut.names:
            return PartProof(name, backend)
        given = {key: _rounded(array, numerics.form) for key, array in inputs.items()}
        question_inputs = cut.inputs(given, found)
        expected = open_literally(cut.model).run(question_inputs, cut.names)
    except VermilionError as error:
        return PartProof(name, backend, unproven=error.message)
    question = Question(
        cut.model, question_inputs, expected, found, numerics.form, numerics.fewer_products
    )
    decided = {
        key: expected[key]
        for key in outputs
        if key in expected and np.asarray(expected[key]).dtype.kind in "biu"
    }
    return replace(_proof(name, backend, cut, judge(question, cut)), decided=decided)


def _literal_form(compiled: CompiledPart) -> ir.Model:
    """Return the part as the graph says it, with a modelled device's roundings written into it."""
    from vermilion.backends.npu_numbers import in_standard_operators

    numbers = compiled.program.details.get("numbers", "")
    if numbers in ("bf16", "bfp16"):
        return in_standard_operators(compiled.part.model, numbers)  # type: ignore[arg-type]
    return compiled.part.model


def _of_these_sizes(model: ir.Model, loaded: Executable, inputs: Tensors) -> ir.Model:
    """Return a model whose batch is open, and run entry by entry, for the batch that is given."""
    from vermilion.codegen.lower.open_sizes import at_batch

    if not isinstance(loaded, BatchExecutable):
        return model
    return at_batch(model, next(iter(inputs.values())).shape[0]).model


def _whole(watched: Mapping[str, Sequence[Array]], model: ir.Model) -> dict[str, Array]:
    """Return each tensor as the model has it: of a batch, all entries one after the other.

    A model that is open in more than its batch is run whole, in shapes that follow from the sizes.
    """
    found: dict[str, Array] = {}
    for node in model.graph:
        for value in node.outputs:
            copies, shape = watched.get(str(value.name), ()), static_shape(value)
            if not copies:
                continue
            is_one = len(copies) == 1 or copies[0].shape == shape
            whole = copies[0] if is_one else np.concatenate(copies)
            if shape in (whole.shape, None) and value.dtype is not None:
                # What is stored as bfloat16 is compared in the type that the model declares.
                found[str(value.name)] = whole.astype(value.dtype.numpy(), copy=False)
    return found


def _proof(name: str, backend: str, cut: CutModel, answer: Answer) -> PartProof:
    wrong = answer.wrong
    return PartProof(
        name,
        backend,
        compared=len(answer.checks),
        wrong=wrong,
        where=where_in(cut, wrong[0].name) if wrong else "",
        results=_results(cut, [one.name for one in wrong[:_MOST_NAMED]]),
        literal_off={
            key: where_in(cut, key) for key, why in answer.accepted.items() if why == "float64"
        },
    )


def _results(cut: CutModel, names: Sequence[str]) -> frozenset[str]:
    return frozenset(str(v.name) for node in piece_of(cut, *names).graph for v in node.outputs)


def _unequal(name: str, backend: str, output: str, size: int) -> PartProof:
    words = "two runs on the same inputs differ"
    check = OutputCheck(output, "exact", size, 0, 0, size, 0.0, 0.0, math.inf, 0.0, words)
    return PartProof(name, backend, 1, (check,))


def _same(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def _rounded(array: Array, form: FormatName) -> Array:
    """Return what a program that stores floats as bfloat16 reads of an input."""
    if form != "bf16" or array.dtype != np.float32:
        return array
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def run_reference(
    compiled: CompiledPart,
    inputs: Tensors,
    *,
    in_form: bool = False,
    interpreted_s: float | None = None,
) -> dict[str, Array]:
    """Return the outputs of the literal run of a part as the graph says it, in its own types.

    With `in_form`, a modelled device's roundings are written into it. With `interpreted_s`, the
    interpreter runs it, for so many seconds at most.

    Raises: UnsupportedError where no engine can.
    """
    model = _literal_form(compiled) if in_form else compiled.part.model
    wanted = [str(value.name) for value in required_inputs(model)]
    missing = [name for name in wanted if name not in inputs]
    if missing:
        raise UnsupportedError(f"`{missing[0]}` is not known", where=compiled.part.name)
    given = {name: inputs[name] for name in wanted}
    if interpreted_s is not None:
        return interpret(model, given, seconds=interpreted_s)
    return open_literally(model).run(given)


def stood_in(parts: Sequence[CompiledPart], target: Target) -> dict[str, object]:
    """Return the numbers that a device is modelled in, and what was run in its stead."""
    found = {part.program.details.get("numbers", "") for part in parts}
    numbers = next((n for n in ("bfp16", "bf16", "fp16", "integers") if n in found), "")
    stood = [p.program.details for p in parts if TWIN in p.program.details]
    if numbers:
        return {"modelled_in": numbers}
    if not stood:
        on_cpu = target.kind == "gpu" and all(p.part.device == "cpu" for p in parts)
        return {"proven_of": ON_CPU} if on_cpu else {}
    own = stood[0].get(INTERPRETED, "") if len(stood) == 1 else ""
    twin: dict[str, object] = {"proven_of": stood[0][TWIN]}
    return {**twin, INTERPRETED: own} if own else twin


def beyond_float16(
    parts: Sequence[CompiledPart], wrong: Mapping[str, WrongPart], inputs: Tensors
) -> str:
    """Say which value leaves float16 in every part that is wrong; empty where one is in range.

    The parts are run literally, one after the other: what they hold in float16 is in range, or not,
    by the model's own numbers.
    """
    tensors, found, last = dict(inputs), list[str](), max(map(_place_of(parts), wrong), default=-1)
    for compiled in parts[: last + 1]:
        is_asked = compiled.part.name in wrong
        held = compiled.program.numerics.float16 if compiled.program.numerics else frozenset()
        if is_asked and not held:
            return ""
        model = compiled.part.model.clone()
        made = {str(v.name): v for node in model.graph for v in node.outputs if v.name}
        there = {str(v.name) for v in model.graph.outputs}
        if is_asked:
            model.graph.outputs.extend(made[name] for name in sorted(held & set(made) - there))
        given = {str(v.name): tensors[str(v.name)] for v in required_inputs(model)}
        try:
            values = {**given, **open_literally(model).run(given)}
        except VermilionError:
            return ""
        tensors |= {name: values[name] for name in there}
        if is_asked:
            far = [n for n in sorted(held & set(values)) if not _fits_float16(values[n])]
            if not far:
                return ""
            found.append(far[0])
    return f"there `{found[0]}` leaves the range of float16" if found else ""


def _place_of(parts: Sequence[CompiledPart]) -> Callable[[str], int]:
    places = {compiled.part.name: at for at, compiled in enumerate(parts)}
    return lambda name: places[name]


def _fits_float16(values: Array) -> bool:
    return not values.size or bool(np.max(np.abs(values)) <= LARGEST_FLOAT16)
