"""What a model costs: operations and bytes, node by node, before anything is run."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from vermilion.ir.ops import elements, find_operator
from vermilion.ir.opset import bodies_of


@dataclass(frozen=True)
class NodeCost:
    """What one node costs.

    Units: `operations` counts a multiply-accumulate as two; bytes are read and written once each,
    weights and activations, as if nothing stayed in a cache.
    """

    name: str
    op_type: str
    operations: int
    weight_bytes: int
    activation_bytes: int
    priced: bool  # the operator has a row in the table
    exact: bool  # every shape that the count needed is known

    @property
    def gops(self) -> float:
        """Operations in units of 10^9."""
        return self.operations / 1e9


@dataclass(frozen=True)
class ModelCost:
    """What a model costs: the sum of its nodes."""

    nodes: tuple[NodeCost, ...]

    @property
    def operations(self) -> int:
        """Operations of the whole model."""
        return sum(node.operations for node in self.nodes)

    @property
    def gops(self) -> float:
        """Operations in units of 10^9."""
        return self.operations / 1e9

    @property
    def exact(self) -> bool:
        """Whether every shape was known; if not, the figures are lower bounds."""
        return all(node.exact for node in self.nodes)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Operators that the table has no row for; they count as 0."""
        return tuple(sorted({node.op_type for node in self.nodes if not node.priced}))


def value_bytes(value: ir.Value | None) -> int:
    """Return the bytes of a value; unknown dimensions count 1, an unknown type 4 bytes."""
    if value is None:
        return 0
    dtype = value.dtype
    bits = 32 if dtype is None or dtype == ir.DataType.STRING else dtype.bitwidth
    return (elements(value) * bits + 7) // 8


def node_cost(node: ir.Node) -> NodeCost:
    """Return the cost of one node, its subgraphs included."""
    operator = find_operator(node)
    operations = operator.rule(node) if operator else 0
    branches = [sum(node_cost(inner).operations for inner in graph) for graph in bodies_of(node)]
    if branches:
        # An If runs one branch, a Loop its body at least once for the count to say anything.
        operations += max(branches) if node.op_type == "If" else sum(branches)
    constants = [v for v in node.inputs if v is not None and v.const_value is not None]
    flowing = [v for v in node.inputs if v is not None and v.const_value is None]
    flowing += node.outputs
    return NodeCost(
        name=node.name or "",
        op_type=node.op_type,
        operations=operations,
        weight_bytes=sum(value_bytes(v) for v in constants),
        activation_bytes=sum(value_bytes(v) for v in flowing),
        priced=operator is not None,
        exact=all(_is_static(v) for v in flowing if v.name != ""),
    )


def model_cost(model: ir.Model) -> ModelCost:
    """Return the cost of every node of the main graph. Constants are data, not operators."""
    return ModelCost(tuple(node_cost(n) for n in model.graph if n.op_type != "Constant"))


def _is_static(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(d, int) for d in value.shape.dims)
