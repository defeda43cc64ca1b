"""The judge: a format's bound first, then float64, then what noise does.

Each stage costs more and is asked only about what the one before did not accept.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx_ir as ir

from vermilion.errors import VermilionError
from vermilion.ir.arrays import Array
from vermilion.ir.literal.interpret import interpret
from vermilion.ir.literal.run import open_literally
from vermilion.ir.opset import is_operator
from vermilion.proof.activation import before_activation, explains
from vermilion.proof.bounds import FEWER_PRODUCTS_NOISE, FormatName, format_in
from vermilion.proof.check import OutputCheck, Spread, check_output, spread_of
from vermilion.proof.cut import CutModel, node_names, piece_of
from vermilion.proof.decisions import TIE, deciders, is_tie
from vermilion.proof.noise import EXACT, NoisyModel, tie_runs, wide_runs
from vermilion.proof.parted import in_parts

Values = Mapping[str, Array]
Reason = Literal["tie", "noise", "float64", "wrong"]

# An answer in float64 is asked for at most as many tensors: the first ones are where it began.
_MOST_ARBITRATED = 32
# And for so long, in seconds of this thread: float64 takes a hundred times as long as a compiled
# model.
_ARBITRATION_SECONDS = 20.0
# Of a tie, in formats with few bits: one rounding of the scores.
_TIE_IN = {"bf16": 2.0**-7, "bfp16": 2.0**-6, "fp16": 2.0**-9}

# What decides integers by numbers and a scale: a rounding turned over is a whole step.
_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")
_PRODUCTS = ("Conv", "ConvInteger", "ConvTranspose", "Gemm", "MatMul", "MatMulInteger")

# Two runs in float32 that add in other orders are off from float64 by as much, give or take chance:
# PP-OCR's detector 5.4e-5 unoptimized and 6.3e-5 with its batch norms folded, noise of one rounding
# 3e-5 to 7e-5.
_AS_FAR = 2.0
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


@dataclass(frozen=True)
class Question:
    """A model, its inputs, what it should give and what was found.

    `form` is the coarsest format that the compiled form computes in; `fewer_products` says that
    it multiplies by Winograd's or Strassen's algorithm.
    """

    model: ir.Model
    inputs: Values
    expected: Values
    found: Values
    form: FormatName = "fp32"
    fewer_products: bool = False


@dataclass(frozen=True)
class Answer:
    """What was found of every output: `checks` in the order of the model's outputs.

    `accepted` says why outputs are right that their checks do not pass: `tie` where integers
    differ at scores that are as good as equal, `noise` where a rounding does as much to the exact
    values, `float64` where the literal run is further from them than what was found.
    """

    checks: tuple[OutputCheck, ...]
    accepted: Mapping[str, Reason] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)

    @property
    def wrong(self) -> tuple[OutputCheck, ...]:
        """The outputs that no rounding explains."""
        return tuple(c for c in self.checks if not c.passed and c.name not in self.accepted)


def judge(question: Question, cut: CutModel | None = None) -> Answer:
    """Return what was found of each output of the question.

    With `cut`, the model is that cut's, and float64 is asked about the piece alone. It is not
    asked about outputs of a whole model before which it quantizes: a rounding turned over there is
    a whole step.
    """
    begin = time.perf_counter()
    names = [name for name in question.expected if name in question.found]
    checks = {name: _checked(question, name) for name in names}

    def judged_with_noise(asked: Sequence[str]) -> None:
        spreads = _spreads(question, asked, cut) if asked else {}
        checks.update({name: _checked(question, name, spreads.get(name)) for name in asked})

    def far() -> list[str]:
        return [name for name in names if not checks[name].passed and name not in accepted]

    accepted: dict[str, Reason] = {}
    # Where a step is turned over on the way, the exact values say less than noise does, and later.
    if cut is not None:
        asked = [name for name in far() if not _is_certain(question, name)]
        judged_with_noise([n for n in asked if _has_steps(_asked(question, [n], cut)[0], n)])
    until = time.thread_time() + _ARBITRATION_SECONDS
    for name in far()[:_MOST_ARBITRATED]:
        if cut is None and _is_quantized(question.model, name):
            continue
        verdict = _in_float64(question, name, cut, until - time.thread_time())
        if verdict == "wrong" and cut is None and question.form not in ("fp32", "fp64"):
            continue
        if verdict is not None:
            accepted[name] = verdict
    uncertain = [name for name in far() if not _is_certain(question, name)]
    judged_with_noise([name for name in uncertain if checks[name].spread is None])
    uncertain = [name for name in uncertain if not checks[name].passed]
    accepted |= dict.fromkeys(_tied(question, uncertain, cut), "tie")
    if cut is not None:
        for name in [name for name in uncertain if name not in accepted][:_MOST_ARBITRATED]:
            if _tied_in_float64(question, name, cut, until - time.thread_time()):
                accepted[name] = "tie"
    accepted = {name: reason for name, reason in accepted.items() if reason != "wrong"}
    return Answer(tuple(checks[name] for name in names), accepted, time.perf_counter() - begin)


def _has_steps(model: ir.Model, name: str) -> bool:
    """Say whether numbers are rounded to steps before the operator that gives an output."""
    return any(
        node.op_type in _QUANTIZERS and all(value.name != name for value in node.outputs)
        for node in model.graph.all_nodes()
    )


def _is_one_level(model: ir.Model) -> bool:
    """Say whether a model quantizes, and multiplies nothing that it rounded to steps itself.

    Then runs with all ties up and all down have what each tie does. Behind a product the next
    rounding is another wherever a sum has another term, and there are too many ways to run.
    """
    rounded, stepped = set[ir.Value](), set[ir.Value]()
    quantizes = False
    for node in model.graph:
        inputs = [value for value in node.inputs if value is not None]
        is_stepped = any(value in stepped for value in inputs)
        if is_stepped and is_operator(node, *_PRODUCTS):
            return False
        is_rounded = any(value in rounded for value in inputs)
        if is_operator(node, *_QUANTIZERS):
            quantizes = True
            is_stepped |= is_rounded  # codes of an input are as exact as that is
        elif node.op_type not in EXACT:
            is_rounded = True
        rounded.update(node.outputs if is_rounded else ())
        stepped.update(node.outputs if is_stepped else ())
    return quantizes


def _is_quantized(model: ir.Model, name: str) -> bool:
    """Say whether an output of a whole model comes from numbers that were rounded to steps."""
    pending = [value for value in model.graph.outputs if value.name == name]
    seen: set[ir.Node] = set()
    while pending:
        node = pending.pop().producer()
        if node is None or node in seen:
            continue
        seen.add(node)
        if "Linear" in node.op_type or any(a.type in _GRAPHS for a in node.attributes.values()):
            return _quantizes(model)
        pending += [value for value in node.inputs if value is not None]
    return False


def _quantizes(model: ir.Model) -> bool:
    return any(node.op_type in _QUANTIZERS for node in model.graph.all_nodes())


def _form(question: Question, name: str) -> FormatName:
    return format_in(question.form, question.expected[name])


def _checked(question: Question, name: str, spread: Spread | None = None) -> OutputCheck:
    return check_output(
        name,
        question.expected[name],
        question.found[name],
        _form(question, name),
        spread,
        fewer_products=question.fewer_products,
    )


def _asked(
    question: Question, names: Sequence[str], cut: CutModel | None
) -> tuple[ir.Model, Values]:
    """Return what computes these outputs, and its inputs: of a cut model, no more than that."""
    if cut is None:
        return question.model, question.inputs
    model = piece_of(cut, *names)
    wanted = {str(value.name) for value in model.graph.inputs}
    return model, {name: array for name, array in question.inputs.items() if name in wanted}


def _spreads(
    question: Question, names: Sequence[str], cut: CutModel | None
) -> dict[str, Spread | None]:
    """Run the model with noise; return what that does to the outputs, none where it cannot run."""
    scale = FEWER_PRODUCTS_NOISE if question.fewer_products else 1.0
    try:
        model, inputs = _asked(question, names, cut)
        noisy = NoisyModel(model, question.form, scale)
        runs = noisy.runs(inputs, names)
    except VermilionError:
        return {}
    is_exact = question.form in ("fp32", "fp64")
    spreads: dict[str, Spread | None] = {}
    for name in names:
        own, _ = _asked(question, [name], cut)
        spreads[name] = spread_of(
            question.expected[name],
            [run[name] for run in runs],
            discrete=_has_steps(own, name),
            is_complete=is_exact and _is_one_level(own),
        )
    return spreads


def _is_certain(question: Question, name: str) -> bool:
    """Say whether an output is decided by scores that are known to the last bit.

    Then one answer is right, of equal ones the first, and no rounding explains another.
    """
    value = next((v for v in question.model.graph.outputs if v.name == name), None)
    node = None if value is None else value.producer()
    wanted = deciders(node)
    if node is None or not wanted or node.op_type in _QUANTIZERS:
        return False
    return question.form not in _TIE_IN and all(key in question.inputs for key in wanted)


def _tied(question: Question, names: Sequence[str], cut: CutModel | None) -> list[str]:
    """Return the outputs whose integers differ only where their scores are as good as equal."""
    names = [name for name in names if _are_integers(question, name)]
    if not names:
        return []
    model, inputs = _asked(question, names, cut)
    work = model.clone()
    deciding = {
        str(value.name): in_parts(work.graph, value.producer())
        for value in work.graph.outputs
        if value.name in names
    }
    made = {str(v.name): v for node in work.graph for v in node.outputs}
    decided = {
        name: node
        for name, node in deciding.items()
        if deciders(node) and all(one in made or one in inputs for one in deciders(node))
    }
    wanted = {one for node in decided.values() for one in deciders(node)}
    scores = {name: array for name, array in inputs.items() if name in wanted}
    missing = sorted(wanted - scores.keys())
    try:
        if missing:
            work.graph.outputs.clear()
            work.graph.outputs.extend(made[name] for name in missing)
            scores |= open_literally(work).run(inputs, missing)
    except VermilionError:
        return []
    width = _TIE_IN.get(question.form, TIE)
    return [
        name
        for name, node in decided.items()
        if node is not None
        and is_tie(node, scores, question.expected[name], question.found[name], width)
    ]


def _tied_in_float64(question: Question, name: str, cut: CutModel, seconds: float) -> bool:
    """Say whether codes are what float64 gives, or at ties of that: the literal run rounds too."""
    if seconds <= 0 or not _are_integers(question, name):
        return False
    model, inputs = _asked(question, [name], cut)
    if not _quantizes(model):
        return False
    try:
        runs = [run[name] for run in tie_runs(model, inputs, [name], seconds)]
    except VermilionError:
        return False
    exact, found = runs[0].astype(question.found[name].dtype), question.found[name]
    discrete = _has_steps(model, name)
    spread = spread_of(exact, runs, discrete=discrete, is_complete=_is_one_level(model))
    return check_output(name, exact, found, _form(question, name), spread).passed


def _are_integers(question: Question, name: str) -> bool:
    expected, found = question.expected[name], question.found[name]
    if not isinstance(expected, np.ndarray) or expected.dtype.kind not in "biu":
        return False
    return expected.shape == found.shape and expected.dtype == found.dtype


def _in_float64(
    question: Question, name: str, cut: CutModel | None, seconds: float
) -> Reason | None:
    """Return what float64 says of what was found; None where that cannot be computed in time.

    It is right where it keeps the bound around the exact values (`float64`), widened by what one
    rounding of the inputs and weights does to them (`noise`), or where it is no further off than
    roundings of another order may be: twice as far as the literal run. None too where the literal
    run does not keep that bound either.
    """
    expected, found = question.expected[name], question.found[name]
    if not isinstance(expected, np.ndarray) or expected.dtype.kind not in "fV":
        return None
    if expected.shape != found.shape:
        return None
    model, inputs = _asked(question, [name], cut)
    form = _form(question, name)
    if seconds <= 0:
        return None
    before = before_activation(model, name)
    names = [name, before] if before else [name]
    try:
        begin = time.thread_time()
        all_exact = interpret(model, inputs, names, wide=True, seconds=seconds)
        exact = all_exact[name]
        if exact.shape != expected.shape:
            return None
        mine = found.astype(exact.dtype)
        if check_output(name, exact, mine, form, fewer_products=question.fewer_products).passed:
            return "float64"
        left = seconds - (time.thread_time() - begin)
        runs = wide_runs(model, inputs, names, form, left)
    except VermilionError:
        return None
    spread = spread_of(exact, [run[name] for run in runs], discrete=_has_steps(model, name))
    fewer = question.fewer_products
    if check_output(name, exact, mine, form, spread, fewer_products=fewer).passed:
        return "noise"
    every = [all_exact, *runs]
    if before and explains(model, name, before, inputs, every, mine, form, fewer_products=fewer):
        return "noise"
    with np.errstate(invalid="ignore", over="ignore"):
        if _distance(exact, found) <= _AS_FAR * _distance(exact, expected):
            return "float64"
    # A literal run that is beyond the bound itself is no yardstick: a sigmoid of ONNX Runtime is
    # off by 1e-7 where it gives less than that.
    literal = expected.astype(exact.dtype)
    theirs = check_output(name, exact, literal, form, spread, fewer_products=fewer)
    return "wrong" if theirs.passed else None


def _distance(exact: Array, array: Array) -> float:
    a, b = exact.astype(np.float64), array.astype(np.float64)
    alike = (a == b) | (np.isnan(a) & np.isnan(b))
    error = np.where(alike, 0.0, np.abs(a - b))
    return float(np.inf) if np.isnan(error).any() else float(error.max(initial=0.0))


def where_in(cut: CutModel, name: str) -> str:
    """Return the nodes that compute a tensor of a cut model, as errors name them."""
    names = node_names(piece_of(cut, name))
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
