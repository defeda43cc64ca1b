"""The way from a float model and samples to a quantized model and what it costs in accuracy."""

from __future__ import annotations

import difflib
import fnmatch
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Unpack

import onnx_ir as ir

from vermilion.errors import OptionError
from vermilion.ir.execute import Array
from vermilion.ir.opset import opset_of
from vermilion.progress import Progress, no_progress
from vermilion.quantize.algorithms.equalize import equalize_layers
from vermilion.quantize.algorithms.layers import layers_of
from vermilion.quantize.algorithms.migrate import migrate
from vermilion.quantize.algorithms.moments import Moments, MomentsObserver
from vermilion.quantize.calibrate import (
    Calibrator,
    OutputKeeper,
    Statistics,
    TensorFacts,
    observe,
    tensor_facts,
)
from vermilion.quantize.choose import choose_positions, parameters_of_positions
from vermilion.quantize.constants import Constants, round_constants
from vermilion.quantize.cost import eight_bit_share
from vermilion.quantize.feeds import checked, input_slots
from vermilion.quantize.formats import Scheme, any_scheme_named, scheme_named
from vermilion.quantize.hold_out import HeldOut, drained, some_held_out
from vermilion.quantize.inner import InnerNode, round_inner_weights
from vermilion.quantize.low_resolution import low_resolution_tensors
from vermilion.quantize.masks import Scores, masked_inputs
from vermilion.quantize.observe import Histogram, Range
from vermilion.quantize.old_objects import old_objects_left_alone
from vermilion.quantize.options import Options, Settings, make_options
from vermilion.quantize.other_schemes import quantize_other
from vermilion.quantize.plan import Plan, make_plan
from vermilion.quantize.refine import refine
from vermilion.quantize.report import LayerKeeper, compare_both
from vermilion.quantize.result import LAYER_SAMPLES, OUTPUT_SAMPLES, Quantized, tensor_details
from vermilion.quantize.rewrite import write_plan
from vermilion.quantize.scales import choose_scales, own_method
from vermilion.quantize.widen import widened
from vermilion.quantize.working_copy import OLDEST_QUANTIZED_OPSET, WANTED_OPSET, working_copy

# Outputs of one sample that are kept rather than computed again, at most.
_KEPT_BYTES = 16 * 1024 * 1024

COUNTED_EVERY = 4
"""Of the values of large tensors, where the scale is a power of two: one group in so many."""

# Samples that show which channels lie far out.
_MIGRATE_SAMPLES = 8


@old_objects_left_alone()
def quantize_model(
    model: ir.Model,
    samples: Iterable[Mapping[str, Array]],
    *,
    details: bool = False,
    progress: Progress = no_progress,
    **settings: Unpack[Settings],
) -> Quantized:
    """Return `model` with rounded weights and activations; `model` itself stays as it is.

    `samples` are read once, one at a time. The settings are the fields of `Options`. With
    `details` the result says what every tensor holds and which range was chosen for it.

    Raises: OptionError for samples or options that do not fit; ModelError for a model that is
    quantized already, or one that gives NaN; UnsupportedError where nothing can be quantized.
    """
    options = make_options(settings)
    model = widened(model)
    scheme = any_scheme_named(options.scheme)
    if not isinstance(scheme, Scheme):
        if options.migrate:
            raise OptionError(
                f"`migrate` is for schemes that round activations, and `{scheme.name}` does not",
                hint="leave it out, or take `a8w8`",
            )
        return quantize_other(model, samples, options, progress)
    seen = look(model, samples, options, progress, histograms=details)
    return finish(model, seen, options, progress, details=details)


@dataclass(frozen=True)
class Seen:
    """All that is known of a model once the samples have passed.

    Other options can be tried on it without reading samples again, as long as scheme, ranges
    and equalization stay.
    """

    work: ir.Model
    facts: Mapping[str, TensorFacts]
    statistics: Mapping[str, Statistics]
    moments: Mapping[str, Moments]
    kept: Sequence[dict[str, Array]]  # what results are compared on
    held_out: int  # of those kept, how many were not calibrated on
    outputs: Sequence[dict[str, Array]]  # of the float model for those kept; none: run it again
    layers: Mapping[str, Sequence[Array]]  # some values of each, for the first samples
    count: int
    own_samples: int  # of those, how many our own kernels ran
    masked: tuple[str, ...] = ()  # inputs that hold masks


