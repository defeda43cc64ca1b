"""The order of the passes, and the proof that they changed nothing but the graph.

Neither our passes nor the libraries' are trusted with the user's numbers: after each pass the
interface is as before, at the end the outputs equal a run of the model as it came. A pass that
breaks either is left out, with the reason in its report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from vermilion.errors import Refusal, VermilionError
from vermilion.ir.declared import check_declared, forget_wrong, inferred_anew
from vermilion.ir.operator_rules import check_lengths, check_rules
from vermilion.ir.passes.bind_dimensions import Dimensions, bind_in_place
from vermilion.ir.passes.contrib import write_contrib
from vermilion.ir.passes.einsum import write_einsum
from vermilion.ir.passes.empty_results import fold_empty
from vermilion.ir.passes.fills import expand_fills
from vermilion.ir.passes.fold_batch_norm import fold_batch_norm
from vermilion.ir.passes.fold_constants import fold_constants
from vermilion.ir.passes.infer_shapes import infer_shapes, settle_casts
from vermilion.ir.passes.inline import inline_branches, inline_functions
from vermilion.ir.passes.opset_versions import raise_opset, settle_softmax
from vermilion.ir.passes.probe import Probe, interface_change, take_probe
from vermilion.ir.passes.redundancy import merge_repeats, remove_dead_nodes, remove_identities
from vermilion.ir.passes.rewrite import (
    Notes,
    PassStep,
    Rewrite,
    run_pass,
)
from vermilion.ir.passes.sort_nodes import sort_nodes
from vermilion.ir.passes.weights import deduplicate_weights, freeze_defaults, lift_constants
from vermilion.ir.sizes import check_sizes
from vermilion.ir.verify import check_graph
from vermilion.memory import no_collection
from vermilion.progress import Progress, no_progress

PASSES: tuple[Rewrite, ...] = (
    inline_functions,  # before all that looks for operators: they may hide in functions
    freeze_defaults,  # before what folds weights: an input with a default is no constant
    lift_constants,  # before folding: all constants in one form
    remove_dead_nodes,  # before inference and folding: less to do
    infer_shapes,  # before folding: Shape of a known shape is a constant
    settle_casts,  # after inference, which knows types; before folding: constants may be cast
    fold_empty,  # before folding: ONNX Runtime need not compute what has no elements
    fold_constants,  # before raising, which is simpler where shapes are known
    inline_branches,  # after folding, which makes conditions known; before all that walks one graph
    write_contrib,  # after inference, which knows ranks; before raising, which takes ONNX's alone
    write_einsum,  # after inference, which knows the axes
    expand_fills,  # after folding, which makes weights of those whose shape is known
    lift_constants,  # again: what was written has constants
    raise_opset,  # after inference: of unknown rank, each Softmax would become three nodes
    settle_softmax,  # after raising, which most often leaves nothing to do
    lift_constants,  # again: raising writes attributes as Constant nodes
    infer_shapes,  # again: raising adds nodes
    remove_identities,  # after inference: a Reshape is an identity only if its shapes are known
    deduplicate_weights,  # before merging: nodes that read equal weights become equal
    merge_repeats,  # before batch norms: two equal readers of a Conv would be in the way
    remove_dead_nodes,  # and so would one whose result nobody reads
    fold_batch_norm,  # after identities: nothing stands between Conv and its batch norm
    deduplicate_weights,  # again: folding made new weights
    merge_repeats,  # again: what reads them may be equal
    remove_dead_nodes,  # after all that leaves nodes without readers
    infer_shapes,  # last: what is placed and costed has all its shapes
)
"""The one place where the order stands."""

# Until here every node is the file's own: what breaks a rule is not a pass's fault.
_FIRST_INFERENCE = PASSES.index(infer_shapes)


@dataclass(frozen=True)
class Simplified:
    """A model after the passes, and what each of them did."""

    model: ir.Model
    steps: tuple[PassStep, ...]


@no_collection()
def simplify(
    model: ir.Model, *, dims: Dimensions | None = None, progress: Progress = no_progress
) -> Simplified:
    """Return an equal model that is easier to place and faster to run; `model` stays as it is.

    (An unsorted `model` is sorted, which says the same.) Weights are shared with `model`, not
    copied. `dims` are bound first (see `bind_dimensions`).

    Raises: OptionError for wrong `dims`; ModelError where the graph has a cycle, values that no
    machine holds, or values that are declared as what they are not.
    """
    # First, and on the model itself: what is not in order can neither be walked nor cloned.
    steps = [run_pass(sort_nodes, model)]
    bound = model.clone()
    inferred = inferred_anew(bound)
    check_declared(bound, inferred)
    if dims:
        notes = Notes()
        bind_in_place(bound, dims, notes)
        steps.append(PassStep("bind-dimensions", notes.fired))
        inferred = inferred_anew(bound)
        forget_wrong(bound, inferred)
    check_sizes(bound, inferred=inferred)
    probe = take_probe(bound, progress)
    left_out: dict[str, Refusal] = {}
    while True:
        try:
            work, done = _attempt(bound, left_out, probe, progress)
        except _Broken as broken:
            left_out[broken.name] = Refusal(broken.reason)
            continue
        except _Unstable:
            probe = probe.unusable("the outputs change from run to run")
            continue
        break
    return Simplified(work, (*steps, *_merged(done), probe.step))


class _Broken(Exception):
    """A pass changed what it must not change."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{name}: {reason}")


