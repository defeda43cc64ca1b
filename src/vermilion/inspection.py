"""What is in a model and where its nodes would run, without compiling anything."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from vermilion.api import backends_for, predicted_ms
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import Target
from vermilion.ir.cost import ModelCost, model_cost
from vermilion.ir.execute import complete_types
from vermilion.ir.load import load_model
from vermilion.ir.numbers import data_type_words, number_format
from vermilion.ir.ops import elements
from vermilion.ir.passes.bind_dimensions import Dimensions, open_dimensions
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.passes.report import PassStep
from vermilion.partition.place import Placement, plan, settle
from vermilion.progress import Progress, no_progress
from vermilion.runtime.digest import model_digest
from vermilion.runtime.manifest import TensorRecord, tensor_record
from vermilion.runtime.summarize import summarize
from vermilion.runtime.summary import Summary


@dataclass(frozen=True)
class OperatorShare:
    """How often an operator occurs and how much of the work it is."""

    op_type: str
    count: int
    gops: float


@dataclass(frozen=True)
class Prediction:
    """Where nodes would run on a target. `milliseconds` is modelled, None where it cannot be."""

    target: Target
    placement: Placement
    summary: Summary
    milliseconds: float | None


@dataclass(frozen=True)
class Inspection:
    """What is in a model. Operators and GOPs are those of the simplified graph."""

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

    def as_json(self) -> dict[str, object]:
        """Give the keys of `inspect --json`."""
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
                "predicted_ms": self.prediction.milliseconds,
                "predicted_is": "modelled",
            }
        return data


def inspect_model(
    model: str | os.PathLike[str] | ir.Model,
    *,
    target: str | None = None,
    dims: Dimensions | None = None,
    progress: Progress = no_progress,
) -> Inspection:
    """Look into a model; with a target, also say where every node would run and why.

    Raises: VermilionError of the kind that says who can mend it.
    """
    chosen = find_target(target) if target else None
    source = load_model(model) if not isinstance(model, ir.Model) else model
    label = "(in memory)" if isinstance(model, ir.Model) else str(Path(model).resolve())
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
        prediction=_predict(simplified.model, chosen, label) if chosen else None,
    )


def _predict(model: ir.Model, target: Target, label: str) -> Prediction:
    device_backend, cpu_backend, _ = backends_for(target)
    placement = settle(plan(model, target, device_backend, cpu_backend), {})
    summary = summarize(model, placement, label, model_digest(model))
    return Prediction(target, placement, summary, predicted_ms(model, placement))


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
