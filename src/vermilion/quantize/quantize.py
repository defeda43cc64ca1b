"""The way from a float model and samples to a quantized model and what it costs in accuracy."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import common

from vermilion.errors import ModelError, OptionError
from vermilion.ir.execute import Array
from vermilion.ir.measure import Agreement
from vermilion.progress import Progress, no_progress
from vermilion.quantize.algorithms.equalize import equalize_layers
from vermilion.quantize.calibrate import Calibrator, observe, tensor_facts
from vermilion.quantize.choose import choose_positions
from vermilion.quantize.feeds import checked, input_slots
from vermilion.quantize.formats import scheme_named
from vermilion.quantize.operators import QUANTIZED_OPERATORS
from vermilion.quantize.plan import make_plan
from vermilion.quantize.refine import refine
from vermilion.quantize.report import LayerError, compare_layers, compare_outputs
from vermilion.quantize.rewrite import write_plan

# QuantizeLinear came with opset 10.
_OLDEST_OPSET = 10

# Samples on which outputs and layers are compared. The int8 model runs two to three times slower
# than the float one on a CPU (its int8 bias keeps ONNX Runtime from fusing), so not on all.
OUTPUT_SAMPLES = 8
LAYER_SAMPLES = 2


@dataclass(frozen=True)
class Quantized:
    """A quantized model, and how far it is from the original.

    `outputs` and `layers` were measured on the first samples. `moved` scales were made coarser to
    fit the NPU's shifters; at the nodes in `unmet` its limits still do not hold.
    """

    model: ir.Model
    scheme: str
    samples: int
    outputs: tuple[Agreement, ...]
    layers: tuple[LayerError, ...]
    moved: int = 0
    unmet: tuple[str, ...] = ()


def quantize_model(
    model: ir.Model,
    samples: Iterable[Mapping[str, Array]],
    *,
    scheme: str = "xint8",
    equalize: bool = False,
    exclude: Sequence[str] = (),
    progress: Progress = no_progress,
) -> Quantized:
    """Give `model` with rounded weights and activations; `model` itself stays as it is.

    `exclude` names nodes that stay in float, `*` matching anything. `samples` are read once, one
    at a time.

    Raises: OptionError for samples or options that do not fit; ModelError for a model that is
    quantized already, or one that gives NaN; UnsupportedError where nothing can be quantized.
    """
    formats = scheme_named(scheme)
    work = _working_copy(model)
    feeds = checked(samples, input_slots(work))
    first = next(feeds, None)
    if first is None:
        raise OptionError(
            "there is no calibration data", hint="give at least one sample; 32 or more are usual"
        )
    facts = tensor_facts(work, first)
    if equalize:
        equalize_layers(work)
    plan = make_plan(work, {name: fact.data_type for name, fact in facts.items()}, exclude)
    calibrator = Calibrator(work, plan.observed, facts)
    kept: list[dict[str, Array]] = []
    count = observe(
        calibrator,
        _keeping(itertools.chain([first], feeds), kept),
        total=_length(samples),
        progress=progress,
    )
    refined = refine(plan.steps, choose_positions(plan, calibrator.histograms, formats))
    del calibrator  # its sessions hold a sample's tensors and their own copy of the weights
    reference = work.clone()
    write_plan(work, plan, refined.positions, formats)
    progress("compare", 0, 2)
    outputs = compare_outputs(model, work, kept)
    progress("compare", 1, 2)
    layers = compare_layers(reference, work, facts, kept[:LAYER_SAMPLES])
    progress("compare", 2, 2)
    return Quantized(work, scheme, count, outputs, layers, refined.moved, refined.unmet)


def _working_copy(model: ir.Model) -> ir.Model:
    """Give a copy whose constants are all initializers and whose names are all unique."""
    opset = model.opset_imports.get("", 0)
    found = next((n for n in model.graph.all_nodes() if n.op_type in QUANTIZED_OPERATORS), None)
    if found is not None:
        raise ModelError(
            "the model is quantized already",
            where=f"node `{found.name}`, operator `{found.op_type}`",
            hint="quantize the float model it was made from",
        )
    if opset < _OLDEST_OPSET:
        raise ModelError(
            f"opset {opset} has no operators for quantized tensors",
            hint=f"convert the model to opset 17 first ({_OLDEST_OPSET} is the oldest possible)",
        )
    work = model.clone()
    common.RemoveInitializersFromInputsPass()(work)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(work)
    common.NameFixPass()(work)
    return work


def _keeping(
    samples: Iterator[dict[str, Array]], kept: list[dict[str, Array]]
) -> Iterator[dict[str, Array]]:
    """Pass samples on and keep the first few for the report."""
    for sample in samples:
        if len(kept) < OUTPUT_SAMPLES:
            kept.append(sample)
        yield sample


def _length(samples: object) -> int:
    """Give how many samples there will be, 0 where only reading them tells."""
    return len(samples) if hasattr(samples, "__len__") else 0
