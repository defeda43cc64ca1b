"""One random graph, compiled and run in one way, and what became of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from random_graphs.growth import RandomGraph, grow
from random_graphs.judgement import CLOSE, CLOSE_OF_WINOGRAD, judge
from random_graphs.native_parts import (
    Placed,
    Way,
    compile_parts,
    in_scratch,
    place,
    run_parts,
)
from random_graphs.open_sizes import of_other_sizes, open_some
from random_graphs.reference import NotRunError, Reference, run_whole
from vermilion.api import compile_model
from vermilion.backends.base import Part
from vermilion.errors import OtherSizesError, VermilionError

Array = NDArray[Any]


@dataclass
class Outcome:
    """What became of a graph. `kind` is one of KINDS; `detail` says what is wrong."""

    kind: str
    detail: str = ""
    nodes: int = 0
    native_nodes: int = 0
    native_operators: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    outputs: int = 0
    unjudged: int = 0
    peers: int = 0  # outputs in which the reference is off, by float64
    way: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


KINDS = ("right", "wrong", "refused", "raised", "guard fault", "crashed", "hung", "not run")
# What Winograd's algorithm computes.
_OF_TAPS = ("Conv", "FusedConv", "ConvTranspose", "QLinearConv")
FAULTS = ("wrong", "raised", "guard fault", "crashed", "hung")


def way_of(seed: int, number_format: str) -> Way:
    """Draw how a graph is run: target, threads, sharing."""
    random = np.random.default_rng([seed, 77])
    return Way(
        target="cpu" if random.random() < 0.6 else "x86-64-v3",
        precision="bf16" if number_format == "bf16" else "auto",
        threads=int(random.integers(1, 4)),
        shares_all=bool(random.random() < 0.6),
        winograd=bool(random.random() < 0.8),
        whole_path=bool(random.random() < 0.1),
        open_seed=seed if random.random() < 0.25 else None,
    )


Stage = Callable[[str], None]


def try_graph(graph: RandomGraph, way: Way, stage: Stage = lambda name: None) -> Outcome:
    """Grow nothing, run everything: reference, compiler, generated code twice, judge."""
    return try_model(graph.model, graph.inputs, way, graph.number_format, stage)


def try_model(
    model: onnx.ModelProto, inputs: Mapping[str, Array], way: Way, number_format: str,
    stage: Stage = lambda name: None,
) -> Outcome:  # fmt: skip
    """Run a model in one way and judge its outputs."""
    stage("reference")
    try:
        reference = Reference(model, inputs)
    except NotRunError as error:
        return Outcome("not run", str(error), way=asdict(way))
    try:
        return in_scratch(
            lambda folder: _tried(reference, inputs, way, number_format, stage, folder)
        )
    except NotRunError as error:  # what ran node by node does not open as a whole
        return Outcome("not run", str(error), way=asdict(way))
    except VermilionError as error:
        return Outcome("refused", f"{type(error).__name__}: {error.message}", way=asdict(way))
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place_of = f"{Path(frame.filename).name}:{frame.name}"
        detail = f"{type(error).__name__}: {str(error)[:300]} ({place_of})"
        return Outcome("raised", detail, way=asdict(way))


def _tried(
    reference: Reference, inputs: Mapping[str, Array], way: Way, number_format: str,
    stage: Stage, folder: Path,
) -> Outcome:  # fmt: skip
    stage("compile")
    model, chosen = reference.model, tuple[int, ...]()
    if way.open_seed is not None:
        model, chosen = open_some(model, way.open_seed)
    placed = place(model, way)
    outcome = Outcome(
        "right", nodes=placed.nodes, native_nodes=placed.native_nodes,
        native_operators=tuple(placed.native_operators), refused=tuple(placed.refused),
        outputs=len(reference.model.graph.output), way=asdict(way),
    )  # fmt: skip
    compile_parts(placed, way, folder)
    values = dict(inputs) | reference.weights

    def rest(part: Part, wanted: Mapping[str, Array]) -> Mapping[str, Array]:
        return _literally(part, wanted)

    for side in ("end", "start"):
        stage(f"run, guarded at the {side}")
        got = values | run_parts(placed, way, inputs, side, rest)  # type: ignore[arg-type]
        stage("judge")
        missing = [o.name for o in reference.model.graph.output if o.name not in got]
        if missing:
            got |= {name: reference.values[name] for name in missing}  # folded to a constant
        verdicts = judge(reference, inputs, got, number_format, _close(reference, way))
        outcome.unjudged = sum(not v.is_judged for v in verdicts)
        outcome.peers = sum(v.is_peers for v in verdicts)
        wrong = [v for v in verdicts if v.reason]
        if wrong:
            outcome.kind, outcome.detail = "wrong", f"`{wrong[0].output}` {wrong[0].reason}"
            return outcome
    if chosen and way.open_seed is not None:
        stage("other sizes")
        verdict = _other_sizes(reference, inputs, chosen, placed, way, number_format)
        if verdict:
            outcome.kind, outcome.detail = "wrong", f"at other sizes: {verdict}"
            return outcome
    if way.whole_path:
        stage("whole path")
        verdict = _whole_path(model, reference, inputs, way, number_format, folder)
        if verdict:
            outcome.kind, outcome.detail = "wrong", f"as a whole: {verdict}"
    stage("done")
    return outcome


def _other_sizes(
    reference: Reference, inputs: Mapping[str, Array], chosen: tuple[int, ...], placed: Placed,
    way: Way, number_format: str,
) -> str:  # fmt: skip
    """Run the same programs at other sizes; return what is wrong, empty if nothing is."""
    assert way.open_seed is not None
    freed, _ = open_some(reference.model, way.open_seed)
    for others in of_other_sizes(inputs, chosen, way.open_seed):
        wrong = _at_sizes(freed, others, placed, way, number_format)
        if wrong:
            return wrong
    return ""


def _at_sizes(
    freed: onnx.ModelProto, others: Mapping[str, Array], placed: Placed, way: Way,
    number_format: str,
) -> str:  # fmt: skip
    """Run programs on inputs; a model that is for its own sizes alone proves nothing."""
    try:
        expected, again = Reference(freed, others), Reference(freed, others)
    except NotRunError:
        return ""
    # ONNX Runtime leaves what it does not write as it was: a RotaryEmbedding of longer heads than
    # its tables are for. What two runs differ in says nothing.
    if any(a.tobytes() != again.values[name].tobytes() for name, a in expected.values.items()):
        return ""
    values = dict(others) | expected.weights
    try:
        got = values | run_parts(placed, way, others, "end", _literally)
    except OtherSizesError:
        return ""  # a session has ONNX Runtime run the model then
    missing = [o.name for o in freed.graph.output if o.name not in got]
    got |= {name: expected.values[name] for name in missing}
    verdicts = judge(expected, others, got, number_format, _close(expected, way))
    wrong = [v for v in verdicts if v.reason]
    return f"`{wrong[0].output}` {wrong[0].reason}" if wrong else ""


def _close(reference: Reference, way: Way) -> float:
    """Return what an error may be of the largest value: more where Winograd's sums may be."""
    has_taps = any(node.op_type in _OF_TAPS for node in reference.model.graph.node)
    return CLOSE_OF_WINOGRAD if way.winograd and has_taps else CLOSE


