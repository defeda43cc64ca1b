"""A graph of `torch.compile` with some of its inputs as constants and some of its outputs."""

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


def _put(user: torch.fx.Node, node: torch.fx.Node, value: Any) -> None:
    """Put a number in the place of a node among another's arguments."""
    from torch.fx.node import map_arg

    user.args = map_arg(user.args, lambda found: value if found is node else found)
    user.kwargs = map_arg(user.kwargs, lambda found: value if found is node else found)
