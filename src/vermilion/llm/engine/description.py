"""What a decoder computes, as a list of operations on rows of activations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.routes import Routing
from vermilion.codegen.emit.decoder.row import NormKind, Source
from vermilion.codegen.emit.decoder.weights import LANES, BlockWeights, Weights
from vermilion.errors import UnsupportedError
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
    """Columns of a buffer of rows, with what is still to be done to each head of them.

    Heads are normed before they are turned, or after that.
    """

    buffer: str
    offset: int
    width: int
    norm: Norm | None = None
    rotation: Rotation | None = None
    is_normed_last: bool = False

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
    is_exact: bool = False  # in float32 whatever other products are computed in


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

    `sinks` are scores, one a query head, that take a share of the weights and give nothing.
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
    sinks: Floats | None = None


@dataclass(frozen=True, eq=False)
class Convolution:
    """A causal convolution over the last positions, each number on its own, between two gates.

    `output = after · (Σ_k taps[k] · (before · value) of k positions ago + bias)`; taps:
    (positions, width). In two parts: first what is remembered of `before · value`, then all else.
    """

    node: str
    before: Rows
    after: Rows
    value: Rows
    output: str
    taps: Floats
    bias: Floats | None = None
    part: AttentionPart = "whole"

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return int(self.taps.shape[1])


@dataclass(frozen=True, eq=False)
class ExpertMatrix:
    """The matrices of all experts, which have one form; biases: (experts, columns)."""

    matrices: tuple[Matrix, ...]
    bias: Floats | None = None

    @property
    def columns(self) -> int:
        """Columns of each."""
        return self.matrices[0].columns

    @property
    def depth(self) -> int:
        """Rows of each."""
        return self.matrices[0].parts[0].depth

    def form(self) -> Weights:
        """Return how each is packed.

        Raises: UnsupportedError where they are of several types.
        """
        forms = {one.form() for one in self.matrices}
        blocks = [one for one in forms if isinstance(one, BlockWeights)]
        if len(blocks) == len(forms) > 1:
            forms = {replace(one, scale="f32") for one in blocks}
        if len(forms) > 1:
            raise UnsupportedError("experts of one layer have weights of several types")
        return forms.pop()

    def pack(self, form: Weights, out: NDArray[np.uint8]) -> None:
        """Write the panels of all into `out`."""
        for at, one in enumerate(self.matrices):
            one.pack(form, out[at * form.size_bytes : (at + 1) * form.size_bytes])

    def joins(self, other: ExpertMatrix) -> bool:
        """Say whether both can be one product."""
        pairs = zip(self.matrices, other.matrices, strict=True)
        return self.columns % LANES == 0 and all(a.joins(b) for a, b in pairs)

    def joined(self, other: ExpertMatrix) -> ExpertMatrix:
        """Return both side by side."""
        pairs = zip(self.matrices, other.matrices, strict=True)
        bias = None
        if self.bias is not None or other.bias is not None:
            biases = [
                np.zeros((len(one.matrices), one.columns), np.float32)
                if one.bias is None
                else one.bias
                for one in (self, other)
            ]
            bias = np.concatenate(biases, axis=1)
        return ExpertMatrix(tuple(a.joined(b) for a, b in pairs), bias)


@dataclass(frozen=True, eq=False)
class Experts:
    """A mixture: what the experts that each row chooses give of it, summed by their weights.

    `scores` are the router's numbers. An expert multiplies with the matrices of `first` (what
    gates and what is gated, in one or in two), joins both by `kind`, and multiplies with `second`.
    `shared` is added, times the sigmoid of the first number of `share` if there is one.
    """

    node: str
    source: Rows
    scores: Rows
    output: str
    routing: Routing
    first: tuple[ExpertMatrix, ...]
    second: ExpertMatrix
    kind: Source
    choice_bias: Floats | None = None
    shared: Rows | None = None
    share: Rows | None = None

    @property
    def inner(self) -> int:
        """Numbers between the products of an expert."""
        return self.second.depth

    @property
    def is_joined(self) -> bool:
        """Whether what gates and what is gated are columns of one matrix."""
        return len(self.first) == 1 and self.first[0].columns == 2 * self.inner

    @property
    def products(self) -> tuple[tuple[str, ExpertMatrix], ...]:
        """What is multiplied with, by the buffers that the products give."""
        named = [(f"{self.output} inner {n}", one) for n, one in enumerate(self.first)]
        return (*named, (f"{self.output} slots", self.second))


Operation = Product | RowOperation | Attention | Convolution | Experts


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
    def mixtures(self) -> tuple[Experts, ...]:
        """Those of its operations that are mixtures."""
        return tuple(one for one in self.operations if isinstance(one, Experts))

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention of every layer, in order."""
        return tuple(one for one in self.operations if isinstance(one, Attention))
