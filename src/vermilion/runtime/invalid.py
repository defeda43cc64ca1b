"""Models that no inputs can run: what ONNX Runtime says of them is an error, not a missing proof.

A model is let through unproven where nothing here can run it literally, or where no inputs could
be found that it takes. It is invalid where ONNX Runtime has what it needs and refuses the graph
itself, or refuses every run alike, whatever the inputs are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import onnx_ir as ir

from vermilion.backends.base import Array, Tensors
from vermilion.errors import ModelError, UnsupportedError, VermilionError
from vermilion.ir.literal.engine import NOT_OPTIMIZED, BehindError
from vermilion.ir.literal.run import LiteralModel
from vermilion.ir.opset import constant_of, static_shape

_HINT = "the model runs nowhere as it is: fix the node, or export the model again"
# What ONNX Runtime cannot do; another engine may.
_LACKING = re.compile(r"not.?(yet.?)?(implemented|supported)|unsupported", re.IGNORECASE)
# Data, which says nothing of sizes and places. Indices, sizes and conditions are other types.
_DATA = frozenset(
    {
        ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16,
        ir.DataType.INT8, ir.DataType.UINT8,
    }
)  # fmt: skip
# What data decides sizes in, or whether there is a result at all: from which input on.
_SIZED_BY_DATA = {"MelWeightMatrix": 3, "Range": 0, "Resize": 1, "Upsample": 1}


def check_valid(error: VermilionError) -> None:
    """Raise ModelError where a model does not open because its graph is invalid."""
    is_graph = type(error) is UnsupportedError and not isinstance(error, BehindError)
    if is_graph and re.search(r"INVALID_GRAPH|Type Error", error.message):
        raise ModelError(error.message, where=error.where, hint=_HINT) from error


@dataclass
class Runs:
    """Runs of a literal model, and what was said where it refused its inputs."""

    literal: LiteralModel
    # Type, message and place: an error itself would hold the arrays of the run that raised it.
    refused: list[tuple[type[VermilionError], str, str]] = field(default_factory=list)

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Run once. Raises: what the literal run raises."""
        try:
            return self.literal.run(inputs)
        except VermilionError as error:
            self.refused.append((type(error), error.message, error.where))
            raise

    def check_valid(self, model: ir.Model) -> None:
        """Raise ModelError where all inputs were refused for a reason that is not theirs.

        It is not theirs where each was refused in the same words, and the model takes nothing but
        data of fixed sizes.
        """
        if self.literal.engine != NOT_OPTIMIZED or not _takes_data_alone(model):
            return
        if len(self.refused) < 2 or len(set(self.refused)) > 1:
            return
        kind, message, place = self.refused[0]
        if kind is UnsupportedError and not _LACKING.search(message):
            raise ModelError(message, where=place, hint=_HINT)


def _takes_data_alone(model: ir.Model) -> bool:
    if any(map(_reads_data_as_sizes, model.graph.all_nodes())):
        return False
    return all(
        value.dtype in _DATA and static_shape(value) is not None for value in model.graph.inputs
    )


def _reads_data_as_sizes(node: ir.Node) -> bool:
    first = _SIZED_BY_DATA.get(node.op_type)
    return first is not None and any(
        value is not None and bool(value.name) and constant_of(value) is None
        for value in node.inputs[first:]
    )
