"""Schemes without scales for activations: bfloat16 and its kin, blocks, 4-bit weights, dynamic."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import length_hint

import onnx_ir as ir

from vermilion.errors import OptionError, UnsupportedError
from vermilion.ir.cost import node_cost
from vermilion.ir.execute import Array, run_session
from vermilion.progress import Progress
from vermilion.quantize.addends import join_biases, plain_products
from vermilion.quantize.algorithms.layers import LONGEST, layers_of
from vermilion.quantize.algorithms.moments import ALL_ROWS, Moments, MomentsObserver
from vermilion.quantize.calibrate import (
    Calibrator,
    TensorFacts,
    observe,
    open_fetching,
    tensor_facts,
)
from vermilion.quantize.cost import PRODUCTS
from vermilion.quantize.dynamic import dynamic_products, write_dynamic
from vermilion.quantize.feeds import checked, input_slots
from vermilion.quantize.float_weights import settle_weights
from vermilion.quantize.floats import float_nodes, write_floats
from vermilion.quantize.formats import (
    DynamicScheme,
    FloatScheme,
    Scheme,
    WeightScheme,
    any_scheme_named,
)
from vermilion.quantize.hold_out import HeldOut, drained, some_held_out
from vermilion.quantize.inner import named_inner
from vermilion.quantize.options import Options
from vermilion.quantize.plan import excluded_nodes
from vermilion.quantize.report import LayerError, compare_layers, compare_outputs
from vermilion.quantize.result import LAYER_SAMPLES, OUTPUT_SAMPLES, Quantized
from vermilion.quantize.weight_only import BLOCKED_OPSET, products_of, write_weights
from vermilion.quantize.working_copy import OLDEST_QUANTIZED_OPSET, WANTED_OPSET, working_copy

OtherScheme = FloatScheme | WeightScheme | DynamicScheme

_WORST_SQNR_SAMPLES = 2

# Weights in 16 bits take so few errors over that more samples show nothing. (Ten networks of
# `bench/ten_networks_bench.py`, 64 against these: within 0.2 dB.)
_FLOAT_SAMPLES = 32

# Numbers in a block of a row, at most: what is left of a block's errors does not cancel with the
# next one's. Of these the largest is taken whose second moments fit into so much memory.
_LONGEST = (2048, 1024, 512, LONGEST)
_MOMENTS_BYTES = 1 << 30


@dataclass(frozen=True)
class SeenOther:
    """All that is known of a model once the samples have passed.

    The samples `kept` are those that results are compared on; `held_out` of them were not
    calibrated on.
    """

    work: ir.Model
    scheme: OtherScheme
    facts: Mapping[str, TensorFacts]
    moments: Mapping[str, Moments]
    kept: Sequence[dict[str, Array]]
    held_out: int
    count: int

    def worst_first(self, made: ir.Model, options: Options) -> list[str]:
        """Return the names of the nodes that `options` round, those that add most noise first."""
        rows = _layers(self.work, made, self.facts, self.kept[:_WORST_SQNR_SAMPLES])
        noise = {row.name: 10.0 ** (-row.sqnr_db / 10.0) for row in rows}
        added: dict[str, float] = {}
        for node in _rounded(self.work, self.scheme, self.facts, options):
            makers = (v.producer() for v in node.inputs if v is not None)
            before = max((noise.get(str(m.name), 0.0) for m in makers if m is not None), default=0)
            added[str(node.name)] = noise.get(str(node.name), 0.0) - before
        return sorted(added, key=lambda name: -added[name])


def quantize_other(
    model: ir.Model,
    samples: Iterable[Mapping[str, Array]],
    options: Options,
    progress: Progress,
) -> Quantized:
    """Return `model` in one of these schemes, compared with the original on a few samples."""
    return finish_other(model, look_other(model, samples, options, progress), options)


def look_other(
    model: ir.Model,
    samples: Iterable[Mapping[str, Array]],
    options: Options,
    progress: Progress,
    *,
    held: HeldOut | None = None,
) -> SeenOther:
    """Run the samples through the float model as far as the scheme needs them.

    With `held`, `samples` fills it on the way with what is held out.
    """
    scheme = any_scheme_named(options.scheme)
    assert not isinstance(scheme, Scheme), "integer schemes have a way of their own"
    work = working_copy(model, _oldest(scheme))
    if isinstance(scheme, WeightScheme):
        plain_products(work)
    elif isinstance(scheme, FloatScheme) and scheme.all_tensors and not _names_kinds(options):
        join_biases(work.graph, excluded_nodes(work.graph, options.exclude))
    feeds = checked(samples, input_slots(work))
    first = next(feeds, None)
    if first is None:
        raise OptionError("there is no sample to verify the result with", hint="give one or more")
    facts = tensor_facts(work, first)
    feeds = itertools.chain([first], feeds)
    if isinstance(scheme, FloatScheme) and not scheme.all_tensors:
        _learn_ranks(work, first)
        # Nothing is calibrated, so that any samples do.
        kept = list(itertools.islice(feeds, OUTPUT_SAMPLES))
        count = len(kept) + (sum(1 for _ in feeds) if held is not None else 0)
        return SeenOther(work, scheme, facts, {}, kept, len(kept), count)
    compared, ahead = some_held_out(feeds, length_hint(samples), held)
    kept = compared or list(itertools.islice(ahead, OUTPUT_SAMPLES))
    nodes = _rounded(work, scheme, facts, Options(scheme=scheme.name))
    moments = _moments_of(nodes, scheme, options)
    calibrator = Calibrator(work, {}, facts, [moments])
    stream = itertools.chain(drained(ahead), feeds)
    if isinstance(scheme, FloatScheme):
        some = 0 if options.rounding == "nearest" else _FLOAT_SAMPLES
        count = observe(calibrator, itertools.islice(stream, some), total=some, progress=progress)
        count += sum(1 for _ in stream) if held is not None else 0
    else:
        count = observe(calibrator, stream, total=0, progress=progress)
    if held is None:
        count += len(compared)
    return SeenOther(work, scheme, facts, moments.by_weight, kept, len(compared), count)


def _names_kinds(options: Options) -> bool:
    """Say whether nodes keep their kind, as options name some by it."""
    return any(pattern.startswith(":") for pattern in options.exclude)


def _learn_ranks(work: ir.Model, sample: Mapping[str, Array]) -> None:
    """Note the shapes of what products read and inference does not tell, as of a Loop.

    How long the axis is that they sum over has to be the same for all samples: where inputs have
    fixed shapes, or the other tensor is a constant.
    """
    fixed = all(v.shape is not None and v.shape.is_static() for v in work.graph.inputs)
    read = {
        str(value.name): value
        for node in work.graph
        if node.op_type in PRODUCTS
        if fixed or any(v is not None and v.const_value is not None for v in node.inputs[:2])
        for value in node.inputs[:2]
        if value is not None and value.const_value is None
        if value.shape is None or not value.shape.is_static()
    }
    if read:
        found = run_session(open_fetching(work, list(read)), sample)
        for name, value in read.items():
            value.shape = ir.Shape(found[name].shape)


def _oldest(scheme: OtherScheme) -> int:
    """Return the oldest opset that can hold a scheme."""
    if isinstance(scheme, DynamicScheme):
        return 11  # DynamicQuantizeLinear
    if isinstance(scheme, WeightScheme):
        return OLDEST_QUANTIZED_OPSET
    return 9 if scheme.number == "fp16" else WANTED_OPSET


def _moments_of(nodes: Sequence[ir.Node], scheme: OtherScheme, options: Options) -> MomentsObserver:
    if options.rounding != "compensated":
        return MomentsObserver(())
    if not isinstance(scheme, WeightScheme):
        return MomentsObserver(layers_of(nodes))
    # Of 4 bits most errors remain, and only whole rows show which of them cancel.
    found = MomentsObserver(())
    for longest in _LONGEST:
        found = MomentsObserver(layers_of(nodes, longest), ALL_ROWS)
        if sum(moments.size_bytes for moments in found.different()) <= _MOMENTS_BYTES:
            break
    return found


def make_other(seen: SeenOther, options: Options) -> tuple[ir.Model, float]:
    """Return the model in the scheme, and the part of all operations that its nodes have."""
    scheme, work = seen.scheme, seen.work.clone()
    share = _share(work, _rounded(work, scheme, seen.facts, options))
    moments = seen.moments if options.rounding == "compensated" else {}
    if isinstance(scheme, FloatScheme):
        types = {name: fact.data_type for name, fact in seen.facts.items()}
        if moments:
            settle_weights(_rounded(work, scheme, seen.facts, options), moments, scheme.number)
        write_floats(work, scheme, types, options.exclude)
    elif isinstance(scheme, DynamicScheme):
        per_channel = options.per_channel is not False
        nodes = _products(work, scheme, options)
        write_dynamic(work, nodes, scheme, moments, per_channel=per_channel)
    else:
        if not scheme.fused:
            work = _raised(work, BLOCKED_OPSET)
        write_weights(work, _products(work, scheme, options), scheme, options.block, moments)
    return work, share


def finish_other(model: ir.Model, seen: SeenOther, options: Options) -> Quantized:
    """Quantize, and compare with `model`."""
    work, _ = make_other(seen, options)
    return Quantized(
        work,
        seen.scheme.name,
        seen.count,
        compare_outputs(model, work, seen.kept),
        _layers(seen.work, work, seen.facts, seen.kept[:LAYER_SAMPLES]),
        options,
        held_out=seen.held_out,
        inner=named_inner(work.graph),
    )


def _products(
    work: ir.Model, scheme: WeightScheme | DynamicScheme, options: Options
) -> list[ir.Node]:
    if isinstance(scheme, DynamicScheme):
        return dynamic_products(work, options.exclude)
    return products_of(work, options.exclude, options.block)


def _rounded(
    work: ir.Model, scheme: OtherScheme, facts: Mapping[str, TensorFacts], options: Options
) -> list[ir.Node]:
    if isinstance(scheme, FloatScheme):
        types = {name: fact.data_type for name, fact in facts.items()}
        return float_nodes(work.graph, scheme, types, options.exclude)
    return _products(work, scheme, options)


def _share(work: ir.Model, nodes: Sequence[ir.Node]) -> float:
    costs = {node: node_cost(node).operations for node in work.graph if node.op_type != "Constant"}
    total = sum(costs.values())
    return sum(costs[node] for node in nodes) / total if total else 0.0


def _layers(
    reference: ir.Model,
    work: ir.Model,
    facts: Mapping[str, TensorFacts],
    kept: Sequence[dict[str, Array]],
) -> tuple[LayerError, ...]:
    there = {str(value.name) for node in work.graph for value in node.outputs}
    shared = {name: fact for name, fact in facts.items() if name in there}
    return compare_layers(reference, work, shared, kept)


def _raised(work: ir.Model, opset: int) -> ir.Model:
    """Return the model at a newer opset; the copy is converted in place where that is possible."""
    from onnxscript import version_converter

    if work.graph.opset_imports.get("", 0) >= opset:
        return work
    try:
        version_converter.convert_version(work, opset, fallback=True)
    except Exception as error:  # the converter's C++ asserts come as RuntimeError and others
        raise UnsupportedError(
            f"onnx cannot convert this model to opset {opset}",
            hint="take the scheme without `-qdq`, which needs opset 17 only",
        ) from error
    if work.graph.opset_imports.get("", 0) < opset:
        raise UnsupportedError(
            f"the model stays below opset {opset}, which weights in blocks need",
            hint="take the scheme without `-qdq`, which needs opset 17 only",
        )
    return work
