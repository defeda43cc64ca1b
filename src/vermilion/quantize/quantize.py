"""The way from a float model and samples to a quantized model and what it costs in accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Unpack

import numpy as np
import onnx_ir as ir

from vermilion.errors import OptionError
from vermilion.ir.execute import Array
from vermilion.ir.opset import opset_of
from vermilion.memory import old_objects_left_alone
from vermilion.progress import Progress, no_progress
from vermilion.quantize.algorithms.attention import score_products
from vermilion.quantize.algorithms.fill import Factors, fill
from vermilion.quantize.algorithms.moments import Moments
from vermilion.quantize.bodies import (
    bodies_of,
    plans_of,
    types_within,
    without_unseen,
)
from vermilion.quantize.calibrate import (
    Statistics,
)
from vermilion.quantize.choose import (
    choose_positions,
    parameters_of_positions,
    position_for_histogram,
)
from vermilion.quantize.constants import Constants, round_constants
from vermilion.quantize.cost import eight_bit_share
from vermilion.quantize.dpu import write_dpu
from vermilion.quantize.floats import write_narrow_nodes
from vermilion.quantize.formats import Scheme, any_scheme_named, scale_of
from vermilion.quantize.inner import InnerNode, round_inner_weights
from vermilion.quantize.look import Seen, look, rewrites, scheme_of
from vermilion.quantize.low_resolution import low_resolution_tensors
from vermilion.quantize.observe import Histogram
from vermilion.quantize.options import Options, Settings, make_options
from vermilion.quantize.other_schemes import quantize_other
from vermilion.quantize.plan import Plan, excluded_nodes, plan_graph
from vermilion.quantize.refine import refine
from vermilion.quantize.report import compare_both
from vermilion.quantize.result import Quantized, tensor_details
from vermilion.quantize.rewrite import write_plan
from vermilion.quantize.scales import choose_scales
from vermilion.quantize.widen import widened
from vermilion.quantize.working_copy import WANTED_OPSET

# A step of scores, at most: one of this size alone makes weights of a Softmax wrong by 7 % (√(1/12)
# of it, as a factor), -23 dB; the next larger one by 14 %.
_COARSEST_SCORES = 0.25


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
class Decided:
    """A copy of the float graph, and all that will be written into it."""

    work: ir.Model
    plan: Plan
    constants: Constants
    options: Options
    moved: int = 0
    unmet: tuple[str, ...] = ()
    inside: tuple[tuple[ir.Graph, Plan, Constants], ...] = ()  # branches and bodies
    statistics: Mapping[str, Statistics] = field(default_factory=dict)  # of the plan's tensors
    factors: Factors = field(default_factory=Factors)
    moments: Mapping[str, Moments] = field(default_factory=dict)


def decide(seen: Seen, options: Options) -> Decided:
    """Choose all scales and round all constants."""
    scheme = scheme_of(options)
    work = seen.work.clone()
    plan, inner = plans_of(work, seen.facts, options, scheme, seen.masked)
    if rewrites(options, scheme):
        plan = _without_wide_scores(work, seen, plan, options)
    moments = seen.moments if options.rounding == "compensated" else {}
    by_channel = opset_of(work) >= WANTED_OPSET
    statistics = {name: seen.statistics[name] for name in plan.observed}
    factors = Factors()
    if rewrites(options, scheme):
        seen_so = {n: s for n, s in statistics.items() if isinstance(s, Histogram)}
        factors = fill(work.graph, plan, seen_so)
        statistics = {n: s.times(factors.of(n)) for n, s in seen_so.items()}
    constants, moved, unmet = _rounded(plan, statistics, options, moments, by_channel, factors)
    bodies = bodies_of(work.graph) if seen.inside else []
    excluded = excluded_nodes(work.graph, options.without_integers)
    inside = []
    for number in sorted(inner.keys() & seen.inside.keys()):
        known, graph = seen.inside[number], bodies[number].graph
        left_out = excluded | without_unseen(inner[number], known)
        here = plan_graph(graph, types_within(graph), left_out, scheme)
        if here.nodes:
            there = {name: known[name].inner for name in here.observed}
            inside.append((graph, here, _rounded(here, there, options, {}, by_channel)[0]))
    return Decided(
        work, plan, constants, options, moved, unmet, tuple(inside), statistics, factors, moments
    )


def _without_wide_scores(work: ir.Model, seen: Seen, plan: Plan, options: Options) -> Plan:
    """Leave the products in float whose scores eight bits cannot hold."""
    wide = []
    for name, (product, factor) in score_products(work.graph).items():
        histogram = seen.statistics.get(name) if name in plan.observed else None
        if isinstance(histogram, Histogram):
            position = position_for_histogram(histogram, plan.scheme.activation)
            if position is not None and factor * float(scale_of(position)) > _COARSEST_SCORES:
                wide.append(product)
    if not wide:
        return plan
    without = replace(options, exclude=(*options.exclude, *wide))
    narrower, _ = plans_of(work, seen.facts, without, plan.scheme, seen.masked)
    return narrower if seen.statistics.keys() >= set(narrower.observed) else plan


def _rounded(
    plan: Plan,
    statistics: Mapping[str, Statistics],
    options: Options,
    moments: Mapping[str, Moments],
    by_channel: bool,
    factors: Factors | None = None,
) -> tuple[Constants, int, tuple[str, ...]]:
    """Choose the scales of one graph and round its constants; say which scales had to move."""
    scheme = plan.scheme
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
            headroom=options.headroom,
        )
    per_channel = scheme.per_channel if options.per_channel is None else options.per_channel
    constants = round_constants(
        plan,
        parameters,
        moments,
        per_channel=per_channel and by_channel,
        correct_bias=options.correct_bias,
        factors=factors or Factors(),
    )
    if options.middle:
        activations = {str(value.name) for value in plan.activations}
        changed = {n: p.in_middle() for n, p in constants.parameters.items() if n in activations}
        constants = Constants(constants.integers, {**constants.parameters, **changed})
    return constants, moved, unmet


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
    share = eight_bit_share(decided.work.graph, decided.plan, decided.constants.parameters)
    statistics, factors = decided.statistics, decided.factors
    described = tensor_details(decided.plan, decided.constants, statistics) if details else ()
    crowded = low_resolution_tensors(decided.plan, decided.constants, statistics)
    inner = write(decided)
    work = decided.work
    progress("compare", 0, 2)
    kept = {n: [a * np.float32(factors.of(n)) for a in given] for n, given in seen.layers.items()}
    outputs, layers = compare_both(
        seen.outputs or model, kept, seen.work, work, seen.facts, seen.kept
    )
    progress("compare", 2, 2)
    factors.note_in(work)
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
    constants, options = decided.constants, decided.options
    narrow = excluded_nodes(decided.work.graph, options.bfloat)
    # The innermost first: an output that is rounded gives its name to the result.
    for graph, plan, own in reversed(decided.inside):
        write_plan(decided.work, plan, own.parameters, own.integers, graph)
    write_plan(decided.work, decided.plan, constants.parameters, constants.integers)
    if options.dpu:
        write_dpu(decided.work, decided.plan)
    inner = round_inner_weights(decided.work, options.without_integers, decided.moments)
    if narrow:
        write_narrow_nodes(decided.work, narrow, "bf16")
    return inner