def look(
    model: ir.Model,
    samples: Iterable[Mapping[str, Array]],
    options: Options,
    progress: Progress,
    *,
    histograms: bool = False,
    held: HeldOut | None = None,
) -> Seen:
    """Run the samples through the float model.

    With `histograms` as much is seen as any other options of the scheme may need. With `held`,
    `samples` fills it on the way with what is held out.
    """
    scheme = scheme_named(options.scheme)
    work = working_copy(model, OLDEST_QUANTIZED_OPSET)
    feeds = checked(samples, input_slots(work))
    first = next(feeds, None)
    if first is None:
        raise OptionError(
            "there is no calibration data", hint="give at least one sample; 32 or more are usual"
        )
    facts = tensor_facts(work, first)
    if options.equalize:
        equalize_layers(work)
    if options.migrate:
        some = [first, *itertools.islice(feeds, _MIGRATE_SAMPLES - 1)]
        migrate(work, some)
        facts = tensor_facts(work, first)
        first, feeds = some[0], itertools.chain(some[1:], feeds)
    _check_named(options, facts)
    masked = masked_inputs(first)
    plan = make_plan(work, types_of(facts), options.exclude, scheme, masked)
    observed = touched(plan, types_of(facts)) if histograms else plan.observed
    every = COUNTED_EVERY if scheme.power_of_two and not histograms else 1
    spreads = histograms or scheme.has_fine_steps or bool(options.wide)
    counted = histograms or _needs_histogram(scheme, options)
    statistics: dict[str, Statistics] = {
        name: Histogram(every, spreads=spreads) if counted else Range() for name in observed
    }
    counters: dict[str, Statistics | Scores] = {
        name: Scores(seen, plan.scores[name]) if name in plan.scores else seen
        for name, seen in statistics.items()
    }
    compensated = options.rounding == "compensated"
    moments = MomentsObserver(layers_of(plan.nodes) if compensated else ())
    feeds = itertools.chain([first], feeds)
    compared, ahead = some_held_out(feeds, length_hint(samples), held)
    kept = compared or list(itertools.islice(ahead, OUTPUT_SAMPLES))
    outputs = OutputKeeper(_kept_outputs(model, work, facts, options), len(kept))
    layers = LayerKeeper(_layers(work, statistics), min(LAYER_SAMPLES, len(kept)))
    calibrator = Calibrator(work, counters, facts, [moments], [outputs, layers])
    stream = itertools.chain(drained(ahead), feeds)
    total = _length(samples)
    count = observe(calibrator, stream, total=total, progress=progress, held_out=compared)
    if held is not None:
        count -= len(compared)
    return Seen(
        work=work,
        facts=facts,
        statistics=statistics,
        moments=moments.by_weight,
        kept=kept,
        held_out=len(compared),
        outputs=outputs.kept,
        layers=layers.kept,
        count=count,
        own_samples=calibrator.own_samples,
        masked=masked,
    )


def _check_named(options: Options, known: Collection[str]) -> None:
    """Raises: OptionError where a range or 16 bits are asked for of a tensor that there is not."""
    unknown = [name for name in options.ranges if name not in known]
    unknown += [
        pattern
        for pattern in options.wide
        if pattern not in known and not any(fnmatch.fnmatchcase(n, pattern) for n in known)
    ]
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        listed = ", ".join(f"`{n}`" for n in near)
        raise OptionError(
            f"no tensor is called `{name}`, so it gets neither a range nor 16 bits of its own",
            hint=f"close names: {listed}" if near else "`vermilion inspect` lists the nodes",
        )


def _kept_outputs(
    model: ir.Model, work: ir.Model, facts: Mapping[str, TensorFacts], options: Options
) -> dict[str, str]:
    """Return the outputs that calibration can keep, by their names in both models.

    All or none: none where the weights were changed beforehand, or where they are large.
    """
    pairs = zip(work.graph.outputs, model.graph.outputs, strict=True)
    names = {str(ours.name): str(theirs.name) for ours, theirs in pairs}
    known = not (options.equalize or options.migrate) and all(
        name in facts and facts[name].elements is not None for name in names
    )
    if not known or sum(facts[name].size_bytes for name in names) > _KEPT_BYTES:
        return {}
    return names


