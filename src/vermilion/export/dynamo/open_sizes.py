"""Sizes that a graph of `torch.compile` leaves open, as PyTorch names them.

Where dynamo makes a graph for many sizes, dimensions of its inputs are symbols, and those symbols
are also numbers among its arguments.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class OpenSizes:
    """Which sizes of a graph's arguments are open.

    `axes` are the names of open dimensions, by the tensor's position and the axis. `numbers` are
    arguments that are such a size: by position, where it is read of a tensor.
    """

    axes: Mapping[int, Mapping[int, str]] = field(default_factory=dict)
    numbers: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.axes)

    def of(self, position: int, shape: Sequence[int]) -> tuple[int | str, ...]:
        """Return a tensor's shape with the names of open dimensions in it."""
        names = self.axes.get(position, {})
        return tuple(names.get(axis, size) for axis, size in enumerate(shape))


NOTHING_OPEN = OpenSizes()


def open_sizes(module: torch.fx.GraphModule, constants: Collection[int]) -> OpenSizes:
    """Return what is open of a graph; `constants` are positions of arguments that do not change."""
    examples = [
        node.meta.get("example_value") for node in module.graph.nodes if node.op == "placeholder"
    ]
    names: dict[str, str] = {}
    axes: dict[int, dict[int, str]] = {}
    places: dict[str, tuple[int, int]] = {}
    for position, example in enumerate(examples):
        for axis, size in enumerate(getattr(example, "shape", ())):
            text = _symbol(size)
            if text is None or position in constants:
                continue
            # Only what is no more than a symbol has its name: formulas are sizes of their own.
            name = names.setdefault(text, text if text.isidentifier() else f"size_{len(names)}")
            axes.setdefault(position, {})[axis] = name
            places.setdefault(text, (position, axis))
    numbers = {
        position: places[text]
        for position, text in enumerate(map(_symbol, examples))
        if text is not None and text in places
    }
    return OpenSizes(axes, numbers)


def _symbol(size: object) -> str | None:
    """Return how a size is written that PyTorch leaves open, None for what is no such size."""
    import torch

    if not isinstance(size, torch.SymInt):
        return None
    expression: Any = size.node.expr
    return None if expression.is_number else str(expression)


def with_sizes_of_tensors(module: torch.fx.GraphModule, sizes: OpenSizes) -> torch.fx.GraphModule:
    """Return a graph that reads open sizes of its tensors, for exporters that follow those.

    Before → after: `y = x.view(s0, 12)` → `size = x.size(0); y = x.view(size, 12)`.
    """
    import torch

    if not sizes.numbers:
        return module
    graph = copy.deepcopy(module.graph)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for number, (position, axis) in sizes.numbers.items():
        if inputs[number].users:
            with graph.inserting_before(first):
                size = graph.call_method("size", (inputs[position], axis))
            inputs[number].replace_all_uses_with(size)
    return torch.fx.GraphModule(module, graph)
