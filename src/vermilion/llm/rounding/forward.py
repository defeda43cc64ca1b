"""What a description computes over texts, in float32 with numpy, operation after operation.

For rounding alone: rows of all texts are held at once, and what each product reads can be looked
at before it is multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import UnsupportedError
from vermilion.llm.engine.block_forms import numbers_of
from vermilion.llm.engine.description import (
    Attention,
    Description,
    Norm,
    Operation,
    Product,
    RowOperation,
    Rows,
)
from vermilion.llm.engine.matrices import Matrix, PlainMatrix
from vermilion.llm.engine.rewrite import sources

Floats = NDArray[np.float32]
# What is given of a product's rows instead of its own weights: (depth, columns).
Chosen = Callable[[Product, Floats], Floats]


def matrix_numbers(matrix: Matrix) -> Floats:
    """Return the numbers of a matrix: (depth, columns)."""
    parts = []
    for part in matrix.parts:
        own = part.take(0, part.columns)
        if isinstance(part, PlainMatrix):
            parts.append(np.asarray(own, np.float32))
        else:
            made = numbers_of(part.form, own)  # type: ignore[arg-type]
            parts.append(np.ascontiguousarray(made[:, : part.depth].T))
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


@dataclass
class Forward:
    """Texts of one length on their way through a decoder; `tokens` are (texts, length)."""

    description: Description
    tokens: NDArray[np.int64]
    buffers: dict[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        d = self.description
        first = np.empty((self.tokens.size, d.embedding.width), np.float32)
        d.embedding.write(self.tokens.reshape(-1), first)
        self.buffers[d.first] = first
        self._last = {
            rows.buffer: at for at, one in enumerate(d.operations) for rows in sources(one)
        }

    def run(self, choose: Chosen, done: Callable[[int, int], None]) -> None:
        """Compute all operations; each product with the weights that `choose` gives.

        Raises: UnsupportedError for what is not computed here.
        """
        count = len(self.description.operations)
        for at in range(count):
            self.compute(at, choose)
            done(at + 1, count)

    def compute(self, at: int, choose: Chosen) -> None:
        """Compute one operation, and let go of what none after it reads.

        Raises: UnsupportedError for what is not computed here.
        """
        self._compute(self.description.operations[at], choose)
        for name in [name for name in self.buffers if self._last.get(name, -1) <= at]:
            del self.buffers[name]

    def rows(self, own: Rows) -> Floats:
        """Return rows as they are read."""
        return self.buffers[own.buffer][:, own.offset : own.offset + own.width]

    def _compute(self, one: Operation, choose: Chosen) -> None:
        match one:
            case Product():
                read = np.ascontiguousarray(self.rows(one.source))
                weights = choose(one, read)
                if one is self.description.head:
                    return  # nobody reads the logits
                made = read @ weights
                self.buffers[one.output] = made if one.bias is None else made + one.bias
            case RowOperation():
                kept = _joined(one, [self.rows(own) for own in one.inputs])
                if one.kept:
                    self.buffers[one.kept] = kept
                self.buffers[one.output] = kept if one.norm is None else normed(kept, one.norm)
            case Attention():
                self.buffers[one.output] = self._attended(one)
            case _:
                raise UnsupportedError(
                    "mixtures of experts are not rounded so",
                    where=one.node,
                    hint="`--algorithm default`",
                )

    def _attended(self, one: Attention) -> Floats:
        texts, length = self.tokens.shape
        size, group = one.head_size, one.query_heads // one.key_heads
        query = self._heads(one.query, one.query_heads, size)
        key, value = (self._heads(own, one.key_heads, size) for own in (one.key, one.value))
        places = np.arange(length)
        distance = places[:, None] - places
        hidden = (distance < 0) | ((distance >= one.window) if one.window else False)
        out = np.empty((texts, length, one.query_heads, size), np.float32)
        for text in range(texts):
            for head in range(one.query_heads):
                scores = query[text, :, head] @ key[text, :, head // group].T
                scores *= np.float32(one.scale)
                if one.bound:
                    scores = np.tanh(scores / np.float32(one.bound)) * np.float32(one.bound)
                scores[hidden] = -np.inf
                weights = _softmax(scores, None if one.sinks is None else float(one.sinks[head]))
                out[text, :, head] = weights @ value[text, :, head // group]
        return out.reshape(texts * length, -1)

    def _heads(self, own: Rows, count: int, size: int) -> Floats:
        """Return heads normed and turned: (texts, length, heads, size)."""
        texts, length = self.tokens.shape
        made = self.rows(own).reshape(texts, length, count, size)
        if own.norm is not None:
            made = normed(made, own.norm)
        if own.rotation is None:
            return made
        first = own.rotation.short if length > own.rotation.short else 0
        cosines, sines = (
            table[first : first + length, None, :]
            for table in (own.rotation.cosines, own.rotation.sines)
        )
        half = cosines.shape[-1]
        low, high, rest = made[..., :half], made[..., half : 2 * half], made[..., 2 * half :]
        turned = [low * cosines - high * sines, high * cosines + low * sines, rest]
        return np.concatenate(turned, axis=-1)


def _softmax(scores: Floats, sink: float | None) -> Floats:
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(np.float32(sink) - top)
    return cast("Floats", weights / total)


def normed(x: Floats, norm: Norm) -> Floats:
    """Return numbers normed along their last dimension."""
    if norm.kind == "layer":
        x = x - x.mean(-1, keepdims=True)
    size = np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(norm.epsilon))
    made = x / size * norm.weight
    return cast("Floats", made if norm.bias is None else made + norm.bias)


def _joined(one: RowOperation, inputs: Sequence[Floats]) -> Floats:
    first = inputs[0]
    if one.kind == "plain":
        return first
    if one.kind == "sum":
        return first + np.float32(one.factor) * inputs[1]
    made = _ACTIVATIONS[one.kind](first)
    return made * inputs[1] if len(inputs) > 1 else made


def _silu(x: Floats) -> Floats:
    return cast("Floats", x / (1 + np.exp(-x)))


def _gelu(x: Floats) -> Floats:
    size = np.abs(x) / np.float32(math.sqrt(2))
    # A. & S. 7.1.26, within 1.5e-7.
    t = 1 / (1 + np.float32(0.3275911) * size)
    terms = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    sum_: Floats = np.zeros_like(x)
    for term in terms:
        sum_ = cast("Floats", (sum_ + np.float32(term)) * t)
    erf = np.sign(x) * (1 - sum_ * np.exp(-size * size))
    return cast("Floats", np.float32(0.5) * x * (1 + erf))


def _gelu_tanh(x: Floats) -> Floats:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return cast("Floats", np.float32(0.5) * x * (1 + np.tanh(inner)))


def _relu_squared(x: Floats) -> Floats:
    above = np.maximum(x, 0)
    return cast("Floats", above * above)


_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "relu_squared": _relu_squared,
}  # fmt: skip
