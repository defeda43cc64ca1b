"""Names that are free in a graph, and constants under them."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray


class Names:
    """What is taken in a graph that is being rewritten, and in all branches and bodies in it."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._taken: set[str] = set()
        for each in (graph, *graph.subgraphs()):
            self._taken |= {str(v.name) for v in (*each.inputs, *each.initializers.values())}
            self._taken |= {str(value.name) for node in each for value in node.outputs}
            self._taken |= {str(node.name) for node in each}

    def within(self, graph: ir.Graph) -> Names:
        """Return the same names for a branch or body, which gets the constants."""
        inner = copy(self)
        inner._graph = graph
        return inner

    def free(self, wanted: str) -> str:
        """Return `wanted`, or with a number where a tensor has that name already."""
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name

    def constant(
        self, wanted: str, array: NDArray[Any], dtype: ir.DataType | None = None
    ) -> ir.Value:
        """Add an initializer under a free name."""
        name = self.free(wanted)
        tensor = ir.Tensor(np.asarray(array, order="C"), dtype=dtype, name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
        value.const_value = tensor
        self._graph.register_initializer(value)
        return value
