"""Einsum as the product that it is, where it is one of two tensors: what products get, it gets.

Before → after, for labels that are in both and summed over (k), in both and kept (b), or in one:
    Einsum(x, W, "btk,kn->btn")     → MatMul(x, W)
    Einsum(x, W, "btk,khd->bthd")   → Reshape(MatMul(x, W as (K, H·D)))
    Einsum(x, W, "bthd,hdn->btn")   → MatMul(Reshape(x), W as (H·D, N))
    Einsum(q, k, "bhid,bhjd->bhij") → MatMul(q, Transpose(k))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from vermilion.ir.attributes import text
from vermilion.quantize.names import Names


def plain_einsums(work: ir.Model) -> None:
    """Write each such Einsum as a product; change `work` in place."""
    names = Names(work.graph)
    for graph in work.graphs():
        for node in list(graph):
            if node.op_type == "Einsum" and node.domain in ("", "ai.onnx"):
                _rewrite(graph, node, names.within(graph))


@dataclass(frozen=True)
class _Roles:
    """The labels of a product of two tensors."""

    left: str
    right: str
    result: str

    @property
    def shared(self) -> str:
        return "".join(c for c in self.left if c in self.right and c in self.result)

    @property
    def summed(self) -> str:
        return "".join(c for c in self.left if c in self.right and c not in self.result)

    @property
    def rows(self) -> str:
        return "".join(c for c in self.left if c not in self.right)

    @property
    def columns(self) -> str:
        return "".join(c for c in self.right if c not in self.left)


def _roles(equation: str) -> _Roles | None:
    """Read an equation; None where it is no product of two tensors without sums of one."""
    words = equation.replace(" ", "")
    terms, arrow, result = words.partition("->")
    left, comma, right = terms.partition(",")
    if not (arrow and comma) or "." in words or "," in right:
        return None
    if any(len(set(term)) != len(term) for term in (left, right, result)):
        return None
    roles = _Roles(left, right, result)
    if not roles.summed or set(roles.rows + roles.columns + roles.shared) != set(result):
        return None
    return roles


def _rewrite(graph: ir.Graph, node: ir.Node, names: Names) -> None:
    roles = _roles(text(node, "equation", ""))
    if roles is None or len(node.inputs) != 2:
        return
    left, right = node.inputs
    if left is None or right is None:
        return
    if left.const_value is not None and right.const_value is None:
        left, right = right, left
        roles = _Roles(roles.right, roles.left, roles.result)
    steps = _Steps(graph, node, names)
    made = (
        _by_weight(steps, left, right, roles)
        if right.const_value is not None
        else _by_tensor(steps, left, right, roles)
    )
    if made is not None:
        steps.replace(made)


class _Steps:
    """The nodes that an Einsum becomes."""

    def __init__(self, graph: ir.Graph, node: ir.Node, names: Names) -> None:
        self.graph, self.node, self.names = graph, node, names
        self.made: list[ir.Node] = []

    def add(self, op_type: str, *inputs: ir.Value, **attributes: Sequence[int]) -> ir.Value:
        name = self.names.free(f"{self.node.name}_{op_type}")
        node = ir.node(op_type, list(inputs), attributes, name=name)
        result = node.outputs[0]
        result.name = self.names.free(f"{self.node.outputs[0].name}_{op_type}")
        result.type = self.node.outputs[0].type
        self.made.append(node)
        return result

    def turned(self, value: ir.Value, labels: str, wanted: str) -> ir.Value:
        if labels == wanted:
            return value
        found = self.add("Transpose", value, perm=[labels.index(c) for c in wanted])
        if value.shape is not None:
            found.shape = ir.Shape([value.shape[labels.index(c)] for c in wanted])
        return found

    def reshaped(self, value: ir.Value, sizes: Sequence[int]) -> ir.Value:
        shape = self.names.constant(f"{self.node.name}_shape", np.asarray(sizes, np.int64))
        return self.add("Reshape", value, shape)

    def replace(self, made: ir.Value) -> None:
        result = self.node.outputs[0]
        made.type, made.shape = result.type, result.shape
        self.graph.insert_after(self.node, self.made)
        for use in tuple(result.uses()):
            use.node.replace_input_with(use.idx, made)
        for place, output in enumerate(self.graph.outputs):
            if output is result:
                self.graph.outputs[place] = made
        read = [value for value in self.node.inputs if value is not None]
        self.graph.remove(self.node, safe=True)
        made.name = result.name
        for value in read:
            owner = value.graph
            if isinstance(owner, ir.Graph) and value.is_initializer() and not value.uses():
                owner.initializers.pop(str(value.name), None)


def _by_weight(steps: _Steps, left: ir.Value, right: ir.Value, roles: _Roles) -> ir.Value | None:
    """Multiply with a constant whose labels are all its own or summed over."""
    assert right.const_value is not None, "it is a constant"
    if roles.shared or not (roles.rows and roles.columns):
        return None
    array = right.const_value.numpy()
    size = dict(zip(roles.right, array.shape, strict=True))
    order = [roles.right.index(c) for c in roles.summed + roles.columns]
    depth = int(np.prod([size[c] for c in roles.summed]))
    matrix = np.ascontiguousarray(array.transpose(order).reshape(depth, -1))
    weight = right
    if matrix.shape != array.shape or order != sorted(order):
        weight = steps.names.constant(f"{right.name}_matrix", matrix)
    rows = steps.turned(left, roles.left, roles.rows + roles.summed)
    kept = [0] * len(roles.rows)
    if len(roles.summed) > 1:
        rows = steps.reshaped(rows, [*kept, depth])
    made = steps.add("MatMul", rows, weight)
    if len(roles.columns) > 1:
        made = steps.reshaped(made, [*kept, *(size[c] for c in roles.columns)])
    return steps.turned(made, roles.rows + roles.columns, roles.result)


def _by_tensor(steps: _Steps, left: ir.Value, right: ir.Value, roles: _Roles) -> ir.Value | None:
    """Multiply two computed tensors, one label of each kind but those that both keep."""
    if not len(roles.summed) == len(roles.rows) == len(roles.columns) == 1:
        return None
    a = steps.turned(left, roles.left, roles.shared + roles.rows + roles.summed)
    b = steps.turned(right, roles.right, roles.shared + roles.summed + roles.columns)
    made = steps.add("MatMul", a, b)
    return steps.turned(made, roles.shared + roles.rows + roles.columns, roles.result)
