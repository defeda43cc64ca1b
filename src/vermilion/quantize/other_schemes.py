"""Schemes without scales for activations: bfloat16 and its kin, blocks, 4-bit weights, dynamic."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from vermilion.errors import OptionError, UnsupportedError
from vermilion.ir.execute import Array
from vermilion.progress import Progress
from vermilion.quantize.algorithms.layers import layers_of
from vermilion.quantize.algorithms.moments import MomentsObserver
from vermilion.quantize.calibrate import Calibrator, TensorFacts, observe, tensor_facts
from vermilion.quantize.dynamic import dynamic_products, write_dynamic
from vermilion.quantize.feeds import checked, input_slots
from vermilion.quantize.floats import write_floats
from vermilion.quantize.formats import DynamicScheme, FloatScheme, WeightScheme
from vermilion.quantize.options import Options
from vermilion.quantize.report import LayerError, compare_layers, compare_outputs
from vermilion.quantize.result import LAYER_SAMPLES, OUTPUT_SAMPLES, Quantized
from vermilion.quantize.weight_only import BLOCKED_OPSET, products_of, write_weights
from vermilion.quantize.working_copy import keeping, working_copy


def quantize_other(
    model: ir.Model,
    samples: Iterable[Mapping[str, Array]],
    scheme: FloatScheme | WeightScheme | DynamicScheme,
    options: Options,
    progress: Progress,
) -> Quantized:
    """Return `model` in one of these schemes, compared with the original on the first samples."""
    work = working_copy(model)
    feeds = checked(samples, input_slots(work))
    first = next(feeds, None)
    if first is None:
        raise OptionError("there is no sample to verify the result with", hint="give one or more")
    facts = tensor_facts(work, first)
    kept: list[dict[str, Array]] = []
    stream = keeping(itertools.chain([first], feeds), kept)
    if isinstance(scheme, FloatScheme):
        count = sum(1 for _ in itertools.islice(stream, OUTPUT_SAMPLES))
        types = {name: fact.data_type for name, fact in facts.items()}
        reference = work.clone()
        write_floats(work, scheme, types, options.exclude)
    else:
        nodes = _products(work, scheme, options)
        moments = MomentsObserver(layers_of(nodes) if options.rounding == "compensated" else ())
        calibrator = Calibrator(work, {}, facts, [moments])
        count = observe(calibrator, stream, total=0, progress=progress)
        reference = work.clone()
        if isinstance(scheme, DynamicScheme):
            per_channel = options.per_channel is not False
            write_dynamic(work, nodes, scheme, moments.by_weight, per_channel=per_channel)
        else:
            if not scheme.fused:
                work = _raised(work, BLOCKED_OPSET)
                nodes = _products(work, scheme, options)
            write_weights(work, nodes, scheme, options.block, moments.by_weight)
    outputs = compare_outputs(model, work, kept)
    layers = _layers(reference, work, facts, kept)
    return Quantized(work, scheme.name, count, outputs, layers, options)


def _products(
    work: ir.Model, scheme: WeightScheme | DynamicScheme, options: Options
) -> list[ir.Node]:
    if isinstance(scheme, DynamicScheme):
        return dynamic_products(work, options.exclude)
    return products_of(work, options.exclude, options.block)


def _layers(
    reference: ir.Model,
    work: ir.Model,
    facts: Mapping[str, TensorFacts],
    kept: list[dict[str, Array]],
) -> tuple[LayerError, ...]:
    there = {str(value.name) for node in work.graph for value in node.outputs}
    shared = {name: fact for name, fact in facts.items() if name in there}
    return compare_layers(reference, work, shared, kept[:LAYER_SAMPLES])


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
