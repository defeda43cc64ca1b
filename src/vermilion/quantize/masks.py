"""Attention masks: numbers so low that a Softmax makes nothing of them.

As a range, -3.4e38 or -1e9 would leave the scores beside it a single step, and minus infinity none.
So what makes a mask, the sum that puts it on the scores, and the Softmax that reads the sum stay in
float: rows differ in their largest score, and one scale for all of them, down to where the lowest
row ends, would cost more than all else in the layer. Of what any other Softmax reads, only that
counts for its range which can matter: what is far below the largest of its row comes out as
nothing, wherever it is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.attributes import integer
from vermilion.ir.execute import Array
from vermilion.quantize.observe import Histogram, Range

MASKED = -1e3
"""A number as low as this, put on scores, is a mask: exp of it is zero in float32."""

# What all that is cut off in a row may weigh beside its largest, together: exp(-5), 0.7 %, which
# with the scores' own rounding in 8 bits is no more than they do to each other.
_LEAST_BELOW = 5.0

_MOVES = frozenset(
    {
        *("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Cast", "Expand", "Slice"),
        *("Flatten", "Tile", "Dropout"),
    }
)
# Of what masks are made; a number that is as low as a mask goes through these.
_MAKES_MASKS = _MOVES | {
    *("Add", "Sub", "Mul", "Where", "Min", "Max", "Clip", "Concat", "Gather", "Pad", "Trilu"),
    *("ConstantOfShape", "ScatterND", "ScatterElements", "GatherND", "Split", "Neg", "Range"),
}
_SUMS = frozenset({"Add", "Sub", "Mul", "Div"})
_BOUNDS = frozenset({"Max", "Min", "Clip"})


@dataclass(frozen=True)
class Masks:
    """What stays in float, and the tensors that a Softmax reads, with the axis that it sums over.

    Negative axes count from the end.
    """

    nodes: frozenset[ir.Node] = frozenset()
    scores: Mapping[str, int] = field(default_factory=dict)


def find_masks(graph: ir.Graph, given: Collection[str] = ()) -> Masks:
    """Find masks on the way into every Softmax; `given` are inputs of the graph that hold one."""
    search = _Search(frozenset(given))
    scores: dict[str, int] = {}
    for node, value, axis, softens in _softmax_inputs(graph):
        if search.walk(value):
            search.nodes.add(node)
        if softens:
            _add_scores(value, axis, scores)
    return Masks(frozenset(search.nodes), scores)


def _add_scores(value: ir.Value, axis: int, scores: dict[str, int]) -> None:
    """Add a tensor, and those that it was moved from, where nobody else reads them."""
    while not value.is_graph_output() and len({use.node for use in value.uses()}) == 1:
        scores[str(value.name)] = axis
        node = value.producer()
        source = node.inputs[0] if node is not None and node.op_type in _MOVES else None
        if source is None:
            return
        value, axis = source, -1


def masked_inputs(sample: Mapping[str, Array]) -> tuple[str, ...]:
    """Return the inputs whose numbers are a mask."""
    return tuple(
        name
        for name, array in sample.items()
        if array.dtype.kind == "f" and array.size and array.min() <= MASKED and array.max() <= 0.0
    )


def _softmax_inputs(graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Value, int, bool]]:
    """Yield who reads, what is read, the axis, and whether the lowest come out as nothing."""
    for node in graph:
        source = node.inputs[0] if node.inputs else None
        if source is None:
            continue
        if node.op_type in {"Softmax", "LogSoftmax"}:
            yield node, source, integer(node, "axis", -1), node.op_type == "Softmax"
        elif node.op_type == "Exp":
            shifted = source.producer()
            if shifted is None or shifted.op_type != "Sub" or len(shifted.inputs) < 2:
                continue
            largest = shifted.inputs[1]
            maker = None if largest is None else largest.producer()
            if maker is not None and maker.op_type == "ReduceMax" and shifted.inputs[0] is not None:
                yield node, shifted.inputs[0], -1, False


class _Search:
    """Walks up from what a Softmax reads."""

    def __init__(self, given: frozenset[str]) -> None:
        self._given = given
        self._known: dict[ir.Value, bool] = {}
        self._walked: dict[ir.Value, bool] = {}
        self.nodes: set[ir.Node] = set()

    def walk(self, value: ir.Value) -> bool:
        """Look for masks on a tensor of scores; say whether there is one."""
        if value not in self._walked:
            self._walked[value] = False
            self._walked[value] = self._find(value)
        return self._walked[value]

    def _find(self, value: ir.Value) -> bool:
        node = value.producer()
        if node is None or node.domain not in ("", "ai.onnx"):
            return False
        values = [v for v in node.inputs if v is not None]
        if node.op_type in _MOVES:
            found = bool(values) and self.walk(values[0])
        elif node.op_type in _SUMS | _BOUNDS | {"Where"}:
            masks = [v for v in values if self._is_mask(v)]
            for mask in masks:
                self._leave_in_float(mask)
            others = [v for v in values if v not in masks and v.const_value is None]
            found = any([bool(masks), *(self.walk(other) for other in others)])
        else:
            return False
        if found:
            self.nodes.add(node)
        return found

    def _is_mask(self, value: ir.Value) -> bool:
        """Say whether a tensor holds, or is made of, numbers as low as a mask's."""
        known = self._known.get(value)
        if known is None:
            self._known[value] = False  # while it is looked at
            known = self._known[value] = self._looks_like_mask(value)
        return known

    def _looks_like_mask(self, value: ir.Value) -> bool:
        if value.const_value is not None:
            return _is_low(value.const_value)
        node = value.producer()
        if node is None:
            return str(value.name) in self._given
        filled = node.attributes.get("value")
        if node.op_type == "ConstantOfShape" and filled is not None:
            return _is_low(filled.as_tensor())
        if node.op_type not in _MAKES_MASKS or node.domain not in ("", "ai.onnx"):
            return False
        return any(self._is_mask(v) for v in node.inputs if v is not None)

    def _leave_in_float(self, mask: ir.Value) -> None:
        node = mask.producer()
        if node is None or node in self.nodes:
            return
        self.nodes.add(node)
        for value in node.inputs:
            if value is not None and self._is_mask(value):
                self._leave_in_float(value)


def _is_low(tensor: ir.TensorProtocol) -> bool:
    if not tensor.dtype.is_floating_point() or not tensor.size:
        return False
    return bool(np.min(tensor.numpy()) <= MASKED)


class Scores:
    """Shows statistics of what a Softmax reads only the values that can matter."""

    def __init__(self, inner: Histogram | Range, axis: int) -> None:
        self._inner, self._axis = inner, axis

    def add(self, values: NDArray[np.float32]) -> bool:
        """Count `values`; say whether those that matter are finite."""
        if not values.size or not values.ndim:
            return self._inner.add(values)
        axis = self._axis if -values.ndim <= self._axis < values.ndim else -1
        top = values.max(axis=axis, keepdims=True)
        live = top > MASKED
        least = top - np.float32(_LEAST_BELOW + math.log(values.shape[axis]))
        cut = (values < least) | ~(live | np.isnan(top))
        if not cut.any():
            return self._inner.add(values)
        if live.any():
            self._inner.floor = min(self._inner.floor, float(least[live].min()))
        # Zero is in every range.
        return self._inner.add(np.where(cut, np.float32(0.0), values))
