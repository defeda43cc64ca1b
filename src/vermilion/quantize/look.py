"""What the samples show of a float model: all that choosing and rounding needs of them."""

from __future__ import annotations

import difflib
import fnmatch
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import length_hint

import onnx_ir as ir

from vermilion.errors import OptionError
from vermilion.ir.execute import Array
from vermilion.progress import Progress
from vermilion.quantize.addends import join_biases
from vermilion.quantize.algorithms.attention import ease_attention, score_products
from vermilion.quantize.algorithms.equalize import equalize_layers
from vermilion.quantize.algorithms.even import even_out
from vermilion.quantize.algorithms.layers import layers_of, recurrences_of
from vermilion.quantize.algorithms.migrate import migrate
from vermilion.quantize.algorithms.moments import Moments, MomentsObserver
from vermilion.quantize.bodies import (
    Given,
    Inside,
    plans_of,
)
from vermilion.quantize.calibrate import (
    Calibrator,
    Counter,
    OutputKeeper,
    Statistics,
    TensorFacts,
    observe,
    tensor_facts,
    types_of,
)
from vermilion.quantize.dpu import hard_sigmoids
from vermilion.quantize.feeds import checked, input_slots
from vermilion.quantize.formats import Scheme, scheme_named
from vermilion.quantize.hold_out import HeldOut, drained, some_held_out
from vermilion.quantize.masks import Scores, masked_inputs
from vermilion.quantize.observe import Histogram, Range
from vermilion.quantize.options import Options
from vermilion.quantize.plan import Plan, excluded_nodes
from vermilion.quantize.report import LayerKeeper
from vermilion.quantize.result import LAYER_SAMPLES, OUTPUT_SAMPLES
from vermilion.quantize.scales import own_method
from vermilion.quantize.working_copy import OLDEST_QUANTIZED_OPSET, working_copy

# Outputs of one sample that are kept rather than computed again, at most.
_KEPT_BYTES = 16 * 1024 * 1024

COUNTED_EVERY = 4
"""Of the values of large tensors, where the scale is a power of two: one group in so many."""

# Samples that show which channels lie far out, and where their mean is.
_EARLY_SAMPLES = 8


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
    inside: Mapping[int, Mapping[str, Inside]] = field(default_factory=dict)  # by body and tensor


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
    scheme = scheme_of(options)
    work = working_copy(model, OLDEST_QUANTIZED_OPSET)
    if options.dpu:
        hard_sigmoids(work)
    feeds = checked(samples, input_slots(work))
    first = next(feeds, None)
    if first is None:
        raise OptionError(
            "there is no calibration data", hint="give at least one sample; 32 or more are usual"
        )
    some = [first]
    if options.migrate or (rewrites(options, scheme) and score_products(work.graph)):
        some += itertools.islice(feeds, _EARLY_SAMPLES - 1)
        feeds = itertools.chain(some[1:], feeds)
    if options.equalize:
        equalize_layers(work)
    if options.migrate:
        migrate(work, some)
    if rewrites(options, scheme):
        _ease(work, some, options)
    facts = tensor_facts(work, first)
    _check_named(options, facts)
    masked = masked_inputs(first)
    plan, inner = plans_of(work, facts, options, scheme, masked)
    given = Given.of(work, facts, inner, first)
    observed = touched(plan, types_of(facts)) if histograms else plan.observed
    every = COUNTED_EVERY if scheme.power_of_two and not histograms else 1
    spreads = histograms or scheme.has_fine_steps or bool(options.wide)
    counted = histograms or _needs_histogram(scheme, options)

    def counting() -> Statistics:
        return Histogram(every, spreads=spreads) if counted else Range()

    statistics = {name: counting() for name in observed}
    counters: dict[str, Counter] = {
        name: Scores(seen, plan.scores[name]) if name in plan.scores else seen
        for name, seen in statistics.items()
    }
    inside = {
        number: {name: Inside(counting()) for name in names}
        for number, names in given.inside.items()
    }
    for number, names in given.inside.items():
        counters |= {outside: inside[number][name] for name, outside in names.items()}
    compensated = options.rounding == "compensated"
    layers_seen = [*layers_of(plan.nodes), *recurrences_of(work.graph)] if compensated else []
    moments = MomentsObserver(layers_seen)
    feeds = itertools.chain([first], feeds)
    compared, ahead = some_held_out(feeds, length_hint(samples), held)
    kept = compared or list(itertools.islice(ahead, OUTPUT_SAMPLES))
    outputs = OutputKeeper(_kept_outputs(model, work, facts, options), len(kept))
    layers = LayerKeeper(_layers(work, statistics), min(LAYER_SAMPLES, len(kept)))
    calibrator = Calibrator(given.model, counters, given.facts, [moments], [outputs, layers])
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
        inside=inside,
    )


def _ease(work: ir.Model, samples: Sequence[Mapping[str, Array]], options: Options) -> None:
    """Write the graph with fewer tensors to round, and with some that are easier to round.

    What is named in the options keeps its name, and where kinds are, nodes keep their kind.
    """
    left_out = excluded_nodes(work.graph, options.without_integers)
    if not any(pattern.startswith(":") for pattern in options.without_integers):
        join_biases(work.graph, left_out)
    if score_products(work.graph):
        shapes = {name: fact.shape for name, fact in tensor_facts(work, samples[0]).items()}
        ease_attention(work, shapes, samples, left_out)
        even_out(work, shapes, samples)


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
    known = not (options.equalize or options.migrate or options.dpu) and all(
        name in facts and facts[name].elements is not None for name in names
    )
    if not known or sum(facts[name].size_bytes for name in names) > _KEPT_BYTES:
        return {}
    return names


def _layers(work: ir.Model, observed: Iterable[str]) -> list[str]:
    """Return the tensors among those `observed` that a node makes."""
    made = {str(value.name) for node in work.graph for value in node.outputs}
    return [name for name in observed if name in made]


def touched(plan: Plan, types: Mapping[str, ir.DataType]) -> tuple[str, ...]:
    """Return all tensors that would have to be seen if any of the plan's nodes became float."""
    found = dict.fromkeys(plan.observed)
    for node in plan.nodes:
        for value in (*node.inputs, *node.outputs):
            if value is not None and types.get(str(value.name)) == ir.DataType.FLOAT:
                found[str(value.name)] = None
    return tuple(found)


def rewrites(options: Options, scheme: Scheme) -> bool:
    """Say whether the float graph may become one that powers of two suit better.

    Not where another tool's file is asked for, which has the graph as it came.
    """
    return scheme.power_of_two and not (options.all_tensors or options.middle or options.dpu)


def scheme_of(options: Options) -> Scheme:
    """Return the scheme as the options want it."""
    scheme = scheme_named(options.scheme)
    also = ("HardSigmoid",) if options.dpu else ()
    return replace(scheme, all_tensors=options.all_tensors, also=also)


def _needs_histogram(scheme: Scheme, options: Options) -> bool:
    methods = {options.method or own_method(scheme), *options.ranges.values()}
    return scheme.power_of_two or methods != {"minmax"}


def _length(samples: object) -> int:
    """Return how many samples there will be, 0 where only reading them tells."""
    return len(samples) if hasattr(samples, "__len__") else 0
