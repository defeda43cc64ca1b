"""What a description computes over texts, in float32 with torch, operation after operation.

For rounding alone: rows of all texts are held at once, and who computes a product is the caller's
choice. Gradients flow through all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import UnsupportedError
from vermilion.llm.engine.block_forms import numbers_of
from vermilion.llm.engine.description import (
    Attention,
    Convolution,
    Description,
    Norm,
    Operation,
    Product,
    Rotation,
    RowOperation,
    Rows,
)
from vermilion.llm.engine.matrices import Matrix, PlainMatrix
from vermilion.llm.engine.rewrite import sources

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float32]
# A product and its rows → what they are multiplied to, without bias; None: nobody reads it.
Multiply = Callable[[Product, "Tensor"], "Tensor | None"]


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


def own_product(product: Product, read: Tensor) -> Tensor:
    """Return rows multiplied with a product's own weights."""
    return read @ tensor(matrix_numbers(product.matrix))


def tensor(values: NDArray[np.generic]) -> Tensor:
    """Return an array as a tensor in float32."""
    import torch

    return torch.from_numpy(np.require(values, np.float32, ["C", "W"]))


@dataclass
class Forward:
    """Texts of one length on their way through a decoder; `tokens` are (texts, length).

    `embedded` are the rows of the tokens, (texts · length, width), where they are not the
    description's own.
    """

    description: Description
    tokens: NDArray[np.int64]
    embedded: Tensor | None = None
    buffers: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        d = self.description
        if self.embedded is None:
            first = np.empty((self.tokens.size, d.embedding.width), np.float32)
            d.embedding.write(self.tokens.reshape(-1), first)
            self.embedded = tensor(first)
        self.buffers[d.first] = self.embedded
        self._last = {
            rows.buffer: at for at, one in enumerate(d.operations) for rows in sources(one)
        }

    def run(self, multiply: Multiply) -> None:
        """Compute all operations.

        Raises: UnsupportedError for what is not computed here.
        """
        for at in range(len(self.description.operations)):
            self.compute(at, multiply)

    def compute(self, at: int, multiply: Multiply) -> None:
        """Compute one operation, and let go of what none after it reads.

        Raises: UnsupportedError for what is not computed here.
        """
        self._compute(self.description.operations[at], multiply)
        for name in [name for name in self.buffers if self._last.get(name, -1) <= at]:
            del self.buffers[name]

    def rows(self, own: Rows) -> Tensor:
        """Return rows as they are read."""
        return self.buffers[own.buffer][:, own.offset : own.offset + own.width]

    def _compute(self, one: Operation, multiply: Multiply) -> None:
        match one:
            case Product():
                made = multiply(one, self.rows(one.source))
                if made is not None:
                    self.buffers[one.output] = made if one.bias is None else made + tensor(one.bias)
            case RowOperation():
                kept = _joined(one, [self.rows(own) for own in one.inputs])
                if one.kept:
                    self.buffers[one.kept] = kept
                self.buffers[one.output] = kept if one.norm is None else normed(kept, one.norm)
            case Attention():
                self.buffers[one.output] = self._attended(one)
            case Convolution():
                self.buffers[one.output] = self._convolved(one)
            case _:
                raise UnsupportedError(
                    "mixtures of experts are not rounded so",
                    where=one.node,
                    hint="`--algorithm default`",
                )

    def _attended(self, one: Attention) -> Tensor:
        import torch

        texts, length = self.tokens.shape
        size, group = one.head_size, one.query_heads // one.key_heads
        query = self._heads(one.query, one.query_heads, size)
        key, value = (
            self._heads(own, one.key_heads, size).repeat_interleave(group, 1)
            for own in (one.key, one.value)
        )
        places = torch.arange(length)
        distance = places[:, None] - places
        seen = (distance >= 0) & ((distance < one.window) if one.window else True)
        if one.bound or one.sinks is not None:
            out = _attended_by_parts(one, query, key, value, seen)
        else:
            attend = torch.nn.functional.scaled_dot_product_attention
            is_plain = not one.window or one.window >= length
            out = attend(
                query, key, value, attn_mask=None if is_plain else seen, is_causal=is_plain,
                scale=one.scale,
            )  # fmt: skip
        return out.transpose(1, 2).reshape(texts * length, -1)

    def _convolved(self, one: Convolution) -> Tensor:
        import torch

        texts, length = self.tokens.shape
        values = (self.rows(one.before) * self.rows(one.value)).reshape(texts, length, -1)
        taps = len(one.taps)
        padded = torch.nn.functional.pad(values, (0, 0, taps - 1, 0))
        made = sum(
            padded[:, taps - 1 - ago :][:, :length] * tensor(tap)
            for ago, tap in enumerate(one.taps)
        )
        if one.bias is not None:
            made = made + tensor(one.bias)
        return self.rows(one.after) * made.reshape(texts * length, -1)

    def _heads(self, own: Rows, count: int, size: int) -> Tensor:
        """Return heads normed and turned: (texts, heads, length, size)."""
        texts, length = self.tokens.shape
        made = self.rows(own).reshape(texts, length, count, size)
        if own.norm is not None and not own.is_normed_last:
            made = normed(made, own.norm)
        made = made.transpose(1, 2)
        if own.rotation is not None:
            made = turned(made, own.rotation)
        if own.norm is not None and own.is_normed_last:
            made = normed(made, own.norm)
        return made


def turned(heads: Tensor, rotation: Rotation) -> Tensor:
    """Return heads turned by their positions: (texts, heads, length, size)."""
    import torch

    length = heads.shape[2]
    first = rotation.short if length > rotation.short else 0
    cosines, sines = (
        tensor(table[first : first + length]) for table in (rotation.cosines, rotation.sines)
    )
    half = cosines.shape[-1]
    low, high, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return torch.cat([low * cosines - high * sines, high * cosines + low * sines, rest], -1)


def _attended_by_parts(
    one: Attention, query: Tensor, key: Tensor, value: Tensor, seen: Tensor
) -> Tensor:
    """Return attention with bounded scores or sinks: (texts, heads, length, size)."""
    import torch

    scores = query @ key.transpose(2, 3) * one.scale
    if one.bound:
        scores = torch.tanh(scores / one.bound) * one.bound
    scores = scores.masked_fill(~seen, -math.inf)
    if one.sinks is None:
        return torch.softmax(scores, -1) @ value
    sinks = tensor(one.sinks)[:, None, None].expand(len(scores), -1, scores.shape[2], 1)
    return torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1] @ value


def normed(x: Tensor, norm: Norm) -> Tensor:
    """Return numbers normed along their last dimension."""
    import torch

    if norm.kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    made = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.epsilon) * tensor(norm.weight)
    return made if norm.bias is None else made + tensor(norm.bias)


def _joined(one: RowOperation, inputs: Sequence[Tensor]) -> Tensor:
    first = inputs[0]
    if one.kind == "plain":
        return first
    if one.kind == "sum":
        return first + one.factor * inputs[1]
    made = _activated(one.kind, first)
    return made * inputs[1] if len(inputs) > 1 else made


def _activated(kind: str, x: Tensor) -> Tensor:
    from torch.nn import functional

    match kind:
        case "silu":
            return functional.silu(x)
        case "gelu":
            return functional.gelu(x)
        case "gelu_tanh":
            return functional.gelu(x, approximate="tanh")
        case "relu_squared":
            return functional.relu(x).square()
    raise UnsupportedError(f"rows joined by `{kind}` are not rounded so")