class _Unstable(Exception):
    """The outputs differed after all passes and, looked at again, after none of them."""


def _attempt(
    model: ir.Model, left_out: Mapping[str, Refusal], probe: Probe, progress: Progress
) -> tuple[ir.Model, list[PassStep]]:
    """Run all passes but those left out; raise _Broken for the one that breaks the promise.

    Only where the outputs differ at the end is it worth comparing after each pass.
    """
    work, steps = _apply(model, left_out, None, progress)
    if probe.difference(work):
        _apply(model, left_out, probe, progress)
        raise _Unstable
    return work, steps


def _apply(
    model: ir.Model, left_out: Mapping[str, Refusal], probe: Probe | None, progress: Progress
) -> tuple[ir.Model, list[PassStep]]:
    """Run the passes on a copy; with a probe, compare the outputs after each that fired."""
    work = model.clone()
    steps: list[PassStep] = []
    for done, rewrite in enumerate(PASSES):
        progress("simplify", done, len(PASSES))
        name = rewrite.__name__.replace("_", "-")
        if name in left_out:
            steps.append(PassStep(name, 0, (("model", left_out[name]),)))
            continue
        step = _guarded(rewrite, name, work, model)
        steps.append(step)
        if done == _FIRST_INFERENCE:
            check_rules(work)
            check_lengths(work)
        difference = probe.difference(work) if probe is not None and step.fired else ""
        if difference:
            raise _Broken(name, f"left out: it changes the outputs ({difference})")
    progress("simplify", len(PASSES), len(PASSES))
    return work, steps


def _guarded(rewrite: Rewrite, name: str, work: ir.Model, original: ir.Model) -> PassStep:
    """Run one pass and check that graph and interface are still sound."""
    try:
        step = run_pass(rewrite, work)
    except VermilionError:
        raise
    except Exception as error:  # a library's pass may fail in any way on a graph it did not expect
        raise _Broken(name, f"left out: it failed with {type(error).__name__}: {error}") from error
    if step.fired:
        try:
            check_graph(work)
        except VermilionError as error:
            if rewrite is lift_constants:  # it only moved what the file says: that is at fault
                raise
            raise _Broken(name, f"left out: it broke the graph: {error.message}") from error
        change = interface_change(original, work)
        if change:
            raise _Broken(name, f"left out: it changes the interface: {change}")
    return step


def _merged(steps: list[PassStep]) -> list[PassStep]:
    """Join the runs of a pass that stands in the list more than once; the last refusals count."""
    merged: dict[str, PassStep] = {}
    for step in steps:
        before = merged.get(step.name)
        fired = step.fired + (before.fired if before is not None else 0)
        merged[step.name] = PassStep(step.name, fired, step.refusals)
    return list(merged.values())
