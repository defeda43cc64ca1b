"""What is in a model and where its nodes would run, without compiling anything."""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx_ir as ir

from vermilion.backends.npu_cost import Latency
from vermilion.backends.npu_rules import CAUTIONS, column_of
from vermilion.errors import Refusal, VermilionError
from vermilion.hardware.targets.find import all_targets, find_target
from vermilion.hardware.targets.target import Target
from vermilion.ir.cost import ModelCost, model_cost, value_bytes
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.literal.run import check_runs
from vermilion.ir.literal.types import complete_types
from vermilion.ir.numbers import data_type_words, number_format
from vermilion.ir.ops import elements
from vermilion.ir.passes.bind_dimensions import Dimensions, open_dimensions
from vermilion.ir.passes.fixes import fix_simplified
from vermilion.ir.passes.pipeline import Simplified, simplify
from vermilion.ir.passes.rewrite import PassStep
from vermilion.ir.samples import sample_inputs
from vermilion.ir.source import ModelSource, label_of, open_source
from vermilion.partition.place import Placement, plan, settle
from vermilion.progress import Progress, no_progress
from vermilion.runtime.build import backends_for, predicted_latency
from vermilion.runtime.digest import model_digest
from vermilion.runtime.failing import CulpritFile, find_culprits
from vermilion.runtime.manifest import TensorRecord
from vermilion.runtime.summarize import summarize
from vermilion.runtime.summary import Summary
from vermilion.runtime.write import tensor_record

EVERY_TARGET = "all"
"""The target that stands for every NPU."""

# Beyond this a run takes seconds, which nobody who looks into a model waits for.
_MEASURED_GOPS = 50.0
_MEASURED_RUNS = 5
_MEASURED_S = 1.0


@dataclass(frozen=True)
class OperatorShare:
    """How often an operator occurs and how much of the work it is."""

    op_type: str
    count: int
    gops: float


@dataclass(frozen=True)
class Crossings:
    """What passes between device and CPU parts in one run, there and back."""

    tensors: int
    bytes: int


@dataclass(frozen=True)
class FixGain:
    """What `--fix` would change: the fixes that fire, and what is offloaded with them."""

    fixes: tuple[str, ...]
    offloaded_operators: int
    operators: int
    offloaded_gops: float
    milliseconds: float | None
    interval_ms: list[float] | None = None


@dataclass(frozen=True)
class Prediction:
    """Where nodes would run on a target.

    `latency` is modelled; where it cannot be, `no_latency` is why.
    """

    target: Target
    placement: Placement
    summary: Summary
    latency: Latency | None = None
    no_latency: str = ""
    crossings: Crossings | None = None
    fix: FixGain | None = None
    cautions: tuple[str, ...] = ()

    @property
    def milliseconds(self) -> float | None:
        """The modelled latency; its interval is in `latency`."""
        return self.latency.total_ms if self.latency else None

    def plan_as_json(self) -> dict[str, object]:
        """Return the keys that are about planning, beside summary and nodes."""
        return {
            "predicted_ms": self.milliseconds,
            "predicted_interval_ms": _interval(self.latency),
            "predicted_reason": self.no_latency,
            "predicted_is": "modelled",
            "latency": self.latency.as_json() if self.latency else None,
            "crossings": asdict(self.crossings) if self.crossings else None,
            "fix": asdict(self.fix) if self.fix else None,
            "cautions": list(self.cautions),
        }


