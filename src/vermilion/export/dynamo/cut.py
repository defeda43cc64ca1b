"""Graphs of `torch.compile` rewritten: inputs as constants, some of the outputs, no numbers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def cut(
    module: torch.fx.GraphModule, constants: Mapping[int, Any], outputs: Sequence[int]
) -> torch.fx.GraphModule:
    """Return a copy of `module` that computes `outputs`, a tuple in that order.

    `constants` are the values of inputs by position; tensors are shared, not copied. The other
    inputs stay, also where nothing reads them.
    """
    import torch

    graph = copy.deepcopy(module.graph)
    made = torch.fx.GraphModule(module, graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for position, value in constants.items():
        node = placeholders[position]
        if isinstance(value, torch.Tensor):
            name = f"constant_{position}"
            made.register_buffer(name, value)
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.get_attr(name))
        else:
            for user in list(node.users):
                _put(user, node, value)
        graph.erase_node(node)
    end = next(node for node in graph.nodes if node.op == "output")
    end.args = (tuple(end.args[0][number] for number in outputs),)
    graph.eliminate_dead_code()
    made.recompile()
    return made


def number_positions(module: torch.fx.GraphModule) -> tuple[int, ...]:
    """Return which arguments are floats of Python's that a program is compiled for.

    Dynamo passes such a float on as a tensor. What is only computed with may stay one; an operator
    that takes a number (the epsilon of a normalization) has it in its code.
    """
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    return tuple(
        position
        for position, node in enumerate(nodes)
        if any(_is_item(one) and not _is_computed_with(one) for one in node.users)
    )


def with_tensors_for_numbers(
    module: torch.fx.GraphModule, arguments: Sequence[Any]
) -> torch.fx.GraphModule:
    """Return a graph without floats of Python's: tensors, or the numbers that they are now.

    Before → after: `item = s.item(); y = x * item` → `to = s.to(torch.float32); y = x * to`.
    A tensor of one number changes no data type of others; float64 stays where others have it.
    What is at `number_positions` becomes a constant.
    """
    import torch

    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    numbers = [node for node in module.graph.nodes if _is_item(node)]
    if not numbers:
        return module
    others = (one for node, one in zip(nodes, arguments, strict=True) if node.users)
    kinds = {one.dtype for one in others if isinstance(one, torch.Tensor) and one.dim()}
    kind = torch.float64 if torch.float64 in kinds else torch.get_default_dtype()
    graph = copy.deepcopy(module.graph)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    fixed = {inputs[at]: arguments[at].item() for at in number_positions(module)}
    for node in [node for node in graph.nodes if _is_item(node)]:
        source = node.args[0]
        if source in fixed:
            for user in list(node.users):
                _put(user, node, fixed[source])
        else:
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.call_method("to", (source, kind)))
        graph.erase_node(node)
    return torch.fx.GraphModule(module, graph)


def _is_item(node: torch.fx.Node) -> bool:
    if node.op != "call_method" or node.target != "item":
        return False
    return bool(node.args[0].op == "placeholder")


def _is_computed_with(node: torch.fx.Node) -> bool:
    """Say whether all that reads a number are operators of Python's, which take a tensor too."""
    return all(
        user.op == "call_function" and getattr(user.target, "__module__", "") == "_operator"
        for user in node.users
    )


def _put(user: torch.fx.Node, node: torch.fx.Node, value: Any) -> None:
    """Put a number in the place of a node among another's arguments."""
    from torch.fx.node import map_arg

    user.args = map_arg(user.args, lambda found: value if found is node else found)
    user.kwargs = map_arg(user.kwargs, lambda found: value if found is node else found)