def _layers(work: ir.Model, observed: Iterable[str]) -> list[str]:
    """Return the tensors among those `observed` that a node makes."""
    made = {str(value.name) for node in work.graph for value in node.outputs}
    return [name for name in observed if name in made]


@dataclass(frozen=True)
class Decided:
    """A copy of the float graph, and all that will be written into it."""

    work: ir.Model
    plan: Plan
    constants: Constants
    exclude: tuple[str, ...] = ()
    moved: int = 0
    unmet: tuple[str, ...] = ()


def decide(seen: Seen, options: Options) -> Decided:
    """Choose all scales and round all constants."""
    scheme = scheme_named(options.scheme)
    work = seen.work.clone()
    plan = make_plan(work, types_of(seen.facts), options.exclude, scheme, seen.masked)
    statistics = {name: seen.statistics[name] for name in plan.observed}
    moved, unmet = 0, tuple[str, ...]()
    if scheme.power_of_two:
        histograms = {n: s for n, s in statistics.items() if isinstance(s, Histogram)}
        refined = refine(plan.steps, choose_positions(plan, histograms))
        parameters = parameters_of_positions(plan, refined.positions)
        moved, unmet = refined.moved, refined.unmet
    else:
        parameters = choose_scales(
            plan,
            statistics,
            method=options.method,
            ranges=options.ranges,
            symmetric=options.symmetric,
            wide=options.wide,
        )
    per_channel = scheme.per_channel if options.per_channel is None else options.per_channel
    constants = round_constants(
        plan,
        parameters,
        seen.moments if options.rounding == "compensated" else {},
        per_channel=per_channel and opset_of(work) >= WANTED_OPSET,
        correct_bias=options.correct_bias,
    )
    return Decided(work, plan, constants, options.exclude, moved, unmet)


def finish(
    model: ir.Model,
    seen: Seen,
    options: Options,
    progress: Progress = no_progress,
    *,
    details: bool = False,
) -> Quantized:
    """Choose, round, rewrite a copy and compare it with `model`."""
    decided = decide(seen, options)
    share = eight_bit_share(decided.plan, decided.constants.parameters)
    statistics = {name: seen.statistics[name] for name in decided.plan.observed}
    described = tensor_details(decided.plan, decided.constants, statistics) if details else ()
    crowded = low_resolution_tensors(decided.plan, decided.constants, statistics)
    inner = write(decided)
    work = decided.work
    progress("compare", 0, 2)
    outputs, layers = compare_both(
        seen.outputs or model, seen.layers, seen.work, work, seen.facts, seen.kept
    )
    progress("compare", 2, 2)
    return Quantized(
        model=work,
        scheme=options.scheme,
        samples=seen.count,
        own_samples=seen.own_samples,
        held_out=seen.held_out,
        inner=inner,
        outputs=outputs,
        layers=layers,
        options=options,
        eight_bit_share=share,
        moved=decided.moved,
        unmet=decided.unmet,
        crowded=crowded,
        details=described,
    )


def write(decided: Decided) -> tuple[InnerNode, ...]:
    """Rewrite the copy; the plan no longer fits it then. Return what the plan did not reach."""
    constants = decided.constants
    write_plan(decided.work, decided.plan, constants.parameters, constants.integers)
    return round_inner_weights(decided.work, decided.exclude)


def types_of(facts: Mapping[str, TensorFacts]) -> dict[str, ir.DataType]:
    """Return the element types alone."""
    return {name: fact.data_type for name, fact in facts.items()}


def touched(plan: Plan, types: Mapping[str, ir.DataType]) -> tuple[str, ...]:
    """Return all tensors that would have to be seen if any of the plan's nodes became float."""
    found = dict.fromkeys(plan.observed)
    for node in plan.nodes:
        for value in (*node.inputs, *node.outputs):
            if value is not None and types.get(str(value.name)) == ir.DataType.FLOAT:
                found[str(value.name)] = None
    return tuple(found)


def _needs_histogram(scheme: Scheme, options: Options) -> bool:
    methods = {options.method or own_method(scheme), *options.ranges.values()}
    return scheme.power_of_two or methods != {"minmax"}


def _length(samples: object) -> int:
    """Return how many samples there will be, 0 where only reading them tells."""
    return len(samples) if hasattr(samples, "__len__") else 0
