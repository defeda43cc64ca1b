"""A random graph of which some sizes are open, built by IREE for this CPU, at other sizes.

It is the module that the programs for GPUs are made of. What the graph's size rules refuse goes to
ONNX Runtime in a session, and proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from random_graphs.growth import grow
from random_graphs.judgement import judge
from random_graphs.open_sizes import of_other_sizes, open_some
from random_graphs.reference import NotRunError, Reference
from vermilion.backends.iree.any_sizes import AnySizes
from vermilion.backends.iree.backend import claim
from vermilion.backends.iree.parameters import write_weights
from vermilion.backends.iree.rewrites import flatten_pointwise, slice_strided
from vermilion.backends.iree.signature import signature_of
from vermilion.backends.iree.size_rules import follow_sizes
from vermilion.backends.iree.toolchain import Work, compile_for_cpu, import_part
from vermilion.backends.iree.worker import PROGRAM, WEIGHTS
from vermilion.backends.provider.contract import Request
from vermilion.errors import OtherSizesError, Refusal, UnsupportedError, VermilionError
from vermilion.ir.execute import split_weights
from vermilion.ir.passes.pipeline import simplify
from vermilion.progress import no_progress

Array = NDArray[Any]
_WORKER = ("vermilion.backends.iree.worker",)
_LIMIT_S = 120.0


@dataclass
class Sizes:
    """What became of a graph: how many runs were right, wrong, refused; or why there were none."""

    runs: Counter[str] = field(default_factory=Counter)
    reason: str = ""


def try_sizes(seed: int, folder: Path) -> Sizes:
    """Build the graph of a seed with open sizes, run it at its own and at others, judge."""
    graph = grow(seed, "fp32")
    opened, chosen = open_some(graph.model, seed)
    found = Sizes()
    if not chosen:
        found.reason = "no size is open"
        return found
    with ExitStack() as stays:
        try:
            program = _built(opened, folder, stays)
        except UnsupportedError as error:
            found.reason = error.message
            return found
        for inputs in (dict(graph.inputs), *of_other_sizes(graph.inputs, chosen, seed)):
            kind, words = _at(opened, inputs, program)
            found.runs[kind] += 1
            if kind == "wrong":
                shapes = {name: list(array.shape) for name, array in inputs.items()}
                found.reason = f"{shapes}: {words}"
    return found


def _built(opened: onnx.ModelProto, folder: Path, stays: ExitStack) -> AnySizes:
    model = simplify(ir.from_proto(opened)).model
    for node in model.graph:
        refused = claim(node)
        if isinstance(refused, Refusal):
            raise UnsupportedError(refused.reason)
    slice_strided(model)
    flatten_pointwise(model)
    sizes = follow_sizes(model)
    weights = split_weights(model.clone())[1]
    signature = signature_of(model, (), sizes)
    work = Work(folder, folder / "log.txt", no_progress, _LIMIT_S)
    compile_for_cpu(import_part(model, work), folder / "cpu.vmfb", work)
    places = write_weights((), weights, folder)
    request = Request("local-task", {PROGRAM: "cpu.vmfb", WEIGHTS: places}, (), ())
    return AnySizes(
        _WORKER, request, signature, folder, stays, runs_on="CPU", open_limit_s=_LIMIT_S,
        run_limit_s=_LIMIT_S,
    )  # fmt: skip


def _at(opened: onnx.ModelProto, inputs: Mapping[str, Array], program: AnySizes) -> tuple[str, str]:
    """Run at the sizes of these inputs; return what became of it, and what is wrong."""
    try:
        expected = Reference(opened, inputs)
    except NotRunError:
        expected = None
    try:
        got = dict(program.run(inputs))
    except OtherSizesError:
        return "refused", ""
    except VermilionError as error:
        return "stopped", error.message
    if expected is None:
        return "invalid", ""
    names = [value.name for value in expected.model.graph.output]
    missing = {name: expected.values[name] for name in names if name not in got}
    wrong = [v for v in judge(expected, inputs, got | missing, "fp32") if v.reason]
    return ("wrong", f"`{wrong[0].output}` {wrong[0].reason}") if wrong else ("right", "")
