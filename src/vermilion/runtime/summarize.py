"""From a placement to the summary that is written beside the compiled parts."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.backends.npu_model import column_of
from vermilion.ir.numbers import data_type_words, number_format
from vermilion.partition.place import NodePlace, Placement
from vermilion.runtime.summary import Fallback, SubgraphStats, Summary
from vermilion.version import VERSION

# The vendor prints 7 whether the limit was reached or not; CPU targets have no limit to print.
_NO_LIMIT = 7


def summarize(model: ir.Model, placement: Placement, label: str, digest: str) -> Summary:
    """Count what was supported, offloaded and given back, in the vendor's terms.

    `digest` identifies the model; its first 32 digits stand where the vendor prints an MD5.
    """
    cost, target = placement.cost, placement.target
    supported = [node for node in placement.nodes if node.supported]
    offloaded = {
        c.name: placement.on_device(c.name) for c in placement.candidates if c.fate == "offloaded"
    }
    return Summary(
        model=label,
        model_signature=digest[:32],
        device=target.npu.summary_codes[0] if target.npu is not None else target.name,
        model_data_type=data_type_words(model),
        device_data_type=device_data_type(model, placement),
        operators=len(cost.nodes),
        gops=cost.gops,
        supported_operators=len(supported),
        supported_gops=_gops(supported),
        offloaded_operators=sum(len(nodes) for nodes in offloaded.values()),
        offloaded_gops=sum(_gops(nodes) for nodes in offloaded.values()),
        subgraphs_supported=len(placement.candidates),
        subgraphs_offloaded=len(offloaded),
        fallback=Fallback(
            compile_error=placement.count("compile_error"),
            below_gops_threshold=placement.count("below_gops_threshold"),
            above_max_subgraphs=placement.count("above_max_parts"),
        ),
        subgraphs=tuple(
            SubgraphStats(name, target.kind, len(nodes), _gops(nodes), _operations(nodes))
            for name, nodes in offloaded.items()
        ),
        threshold_gops_percent=target.limits.min_gops_percent,
        max_subgraphs=target.limits.max_parts or _NO_LIMIT,
        vaip_commit=f"none (vermilion {VERSION})",
    )


def device_data_type(model: ir.Model, placement: Placement) -> str:
    """Return the number format in which the device computes, in the vendor's words."""
    if placement.target.kind != "npu":
        return data_type_words(model)
    return "bfloat16" if column_of(number_format(model)) == "bf16" else "int8"


def _gops(nodes: list[NodePlace]) -> float:
    return _operations(nodes) / 1e9


def _operations(nodes: list[NodePlace]) -> int:
    return sum(node.operations for node in nodes)
