"""Bodies put in their place: of the model's own functions, and the branch that an If takes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
from onnx_ir.passes import common

from vermilion.ir.opset import constant_of, is_operator, where
from vermilion.ir.passes.fold_constants import fold_constants
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import Notes, learn_type
from vermilion.ir.passes.weights import lift_constants

MAX_NODES = 200_000
"""Functions that call functions can grow without bound: twenty doublings are a million nodes."""


def inline_functions(model: ir.Model, notes: Notes) -> None:
    """Before → after: `y = F(x)` → the nodes of `F`; fired counts the functions that went.

    PyTorch's exporter writes functions; no backend places a node that it cannot look into.
    """
    if not model.functions:
        return
    grown = _nodes_when_inlined(model)
    if grown is None:
        notes.refuse("model", "a function of the model calls itself")
        return
    if grown > MAX_NODES:
        notes.refuse("model", f"inlined, the model would have {grown} nodes")
        return
    before = len(model.functions)
    for function in model.functions.values():
        for domain, version in function.opset_imports.items():
            if model.graph.opset_imports.get(domain, version) != version:
                notes.refuse(
                    f"function `{function.name}`",
                    f"it speaks version {version} of `{domain or 'ai.onnx'}`, the model another",
                )
                return
    common.InlinePass()(model)
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    notes.fired += before - len(model.functions)


def _nodes_when_inlined(model: ir.Model) -> int | None:
    """Count nodes as they would be after inlining, None where a function calls itself."""
    sizes: dict[ir.OperatorIdentifier, int] = {}
    calls = {
        key: [node.op_identifier() for node in function.all_nodes()]
        for key, function in model.functions.items()
    }
    pending = [(key, False) for key in calls]
    active: set[ir.OperatorIdentifier] = set()
    while pending:
        key, called_done = pending.pop()
        if key in sizes:
            continue
        if called_done:
            active.discard(key)
            sizes[key] = sum(sizes.get(name, 1) for name in calls[key])
            continue
        if key in active:
            return None
        active.add(key)
        pending.append((key, True))
        inner = {name for name in calls[key] if name in calls and name not in sizes}
        if inner & active:
            return None
        pending.extend((name, False) for name in inner)
    return sum(sizes.get(node.op_identifier(), 1) for node in model.graph.all_nodes())


MAX_ROUNDS = 32
"""Of inlining and folding in turns: a branch may hold an If, or make the next condition known."""

_BRANCHES = ("then_branch", "else_branch")


def inline_branches(model: ir.Model, notes: Notes) -> None:
    """Before → after: `y = If<then, else>(true)` → the nodes of `then`, `y = Identity(result)`.

    Only in the main graph. What a branch computes may be a constant or have known sizes, so
    constants are folded after each round.
    """
    for _ in range(MAX_ROUNDS):
        decided = [(node, branch) for node, branch in _decided(model.graph) if branch is not None]
        if not decided:
            break
        for node, branch in decided:
            _inline(model.graph, node, branch)
            notes.fired += 1
        for follow_up in (lift_constants, infer_shapes, fold_constants):
            follow_up(model, Notes())
    for node, _ in _decided(model.graph):
        notes.refuse(where(node), "its condition is not known before running")


def _decided(graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Graph | None]]:
    """Yield every If and the branch that it takes, None where that is not known."""
    for node in graph:
        if is_operator(node, "If"):
            condition = constant_of(node.inputs[0]) if node.inputs else None
            branches = [node.attributes.get(name) for name in _BRANCHES]
            if condition is None or condition.size != 1 or None in branches:
                yield node, None
                continue
            taken = branches[0 if bool(condition.numpy().reshape(-1)[0]) else 1]
            branch = None if taken is None else taken.as_graph()
            fits = branch is not None and len(branch.outputs) == len(node.outputs)
            yield node, branch if fits else None


def _inline(graph: ir.Graph, node: ir.Node, branch: ir.Graph) -> None:
    results = list(branch.outputs)
    branch.outputs.clear()
    body = list(branch)
    branch.remove(body)
    weights = list(branch.initializers.values())
    branch.initializers.clear()
    _make_names_free(graph, [*weights, *(value for inner in body for value in inner.outputs)])
    for weight in weights:
        graph.register_initializer(weight)
    graph.insert_before(node, body)
    for output, result in zip(node.outputs, results, strict=True):
        name, output.name = output.name, None
        identity = ir.Node("", "Identity", [result], name=f"{node.name}/{name}")
        copy = identity.outputs[0]
        copy.name, copy.type, copy.shape = name, output.type, output.shape
        learn_type(copy, result)
        graph.insert_before(node, identity)
        output.replace_all_uses_with(copy, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    _forget(node)


def _forget(node: ir.Node) -> None:
    """Let go of what the branches that are left read of the outer graph."""
    for name in _BRANCHES:
        for inner in ir.traversal.RecursiveGraphIterator(node.attributes[name].as_graph()):
            for index in range(len(inner.inputs)):
                inner.replace_input_with(index, None)


def _make_names_free(graph: ir.Graph, values: list[ir.Value]) -> None:
    """Rename what has the name of a value of the graph: two branches may use the same names."""
    taken = {value.name for inner in graph for value in inner.outputs}
    taken |= {value.name for value in graph.inputs} | set(graph.initializers)
    for value in values:
        base, number = value.name, 0
        while value.name and value.name in taken:
            number += 1
            value.name = f"{base}_{number}"
        taken.add(value.name)