@dataclass(frozen=True)
class Inspection:
    """What is in a model. Operators and GOPs are those of the simplified graph.

    `nodes_before` were in the graph as it came. `cost` has the operations of each node, `operators`
    their sums by type. `prediction` is of the target that was asked for, `predictions` of every
    NPU; `cpu_ms` is measured.
    """

    path: str
    opset: int
    producer: str
    number_format: str
    data_type: str
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    parameters: int
    weight_bytes: int
    nodes_before: int
    open_dimensions: tuple[str, ...]
    cost: ModelCost
    operators: tuple[OperatorShare, ...]
    passes: tuple[PassStep, ...]
    prediction: Prediction | None
    predictions: tuple[Prediction, ...] = ()  # of every NPU, for the target `all`
    cpu_ms: float | None = None  # measured here, through ONNX Runtime

    def as_json(self) -> dict[str, object]:
        """Return the keys of `inspect --json`."""
        data: dict[str, object] = {
            "model": self.path,
            "opset": self.opset,
            "producer": self.producer,
            "number_format": self.number_format,
            "data_type": self.data_type,
            "inputs": [_tensor_row(tensor) for tensor in self.inputs],
            "outputs": [_tensor_row(tensor) for tensor in self.outputs],
            "parameters": self.parameters,
            "weight_bytes": self.weight_bytes,
            "nodes_before": self.nodes_before,
            "operators": len(self.cost.nodes),
            "gops": self.cost.gops,
            "gops_exact": self.cost.exact,
            "open_dimensions": list(self.open_dimensions),
            "unpriced_operators": list(self.cost.unpriced),
            "op_types": [
                {"op_type": o.op_type, "count": o.count, "gops": o.gops} for o in self.operators
            ],
            "passes": [
                {"name": s.name, "fired": s.fired, "refused": len(s.refusals)} for s in self.passes
            ],
        }
        if self.prediction is not None:
            data |= {
                "target": self.prediction.target.name,
                "summary": self.prediction.summary.as_json(),
                "nodes": [node.as_json() for node in self.prediction.placement.nodes],
                **self.prediction.plan_as_json(),
            }
        if self.predictions:
            data["targets"] = [
                {"target": p.target.name, "summary": p.summary.as_json(), **p.plan_as_json()}
                for p in self.predictions
            ]
        if self.cpu_ms is not None:
            data |= {"cpu_ms": self.cpu_ms, "cpu_is": "measured"}
        return data


def inspect_model(
    model: ModelSource,
    *,
    target: str | None = None,
    dims: Dimensions | None = None,
    measure_cpu: bool = False,
    progress: Progress = no_progress,
) -> Inspection:
    """Look into a model; with a target, also say where every node would run and why.

    Args:
        model: an ONNX file, its bytes, an `onnx.ModelProto`, or a graph of `onnx_ir`.
        target: what it would be compiled for, as in `compile_model`; `all` stands for every NPU.
        dims: values for symbolic dimensions (`{"batch": 1}`) or whole inputs.
        measure_cpu: also time the model on this machine's CPU, where it is small enough.
        progress: told of each step.

    Raises: VermilionError of the kind that says who can fix it.
    """
    npus = tuple(t for t in all_targets() if t.kind == "npu") if target == EVERY_TARGET else ()
    chosen = find_target(target) if target and not npus else None
    source = open_source(model)
    label = label_of(model)
    simplified = simplify(source, dims=dims, progress=progress)
    complete_types(simplified.model)
    graph = simplified.model.graph
    cost = model_cost(simplified.model)
    weights = [value for value in graph.initializers.values() if value.const_value is not None]
    return Inspection(
        path=label,
        opset=source.opset_imports.get("", 0),
        producer=f"{source.producer_name or 'unknown'} {source.producer_version or ''}".strip(),
        number_format=number_format(simplified.model),
        data_type=data_type_words(simplified.model),
        inputs=tuple(tensor_record(v) for v in graph.inputs if v.name not in graph.initializers),
        outputs=tuple(tensor_record(v) for v in graph.outputs),
        parameters=sum(elements(value) for value in weights),
        weight_bytes=sum(v.const_value.nbytes for v in weights if v.const_value is not None),
        nodes_before=len(source.graph),
        open_dimensions=open_dimensions(simplified.model),
        cost=cost,
        operators=_shares(cost),
        passes=simplified.steps,
        prediction=_predict(simplified, chosen, label) if chosen else None,
        predictions=tuple(_predict(simplified, npu, label) for npu in npus),
        cpu_ms=_cpu_ms(simplified.model, cost) if measure_cpu else None,
    )


def bisect_model(
    model: ModelSource,
    *,
    target: str,
    folder: str | os.PathLike[str],
    dims: Dimensions | None = None,
    fix: bool = False,
    backend: str | None = None,
    progress: Progress = no_progress,
) -> tuple[CulpritFile, ...]:
    """Write the smallest model that fails to compile for each part that does, into `folder`.

    Raises: VermilionError of the kind that says who can fix it.
    """
    chosen = find_target(target)
    device_backend, cpu_backend, _ = backends_for(chosen, backend or "")
    source = open_source(model)
    simplified = simplify(source, dims=dims, progress=progress)
    if fix and chosen.kind == "npu":
        simplified = fix_simplified(simplified, chosen.limits.max_batch, progress)
    complete_types(simplified.model)
    backends = (device_backend, cpu_backend)
    placed = _as_placed(simplified.model, chosen)
    return find_culprits(placed, chosen, backends, Path(folder), progress=progress)


