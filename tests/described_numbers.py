"""What a description computes, by numpy in float64, operation by operation: no kernel of ours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.llm.engine.block_forms import numbers_of
from vermilion.llm.engine.description import (
    Attention,
    Convolution,
    Description,
    ExpertMatrix,
    Experts,
    Norm,
    Product,
    Rotation,
    RowOperation,
    Rows,
)
from vermilion.llm.engine.matrices import Matrix, PlainMatrix

Array = NDArray[Any]


def matrix_numbers(matrix: Matrix) -> Array:
    """Return the numbers of a matrix: (depth, columns)."""
    columns = []
    for part in matrix.parts:
        own = part.take(0, part.columns)
        if isinstance(part, PlainMatrix):
            columns.append(np.asarray(own, np.float32).T)
        else:
            columns.append(numbers_of(part.form, own)[:, : part.depth])  # type: ignore[arg-type]
    return np.concatenate(columns).T.astype(np.float64)


def logits_of(description: Description, tokens: list[int]) -> Array:
    """Return the logits of every position of a prompt: (tokens, vocabulary)."""
    first = np.empty((len(tokens), description.embedding.width), np.float32)
    description.embedding.write(np.array(tokens), first)
    buffers: dict[str, Array] = {description.first: first.astype(np.float64)}

    def rows(own: Rows) -> Array:
        return buffers[own.buffer][:, own.offset : own.offset + own.width]

    for one in description.operations:
        match one:
            case Product():
                made = rows(one.source) @ matrix_numbers(one.matrix)
                buffers[one.output] = made if one.bias is None else made + one.bias
            case RowOperation():
                kept = _joined(one, [rows(own) for own in one.inputs])
                if one.kept:
                    buffers[one.kept] = kept
                buffers[one.output] = kept if one.norm is None else _normed(kept, one.norm)
            case Attention():
                buffers[one.output] = _attended(one, rows)
            case Convolution():
                buffers[one.output] = _convolved(one, rows)
            case Experts():
                buffers[one.output] = mixed(one, rows)
    found = buffers[description.head.output] * description.logits_factor
    bound = description.logits_bound
    return np.tanh(found / bound) * bound if bound else found


def _joined(one: RowOperation, inputs: list[Array]) -> Array:
    if one.kind == "plain":
        return inputs[0]
    if one.kind == "sum":
        return inputs[0] + one.factor * inputs[1]
    return _gated(one.kind, inputs)


def _gated(kind: str, inputs: list[Array]) -> Array:
    first = inputs[0]
    if kind == "clamped_silu":
        gate = np.minimum(first, 7.0)
        return gate / (1 + np.exp(-1.702 * gate)) * (np.clip(inputs[1], -7.0, 7.0) + 1)
    erf = np.vectorize(math.erf)
    made = {
        "silu": lambda x: x / (1 + np.exp(-x)),
        "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
        "gelu_tanh": lambda x: (
            0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        ),
        "relu_squared": lambda x: np.maximum(x, 0) ** 2,
    }[kind](first)
    return made * inputs[1] if len(inputs) > 1 else made


def mixed(one: Experts, rows: Any) -> Array:
    """Row by row, and of each row expert by expert."""
    source, routing = rows(one.source), one.routing
    scores = chances(rows(one.scores), routing.score)
    ranks = scores if one.choice_bias is None else scores + one.choice_bias
    made = np.zeros((len(source), one.second.columns))
    for at, row in enumerate(source):
        chosen = np.argsort(-ranks[at], kind="stable")[: routing.chosen]
        weights = scores[at, chosen]
        if routing.is_normed:
            weights = weights / weights.sum()
        for expert, weight in zip(chosen, weights * routing.scale, strict=True):
            halves = [_given(row, matrix, expert) for matrix in one.first]
            if one.is_joined:
                halves = [halves[0][: one.inner], halves[0][one.inner :]]
            made[at] += weight * _given(_gated(one.kind, halves), one.second, expert)
    if one.shared is not None:
        share = 1.0 if one.share is None else chances(rows(one.share), "sigmoid")
        made += share * rows(one.shared)
    return made


def _given(row: Array, matrix: ExpertMatrix, expert: int) -> Array:
    made = row @ matrix_numbers(matrix.matrices[expert])
    return made if matrix.bias is None else made + matrix.bias[expert]


def chances(numbers: Array, score: str) -> Array:
    """Return a router's numbers as shares of all, or each on its own."""
    if score == "sigmoid":
        return 1 / (1 + np.exp(-numbers))
    powers = np.exp(numbers - numbers.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _convolved(one: Convolution, rows: Any) -> Array:
    values = rows(one.before) * rows(one.value)
    made = np.zeros_like(values)
    for ago, tap in enumerate(one.taps):
        made[ago:] += tap * values[: len(values) - ago]
    return rows(one.after) * (made if one.bias is None else made + one.bias)


def _normed(x: Array, norm: Norm) -> Array:
    if norm.kind == "layer":
        x = x - x.mean(-1, keepdims=True)
    made = x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.epsilon) * norm.weight
    return made if norm.bias is None else made + norm.bias


def _heads(x: Array, own: Rows, size: int, count: int) -> Array:
    """(tokens, heads, size), normed and turned."""
    made = x.reshape(len(x), count, size)
    if own.norm is not None and not own.is_normed_last:
        made = _normed(made, own.norm)
    if own.rotation is not None:
        made = _turned(made, own.rotation)
    if own.norm is not None and own.is_normed_last:
        made = _normed(made, own.norm)
    return made


def _turned(made: Array, rotation: Rotation) -> Array:
    first = rotation.short if len(made) > rotation.short else 0
    cosines, sines = (
        table[first : first + len(made), None, :].astype(np.float64)
        for table in (rotation.cosines, rotation.sines)
    )
    half = cosines.shape[-1]
    low, high, rest = made[..., :half], made[..., half : 2 * half], made[..., 2 * half :]
    return np.concatenate(
        [low * cosines - high * sines, high * cosines + low * sines, rest], axis=-1
    )


def _attended(one: Attention, rows: Any) -> Array:
    size, group = one.head_size, one.query_heads // one.key_heads
    query = _heads(rows(one.query), one.query, size, one.query_heads)
    key = np.repeat(_heads(rows(one.key), one.key, size, one.key_heads), group, axis=1)
    value = np.repeat(_heads(rows(one.value), one.value, size, one.key_heads), group, axis=1)
    scores = np.einsum("qhd,khd->hqk", query, key) * one.scale
    if one.bound:
        scores = np.tanh(scores / one.bound) * one.bound
    places = np.arange(len(query))
    distance = places[:, None] - places
    seen = (distance >= 0) & ((distance < one.window) if one.window else True)
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if one.sinks is not None:
        total = total + np.exp(one.sinks[:, None, None] - top)
    weights /= total
    return np.einsum("hqk,khd->qhd", weights, value).reshape(len(query), -1)
