"""One use of a value: the node and the operand, and what is known around it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from vermilion.ir.samples.facts import (
    Facts,
    Shape,
    attribute_or,
    operand,
)
from vermilion.ir.samples.values import Floats, SampleKind


@dataclass(frozen=True)
class Use:
    """An operand of a node, for a sample of some kind; `random` is the same for all uses."""

    node: ir.Node
    at: int
    facts: Facts
    kind: SampleKind
    attempt: int
    random: np.random.Generator

    @property
    def at_ends(self) -> bool:
        """Whether the ends of what is legal are asked for, negative indices among them."""
        return self.kind == "edges" and self.attempt % 2 == 0

    def shape(self, at: int) -> Shape | None:
        """Return the shape of an operand, None where its rank is not known."""
        return self.facts.shape(operand(self.node, at))

    def static(self, at: int) -> tuple[int, ...] | None:
        """Return the sizes of an operand where all are known."""
        return self.facts.static(operand(self.node, at))

    def rank(self, at: int) -> int | None:
        """Return the rank of an operand where it is known."""
        shape = self.shape(at)
        return None if shape is None else len(shape)

    def own_count(self) -> int:
        """Return how many elements the operand has; one where nobody knows."""
        sizes = self.static(self.at)
        return 1 if sizes is None else math.prod(sizes)

    def own_sizes(self) -> tuple[int, ...]:
        """Return the operand's sizes; one element where nobody knows."""
        sizes = self.static(self.at)
        return (1,) if sizes is None else sizes

    def certain(self, at: int) -> Floats | None:
        """Return an operand's elements where all are known."""
        return self.facts.certain(operand(self.node, at))

    def partial(self) -> Floats:
        """Return what is known of the operand's elements, as a vector with NaN for the rest."""
        found = self.facts.values(operand(self.node, self.at))
        return np.full(self.own_count(), np.nan) if found is None else found.ravel()

    def integer(self, name: str, default: int) -> int:
        """Return an attribute of the node."""
        return attribute_or(self.node, name, default)

    def size(self, at: int, axis: int) -> int | None:
        """Return one size of an operand, where it is known."""
        shape = self.shape(at)
        if shape is None or not -len(shape) <= axis < len(shape):
            return None
        return shape[axis]

    def has(self, at: int) -> bool:
        """Say whether the node has this operand."""
        return operand(self.node, at) is not None

    def is_integer(self, at: int) -> bool:
        """Say whether an operand's elements are integers; those of unknown type may be."""
        value = operand(self.node, at)
        return value is not None and (value.dtype is None or value.dtype.is_integer())

    def is_all_that_reads_an_input(self) -> bool:
        """Say whether the operand is an input of the model that nothing else reads."""
        value = operand(self.node, self.at)
        return value is not None and value.is_graph_input() and len(value.uses()) == 1

    def declared(self) -> Shape:
        """Return the sizes that the file declares for the node's first output, None for open ones.

        They may lie; then the sample is drawn again.
        """
        shape = self.node.outputs[0].shape if self.node.outputs else None
        if shape is None:
            return ()
        return tuple(s if isinstance(s, int) and s > 0 else None for s in shape.dims)
