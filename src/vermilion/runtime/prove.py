"""The proof: a compiled model gives the numbers of the model as it came, and every part its own.

Three samples that differ in kind go through the literal run of the model and through the compiled
parts. Each part is held against its own literal run on the inputs that it got (`prove_part`), and
the outputs of the whole against those of the model as it came. docs/proof.md says what that shows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import onnx_ir as ir

from vermilion.backends import backend
from vermilion.backends.base import Array, CompileOptions, Executable, Tensors
from vermilion.errors import (
    OptionError,
    OtherSizesError,
    Refusal,
    UnsupportedError,
    VermilionError,
)
from vermilion.hardware.targets.target import Target
from vermilion.ir.literal.interpret import interpret
from vermilion.ir.literal.run import open_literally
from vermilion.ir.opset import required_inputs
from vermilion.ir.samples import Sample, SampleKind, draw_accepted
from vermilion.progress import Progress
from vermilion.proof.activation import with_exact_activation
from vermilion.proof.bounds import FormatName, format_in
from vermilion.proof.check import OutputCheck, check_output, is_nan_everywhere
from vermilion.proof.judge import Question, judge
from vermilion.runtime.invalid import Runs, check_valid
from vermilion.runtime.output_rows import OutputRows, decided_by_roundings
from vermilion.runtime.prove_part import (
    PartProof,
    StagedFiles,
    WrongPart,
    beyond_float16,
    prove_part,
    run_reference,
    stood_in,
)
from vermilion.runtime.write import CompiledPart

KINDS: tuple[SampleKind, ...] = ("ordinary", "edges", "large")
# After so long no further sample is begun.
_ENOUGH_SECONDS = 20.0
_NARROW: tuple[FormatName, ...] = ("fp16", "bf16", "bfp16")


Status = Literal["proven", "not proven"]
REPORT_IT = "this is a fault of the compiler, please report it"


class WrongNumbersError(UnsupportedError):
    """What was compiled does not compute what the model does."""


class _WrongPartsError(Exception):
    """Parts are wrong on these inputs; `parts` says what is wrong in each, by name."""

    def __init__(self, parts: Mapping[str, WrongPart], inputs: Tensors) -> None:
        super().__init__(", ".join(parts))
        self.parts, self.inputs = parts, inputs


class NotProvenError(UnsupportedError):
    """A proof was required, and no sample could give one."""


@dataclass(frozen=True)
class Proof:
    """What was proven of a compiled model.

    `wrong` are the parts that no rounding explains, by name. `samples` are the kinds that the
    model took; `reason` says why there are none, or not all.
    """

    rows: tuple[Mapping[str, object], ...]
    samples: tuple[str, ...]
    reason: str = ""
    wrong: Mapping[str, WrongPart] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def status(self) -> Status:
        """`proven` where a sample was judged in every part, and so is every output."""
        if not self.samples or self.wrong:
            return "not proven"
        return "proven" if all(row["status"] == "proven" for row in self.rows) else "not proven"


def prove(
    original: ir.Model,
    parts: Sequence[CompiledPart],
    target: Target,
    progress: Progress,
    precision: str = "auto",
    *,
    given: Tensors | None = None,
) -> Proof:
    """Hold the compiled parts against `original` on several samples; `given` is the user's own.

    Raises: WrongNumbersError where every part is right and the whole is not: a pass is wrong;
    OptionError where the model does not run on the sample of the user's own; ModelError where it
    runs on none, whatever the inputs are.
    """
    return _Prover(original, tuple(parts), target, progress, precision).prove(given)


@dataclass
class _Prover:
    """The samples of one model, one after the other."""

    original: ir.Model
    parts: tuple[CompiledPart, ...]
    target: Target
    progress: Progress
    precision: str
    loaded: dict[str, Executable] = field(default_factory=dict)
    rows: OutputRows = field(default_factory=OutputRows)
    notes: dict[str, None] = field(default_factory=dict)
    decided: dict[str, Array] = field(default_factory=dict)
    # A part that is not for the sizes of a sample: a session has ONNX Runtime run the model there.
    away: dict[str, WrongPart] = field(default_factory=dict)

    def prove(self, given: Tensors | None) -> Proof:
        begin = time.perf_counter()
        steps = len(KINDS) + 1
        self.progress("prove", 0, steps)
        try:
            literal = open_literally(self.original, progress=self.progress)
        except VermilionError as error:
            check_valid(error)
            return self._done((), error.message, begin)
        runs = Runs(literal)
        samples: list[str] = []
        reason = ""
        for number, kind in enumerate(("given", *KINDS)):
            if kind == "given" and given is None:
                continue
            if samples and time.perf_counter() - begin > _ENOUGH_SECONDS:
                reason = f"a sample takes {(time.perf_counter() - begin) / len(samples):.0f} s"
                break
            try:
                drawn = self._drawn(runs, kind, given)
                if isinstance(drawn, Refusal):
                    reason = reason or drawn.reason
                    continue
                sample, (expected, found) = drawn
                self._proved(sample.inputs, expected, found, literal.engine, first=not samples)
            except _WrongPartsError as error:
                beyond = beyond_float16(self.parts, error.parts, error.inputs) if samples else ""
                if not beyond:
                    return replace(self._done((), "", begin), wrong=error.parts)
                self.notes[f"not judged on the sample `{kind}`: {beyond}"] = None
                continue
            samples.append(kind)
            self.progress("prove", number + 1, steps)
        self.progress("prove", steps, steps)
        if self.away and not samples:
            return replace(self._done((), "", begin), wrong=self.away)
        if not samples:
            runs.check_valid(self.original)
        return self._done(tuple(samples), reason, begin)

    def _drawn(
        self, runs: Runs, kind: str, given: Tensors | None
    ) -> tuple[Sample, tuple[dict[str, Array], dict[str, Array]]] | Refusal:
        """Return a sample, the outputs of its literal run, and what the parts give."""
        if kind == "given":
            assert given is not None, "asked for only where it is there"
            try:
                expected = runs.run(given)
            except VermilionError as error:
                raise OptionError(
                    f"the model does not run on the given inputs: {error.message}",
                    where=error.where,
                    hint="a sample has one array for each input of the model, by name",
                ) from error
            try:
                return Sample("ordinary", given, {}), (expected, self._computed(given))
            except OtherSizesError as error:
                return Refusal(error.message, error.hint)
        try:
            # What the parts are not for is drawn again, as what the model does not take.
            return draw_accepted(
                self.original,
                kind,  # type: ignore[arg-type]
                lambda inputs: (runs.run(inputs), self._computed(inputs)),
                likes=lambda found: not any(map(is_nan_everywhere, found[0].values())),
            )
        except VermilionError as error:  # it takes too long, or too much memory
            return Refusal(error.message, error.hint)

    def _computed(self, inputs: Tensors) -> dict[str, Array]:
        """Return the inputs, and all that the parts give.

        Raises: OtherSizesError where a part is not for these sizes; _WrongPartsError where one
        fails.
        """
        tensors: dict[str, Array] = dict(inputs)
        for compiled in self.parts:
            try:
                tensors |= self._executable(compiled).run(_inputs_of(compiled, tensors))
            except VermilionError as error:
                refusal = Refusal(f"it fails: {error.message}", REPORT_IT)
                wrong = {compiled.part.name: WrongPart(refusal)}
                if isinstance(error, OtherSizesError):
                    self.away = wrong
                    raise
                raise _WrongPartsError(wrong, inputs) from error
        return tensors

    def _done(self, samples: tuple[str, ...], reason: str, begin: float) -> Proof:
        rows = self.rows.of_samples(samples)
        if not samples and not rows:
            rows = tuple(
                {"name": str(v.name), "status": "not proven", "reason": reason}
                for v in self.original.graph.outputs
            )
        notes = list(self.notes)
        if not samples and reason:
            notes.append(f"not proven: {reason}")
        return Proof(
            rows, samples, reason, {}, tuple(notes), time.perf_counter() - begin
        )  # fmt: skip

    def _proved(
        self, inputs: Tensors, expected: Tensors, tensors: Tensors, engine: str, *, first: bool
    ) -> None:
        """Judge one sample, of which the parts gave `tensors`.

        Raises: _WrongPartsError.
        """
        form = self._form()
        checks = {
            name: check_output(name, expected[name], tensors[name], format_in(form, expected[name]))
            for name in expected
            if name in tensors  # what no part makes is an input or a weight
        }
        far = [check for check in checks.values() if not check.passed]
        if first or far:
            wrong = self._wrong_parts(tensors)
            if wrong:
                raise _WrongPartsError(wrong, inputs)
        amplified = self._explained(far, inputs, tensors, expected) if far else {}
        stood = stood_in(self.parts, self.target)
        for name, check in checks.items():
            right = expected[name]
            if name in amplified and check.format == "exact" and name in self.decided:
                right = self.decided[name]
                there = check_output(name, right, tensors[name], "exact")
                self.notes[decided_by_roundings(check)] = None
                check = there
            elif name in amplified and check.format != "exact":
                check, right = self._from_the_sums(check, right, inputs, tensors[name])
            self.rows.keep(check, right, tensors[name], engine, name in amplified, stood)

    def _from_the_sums(
        self, check: OutputCheck, right: Array, inputs: Tensors, found: Array
    ) -> tuple[OutputCheck, Array]:
        """Hold an output against its last activation in float64, where one ends the model."""
        exact = with_exact_activation(self.original, check.name, inputs, right)
        if exact is None:
            return check, right
        self.notes[f"`{check.name}`: the activation that gives it is computed in float64"] = None
        return check_output(check.name, exact, found, check.format), exact

    def _executable(self, compiled: CompiledPart) -> Executable:
        name = compiled.part.name
        if name not in self.loaded:
            self.loaded[name] = backend(compiled.part.backend).load(
                compiled.program, StagedFiles(compiled), self.target, CompileOptions()
            )
        return self.loaded[name]

    def _wrong_parts(self, tensors: Tensors) -> dict[str, WrongPart]:
        wrong: dict[str, WrongPart] = {}
        for compiled in self.parts:
            inputs = _inputs_of(compiled, tensors)
            outputs = {str(v.name): tensors[str(v.name)] for v in compiled.part.model.graph.outputs}
            proof = prove_part(compiled, self._executable(compiled), inputs, outputs)
            self._note(proof)
            self.decided |= proof.decided
            if proof.wrong:
                wrong[proof.name] = WrongPart(Refusal(proof.words, REPORT_IT), proof.results)
        return wrong

    def _note(self, proof: PartProof) -> None:
        if proof.unproven:
            self.notes[f"{proof.name} is not proven by itself: {proof.unproven}"] = None
        for name, nodes in proof.literal_off.items():
            self.notes[
                f"`{name}` ({nodes}): ONNX Runtime is further from float64 than {proof.name} is"
            ] = None

    def _form(self) -> FormatName:
        """Return the coarsest number format that any part computes in."""
        forms: list[FormatName] = ["fp32"]
        for compiled in self.parts:
            if compiled.program.numerics is not None:
                forms.append(compiled.program.numerics.form)
            numbers = compiled.program.details.get("numbers", "")
            if numbers in ("bf16", "bfp16", "fp16"):
                forms.append(numbers)  # type: ignore[arg-type]
        return max(forms, key=("fp32", *_NARROW).index)

    def _explained(
        self,
        far: Sequence[OutputCheck],
        inputs: Tensors,
        tensors: Tensors,
        expected: Mapping[str, Array],
    ) -> dict[str, OutputCheck]:
        """Return the outputs that are far though every part is right, with their checks.

        A deep model amplifies roundings; then the literal runs of the parts, one after the other,
        are what the model gives. Where they are not, a pass changed the model.

        Raises: WrongNumbersError.
        """
        names = [check.name for check in far]
        wanted = {name: expected[name] for name in names}
        form = self._form()
        # A model may hold a device's roundings that the parts leave to the device.
        for in_form in (False, True) if form in _NARROW else (False,):
            chain = self._chain(inputs, tensors, in_form=in_form)
            found = {name: chain[name] for name in names}
            answer = judge(
                Question(self.original, inputs, wanted, found, form if in_form else "fp32")
            )
            wrong: Sequence[OutputCheck] = answer.wrong
            if wrong:
                wrong = self._also_interpreted(wrong, inputs, in_form=in_form)
            if not wrong:
                break
        else:
            first = wrong[0]
            raise WrongNumbersError(
                f"the compiled model gives another `{first.name}` than the model as it came: "
                f"{first}, though every part computes what its nodes say",
                where=self.target.name,
                hint="a pass changed the model: please report it",
            )
        return {check.name: check for check in far}

    def _also_interpreted(
        self, wrong: Sequence[OutputCheck], inputs: Tensors, *, in_form: bool
    ) -> Sequence[OutputCheck]:
        """Return the outputs that are wrong too where the interpreter runs model and parts.

        Every result is rounded to its own type there. ONNX Runtime keeps half-precision numbers in
        float32 from node to node: a square that is infinite in the model is a number there. And its
        LRN adds squares as they come into the window and takes them off again, which loses what is
        small beside them.
        """
        names = [check.name for check in wrong]
        try:
            right = interpret(self.original, inputs, names, seconds=_ENOUGH_SECONDS)
            chain = dict(inputs)
            for compiled in self.parts:
                chain |= run_reference(
                    compiled, chain, in_form=in_form, interpreted_s=_ENOUGH_SECONDS
                )
        except VermilionError:
            return wrong
        found = {name: chain[name] for name in names}
        form = self._form() if in_form else "fp32"
        still = judge(Question(self.original, inputs, right, found, form)).wrong
        for check in wrong if not still else ():
            self.notes[
                f"`{check.name}`: ONNX Runtime and the interpreter differ ({check}); no "
                "pass changed the model, but a kernel of ONNX Runtime goes another way"
            ] = None
        return still

    def _chain(self, inputs: Tensors, tensors: Tensors, *, in_form: bool) -> dict[str, Array]:
        """Run the parts literally, one after the other; with `in_form` in the device's numbers."""
        chain: dict[str, Array] = dict(inputs)
        try:
            for compiled in self.parts:
                chain |= run_reference(compiled, chain, in_form=in_form)
        except VermilionError as error:
            self.notes[f"the parts have no literal run together: {error.message}"] = None
            return dict(tensors)
        return chain


def _inputs_of(compiled: CompiledPart, tensors: Tensors) -> dict[str, Array]:
    names = [str(value.name) for value in required_inputs(compiled.part.model)]
    return {name: tensors[name] for name in names}
