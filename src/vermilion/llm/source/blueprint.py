"""What a decoder is like, whatever file it comes from: what is needed to describe it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vermilion.codegen.emit.decoder.row import Source
from vermilion.errors import ModelError
from vermilion.llm.engine.description import Floats
from vermilion.llm.engine.embedding import Embedding
from vermilion.llm.engine.matrices import Part
from vermilion.llm.source.families import Family
from vermilion.llm.source.mixtures import Mixture
from vermilion.llm.source.rope import Turning

# No published model comes near; more is a damaged or hostile file.
MOST_MEASURE = 1 << 24
_MOST_LAYERS = 1024


@dataclass(frozen=True, eq=False)
class Layer:
    """What one layer has of its own: the keys it sees, 0 for all, and how its heads are turned.

    `taps`: it has a short convolution over so many positions in the place of attention.
    """

    window: int
    turning: Turning | None
    is_mixture: bool = False
    taps: int = 0


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A decoder.

    `scale` is what scores are multiplied with, `score_bound` and `logits_bound` what they are held
    within, 0 for nothing. `has_pairs`: heads turn numbers that lie side by side.
    """

    family: Family
    where: str
    hidden: int
    heads: int
    key_heads: int
    head_size: int
    inner: int
    context: int
    layers: tuple[Layer, ...]
    turned: int
    epsilon: float
    scale: float
    has_pairs: bool
    norm_offset: float
    activation: Source
    score_bound: float = 0.0
    logits_bound: float = 0.0
    logits_factor: float = 1.0
    embedding_factor: float = 1.0
    residual_factor: float = 1.0
    mixture: Mixture | None = None

    def __post_init__(self) -> None:
        measures = {
            "hidden size": self.hidden,
            "heads": self.heads,
            "heads of keys": self.key_heads,
            "size of a head": self.head_size,
            "size inside a layer": self.inner,
            "context": self.context,
        }
        for name, value in measures.items():
            if not 0 < value <= MOST_MEASURE:
                raise ModelError(f"{value} is no {name}", where=self.where)
        if self.heads % self.key_heads:
            raise ModelError(
                f"{self.heads} heads cannot share {self.key_heads} heads of keys and values",
                where=self.where,
                hint="the file is damaged: download it again",
            )
        if not 0 < len(self.layers) <= _MOST_LAYERS:
            raise ModelError(f"{len(self.layers)} layers", where=self.where)
        if self.turned > self.head_size:
            raise ModelError(
                f"{self.turned} numbers of heads of {self.head_size} are turned", where=self.where
            )
        if not 0 < self.epsilon < 1:
            raise ModelError(f"{self.epsilon} is no epsilon of a norm", where=self.where)


class Tensors(Protocol):
    """The weights of a decoder, by the names that they have in GGUF, without `blk.` and `.weight`.

    Of a layer they are `3.attn_q`; biases end with `.bias`. Each method raises ModelError where
    there is none of the name or it has another shape, UnsupportedError for a type not known here.
    """

    @property
    def where(self) -> str:
        """What they are in, for messages."""
        ...

    def has(self, name: str) -> bool:
        """Say whether there is one of this name."""
        ...

    def part(self, name: str) -> Part:
        """Return a matrix."""
        ...

    def experts(self, name: str, mixture: Mixture) -> tuple[Part, ...]:
        """Return the matrices of all experts."""
        ...

    def expert_biases(self, name: str, mixture: Mixture) -> Floats | None:
        """Return what is added to the products of all experts, if anything: (experts, columns)."""
        ...

    def floats(self, name: str, rank: int = 1) -> Floats:
        """Return the numbers of a vector, or of as many dimensions."""
        ...

    def embedding(self, name: str) -> Embedding:
        """Return a matrix whose rows tokens begin with."""
        ...

    def unread(self) -> tuple[str, ...]:
        """Return the names of those that nobody asked for."""
        ...