def _whole_path(
    model: onnx.ModelProto, reference: Reference, inputs: Mapping[str, Array], way: Way,
    number_format: str, folder: Path,
) -> str:  # fmt: skip
    """Compile as a user does, open, run; return what is wrong, empty if nothing is.

    `model` is the reference's, of which sizes may be open.
    """
    precision = "bf16" if way.precision == "bf16" else "auto"
    compiled = compile_model(
        ir.from_proto(model), target=way.target, precision=precision,
        cache_dir=folder / "cache", winograd=way.winograd,
    )  # fmt: skip
    left_out = [note for note in compiled.report.notes if "fault of the compiler" in note]
    if left_out:
        return left_out[0]
    failed = [row for row in compiled.report.nodes if "failed to compile" in str(row)]
    if failed:
        return f"{failed[0]}"
    session = compiled.session(threads=way.threads)
    names = [str(item.name) for item in session.get_outputs()]
    got = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    verdicts = judge(reference, inputs, got, number_format, _close(reference, way))
    wrong = [v for v in verdicts if v.reason]
    return f"`{wrong[0].output}` {wrong[0].reason}" if wrong else ""


def _literally(part: Part, wanted: Mapping[str, Array]) -> Mapping[str, Array]:
    model = ir.to_proto(part.model)
    try:
        values = Reference(model, dict(wanted)).values
        return {output.name: values[output.name] for output in model.graph.output}
    except NotRunError:
        return run_whole(model, wanted)


def repeat(seed: int, number_format: str) -> str:
    """Try the graph of a seed again, here; return its text and what became of it."""
    graph = grow(seed, number_format)
    outcome = try_graph(graph, way_of(seed, number_format), lambda name: print(name, flush=True))
    return f"{onnx.printer.to_text(graph.model)}\n{outcome}"