def _predict(simplified: Simplified, target: Target, label: str) -> Prediction:
    model = _as_placed(simplified.model, target)
    placement = _placement(model, target)
    digest = model_digest(model)
    summary = summarize(model, placement, label, digest)
    if target.kind != "npu":
        return Prediction(target, placement, summary)
    latency = predicted_latency(model, placement)
    return Prediction(
        target=target,
        placement=placement,
        summary=summary,
        latency=latency if isinstance(latency, Latency) else None,
        no_latency=latency.reason if isinstance(latency, Refusal) else "",
        crossings=_crossings(placement),
        fix=_fix_gain(simplified, target, summary, label),
        cautions=_cautions(placement),
    )


def _as_placed(model: ir.Model, target: Target) -> ir.Model:
    """Return the model without what the target does by itself."""
    from vermilion.runtime.block_numbers import settled_numbers

    return settled_numbers(model, target, "auto")[0]


def _placement(model: ir.Model, target: Target) -> Placement:
    device_backend, cpu_backend, _ = backends_for(target)
    return settle(plan(model, target, device_backend, cpu_backend), {})


def _interval(latency: Latency | None) -> list[float] | None:
    return None if latency is None else [latency.low_ms, latency.high_ms]


def _cautions(placement: Placement) -> tuple[str, ...]:
    mine = {node.op_type for node in placement.nodes if node.device == placement.target.kind}
    return tuple(text for op_type, text in CAUTIONS.items() if op_type in mine)


def _crossings(placement: Placement) -> Crossings:
    """Count the tensors that a part reads from a part on another device, once a reader."""
    made: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for part in placement.parts:
        for value in part.model.graph.outputs:
            made[value.name or ""] = part.device
            sizes[value.name or ""] = value_bytes(value)
    crossing = [
        value.name or ""
        for part in placement.parts
        for value in part.model.graph.inputs
        if made.get(value.name or "", part.device) != part.device
    ]
    return Crossings(len(crossing), sum(sizes[name] for name in crossing))


def _fix_gain(
    simplified: Simplified, target: Target, before: Summary, label: str
) -> FixGain | None:
    """Try the fixes where something is left to gain; None where they gain nothing."""
    takes_numbers = column_of(number_format(simplified.model)) in target.formats
    if before.offloaded_operators == before.operators or not takes_numbers:
        return None
    fixed = fix_simplified(simplified, target.limits.max_batch)
    fired = tuple(
        step.name.removeprefix("fix ")
        for step in fixed.steps[len(simplified.steps) :]
        if step.fired and not step.name.endswith("compare-outputs")
    )
    if not fired:
        return None
    model = _as_placed(fixed.model, target)
    placement = _placement(model, target)
    after = summarize(model, placement, label, model_digest(model))
    if after.offloaded_operators <= before.offloaded_operators:
        return None
    found = predicted_latency(model, placement)
    latency = found if isinstance(found, Latency) else None
    return FixGain(
        fixes=fired,
        offloaded_operators=after.offloaded_operators,
        operators=after.operators,
        offloaded_gops=after.offloaded_gops,
        milliseconds=latency.total_ms if latency else None,
        interval_ms=_interval(latency),
    )


def _cpu_ms(model: ir.Model, cost: ModelCost) -> float | None:
    """Time the model here, the median of a few runs; None for what is large or has open sizes."""
    if cost.gops > _MEASURED_GOPS or open_dimensions(model):
        return None
    try:
        inputs = sample_inputs(model)
        check_runs(model, inputs)
        session = open_session(model, quiet=True, bounded=True)
        run_session(session, inputs, bounded=True)
        times: list[float] = []
        for _ in range(_MEASURED_RUNS):
            if sum(times) > _MEASURED_S:
                break
            begin = time.perf_counter()
            run_session(session, inputs, bounded=True)
            times.append(time.perf_counter() - begin)
    except VermilionError:
        return None
    return 1e3 * statistics.median(times)


def _shares(cost: ModelCost) -> tuple[OperatorShare, ...]:
    counts: Counter[str] = Counter(node.op_type for node in cost.nodes)
    operations: Counter[str] = Counter()
    for node in cost.nodes:
        operations[node.op_type] += node.operations
    rows: Sequence[OperatorShare] = [
        OperatorShare(name, count, operations[name] / 1e9) for name, count in counts.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.gops, -row.count, row.op_type)))


def _tensor_row(tensor: TensorRecord) -> dict[str, object]:
    return {"name": tensor.name, "type": tensor.type, "shape": tensor.shape and list(tensor.shape)}
