"""What a decoder computes, as a list of operations on rows of activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.row import NormKind, Source
from vermilion.llm.engine.embedding import Embedding
from vermilion.llm.engine.matrices import Matrix

Floats = NDArray[np.float32]
AttentionPart = Literal["whole", "keys", "queries"]


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm: what it multiplies with, and what keeps it from dividing by 0.

    By the root of the mean square, or, of the kind `layer`, with the mean taken off before; then
    `bias` is added, if any.
    """

    weight: Floats
    epsilon: float
    kind: NormKind = "rms"
    bias: Floats | None = None


@dataclass(frozen=True, eq=False)
class Rotation:
    """Cosines and sines by position: (positions, half of the turned numbers).

    Where `short` is not 0, the first so many rows are for sequences of at most so many tokens, and
    those behind them, from position 0 again, for longer ones.
    """

    cosines: Floats
    sines: Floats
    short: int = 0

    @property
    def positions(self) -> int:
        """The longest sequence whose positions are there."""
        return len(self.cosines) - self.short


@dataclass(frozen=True, eq=False)
class Rows:
    """Columns of a buffer of rows, with what is still to be done to each head of them."""

    buffer: str
    offset: int
    width: int
    norm: Norm | None = None
    rotation: Rotation | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is the numbers as they lie there."""
        return self.norm is None and self.rotation is None


@dataclass(frozen=True)
class Columns:
    """Whole panels of the matrix of the product that gives `output`; of the last, what there is."""

    output: str
    first: int
    count: int


@dataclass(frozen=True, eq=False)
class Product:
    """`output = source · matrix + bias`, or some columns of that."""

    node: str
    source: Rows
    output: str
    matrix: Matrix
    bias: Floats | None = None
    columns: Columns | None = None


@dataclass(frozen=True, eq=False)
class RowOperation:
    """`kept = inputs joined by kind; output = norm(kept)`, or kept itself without a norm.

    `factor` is what the second of a sum is multiplied with.
    """

    node: str
    kind: Source
    inputs: tuple[Rows, ...]
    kept: str
    norm: Norm | None
    output: str
    factor: float = 1.0


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention of one layer over its cache. `window` 0 sees all; `bound` 0 bounds nothing.

    In two parts: first what is remembered of the keys and values, then the queries and all else.
    """

    node: str
    query: Rows
    key: Rows
    value: Rows
    output: str
    query_heads: int
    key_heads: int
    head_size: int
    scale: float
    window: int
    bound: float
    part: AttentionPart = "whole"


Operation = Product | RowOperation | Attention


@dataclass(frozen=True, eq=False)
class Description:
    """A whole decoder. The last operation is the head; what it reads is `hidden`."""

    embedding: Embedding
    first: str  # the buffer that the embedded rows are in
    operations: tuple[Operation, ...]
    hidden: Rows
    logits_bound: float
    vocabulary: int
    logits_factor: float = 1.0

    @property
    def body(self) -> tuple[Operation, ...]:
        """All but the head."""
        return self.operations[:-1]

    @property
    def head(self) -> Product:
        """The product that gives the logits."""
        last = self.operations[-1]
        assert isinstance(last, Product), "a decoder ends with its head"
        return last

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention of every layer, in order."""
        return tuple(one for one in self.operations if isinstance(one, Attention))
