"""Channels of a transformer's tensors brought to like sizes, with the same result.

One scale for a tensor leaves the channels that are small a handful of integers, and what all rows
have alike takes range from what tells them apart. Before → after, for channels i:
    y = γ·n + β, read by products W     s_i·(y_i - E[y_i]), read by W_i ÷ s_i, with a bias of
                                        b + W·E[y]
    a + b, read by products alone       a + (b - E[a + b]), likewise
    scores q·kᵀ                         q_i·s_i, k_i ÷ s_i
    products W of mixed values v        v_i·s_i, W_i ÷ s_i
s goes into the constants that make the tensor. How far it evens out is chosen by the noise that
rounding the tensor, and the weights behind it, adds to what the products give.
Sources: the first is G. Xiao et al., "SmoothQuant", 2022, with the exponent chosen; the others are
equalization across layers (see `equalize`) along the paths that attention has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.execute import Array, run_session
from vermilion.quantize.algorithms.attention import attention_of
from vermilion.quantize.algorithms.channels import (
    End,
    Linear,
    Numbers,
    Paths,
    Shapes,
    alike,
    array_of,
    leading_to,
    note_changed,
    replace_array,
)
from vermilion.quantize.calibrate import open_fetching

Doubles = NDArray[np.float64]

# How far channels are evened out: 1 brings all to one size.
_EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0)

# A channel is made larger or smaller by no more than this: samples that come later may fill one
# that the first few hardly did.
_MOST = 16.0

# Of a weight's noise, what is left where errors cancel; as in `fill`.
_WEIGHT_SHARE = 0.1

# Less gain than this, of the noise, is none.
_LEAST_GAIN = 0.05

_NORMS = frozenset({"LayerNormalization"})


@dataclass(frozen=True)
class _Sizes:
    """What the channels of a tensor hold, over some samples."""

    lowest: Doubles
    highest: Doubles
    mean: Doubles
    power: Doubles  # mean square

    @property
    def largest(self) -> Doubles:
        """Largest magnitudes."""
        return np.maximum(np.abs(self.lowest), np.abs(self.highest))

    def centred(self) -> _Sizes:
        """Return what they are without their mean."""
        zero = np.zeros_like(self.mean)
        low, high = self.lowest - self.mean, self.highest - self.mean
        return _Sizes(low, high, zero, np.maximum(self.power - self.mean**2, 0.0))


@dataclass(frozen=True)
class _Shared:
    """A tensor that products read and nobody else, and what a number added to it goes into."""

    value: ir.Value
    readers: tuple[Linear, ...]
    scale: ir.Value | None  # of a normalization
    shift: ir.Value | Linear | None

    @property
    def can_shift(self) -> bool:
        """Whether a mean can be taken off it."""
        return self.shift is not None and all(r.bias is not None for r in self.readers)


@dataclass(frozen=True)
class _Pair:
    """Two layers of which channels meet: numbers of the first, and those of the second."""

    first: Linear
    second: Linear
    first_channels: Numbers
    second_channels: Numbers


def even_out(model: ir.Model, shapes: Shapes, samples: Sequence[Mapping[str, Array]]) -> int:
    """Change constants of `model` in place; return how many tensors are easier to round.

    Shapes: `shapes` are those of all tensors, for the `samples`.
    """
    paths = Paths(model.graph, shapes)
    layers = paths.layers()
    shared = [found for node in model.graph if (found := _shared(node, paths, layers)) is not None]
    attentions = [a for node in model.graph if (a := attention_of(node, shapes)) is not None]
    scores = [p for a in attentions if (p := _score_pair(a.scores, layers)) is not None]
    mixed = [p for a in attentions if (p := _mixed_pair(a.mixing, paths, layers)) is not None]
    names = [str(s.value.name) for s in shared]
    names += [str(p.first.result.name) for p in (*scores, *mixed)]
    names += [str(p.second.result.name) for p in scores]
    names += [str(p.second.node.inputs[0].name) for p in mixed if p.second.node.inputs[0]]
    sizes = _sizes(model, list(dict.fromkeys(names)), samples)
    count, changed = 0, set[str]()
    for each in shared:
        done = _even_shared(each, sizes[str(each.value.name)])
        count += done
        changed |= paths.along(each.value) if done else set()
        if done and isinstance(each.shift, Linear):
            changed |= paths.along(each.shift.result)
    for pair in scores:
        done = _even_scores(pair, sizes)
        count += done
        for layer in (pair.first, pair.second) if done else ():
            changed |= paths.along(layer.result)
    for pair in mixed:
        done = _even_mixed(pair, sizes)
        count += done
        if done and pair.second.node.inputs[0] is not None:
            changed |= paths.along(pair.first.result)
            changed |= {str(value.name) for value in _before(pair.second.node.inputs[0])}
    note_changed(model, changed)
    return count


def _before(value: ir.Value) -> list[ir.Value]:
    """Return a tensor and those that it was moved from, up to the product that made them."""
    found, node = [value], value.producer()
    while node is not None and node.op_type != "MatMul" and node.inputs[0] is not None:
        found.append(node.inputs[0])
        node = node.inputs[0].producer()
    return found


def _shared(node: ir.Node, paths: Paths, layers: Mapping[Linear, Sequence[End]]) -> _Shared | None:
    """Return what a node gives if all that read it are products with weights of their own."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in _NORMS | {"Add"}:
        return None
    value = node.outputs[0]
    shape = paths.shape(value)
    if shape is None or not shape:
        return None
    every = np.arange(shape[-1])
    ends = paths.ends(value, np.broadcast_to(every, shape))
    readers = [paths.linears[end.node] for end in ends if end.node in paths.linears]
    whole = all(
        end.index == 0 and (end.channels.reshape(-1, end.channels.shape[-1]) == every).all()
        if end.channels.shape[-1] == len(every)
        else False
        for end in ends
    )
    if not ends or len(readers) < len(ends) or not whole:
        return None
    if node.op_type in _NORMS:
        scale, shift = (*node.inputs[1:3], None)[:2]
        own = [_own_vector(v, len(every)) for v in (scale, shift)]
        return None if own[0] is None else _Shared(value, tuple(readers), own[0], own[1])
    if any(v is None or v.const_value is not None for v in node.inputs):
        return None
    for index in (0, 1):
        found = leading_to(layers, node, index)
        if found is not None and found[0].bias is not None and (found[1].channels == every).all():
            return _Shared(value, tuple(readers), None, found[0])
    return None


def _own_vector(value: ir.Value | None, length: int) -> ir.Value | None:
    if value is None or value.const_value is None or len(value.uses()) != 1:
        return None
    return value if array_of(value).shape == (length,) else None


def _score_pair(scores: ir.Node, layers: Mapping[Linear, Sequence[End]]) -> _Pair | None:
    """Return the layers of queries and keys."""
    query, key = (leading_to(layers, scores, index) for index in (0, 1))
    if query is None or key is None:
        return None
    if not alike(query[1].channels, -2) or not alike(key[1].channels, -1):
        return None
    return _paired(query[0], key[0], query[1].channels[..., 0, :], key[1].channels[..., :, 0])


def _mixed_pair(
    mixing: ir.Node | None, paths: Paths, layers: Mapping[Linear, Sequence[End]]
) -> _Pair | None:
    """Return the layer of the values and the one that reads them mixed."""
    value = None if mixing is None else leading_to(layers, mixing, 1)
    read = None if value is None else paths.reader_after(mixing, value[1])
    if value is None or read is None:
        return None
    return _paired(value[0], read[0], read[1], np.arange(len(read[1])))


def _paired(first: Linear, second: Linear, a: Numbers, b: Numbers) -> _Pair | None:
    """Return a pair where each channel of one meets one of the other."""
    if a.shape != b.shape:
        return None
    both = np.unique(np.stack([a.reshape(-1), b.reshape(-1)], axis=1), axis=0)
    if any(len(np.unique(both[:, side])) != len(both) for side in (0, 1)):
        return None
    return _Pair(first, second, both[:, 0], both[:, 1])


def _sizes(
    model: ir.Model, names: Sequence[str], samples: Sequence[Mapping[str, Array]]
) -> dict[str, _Sizes]:
    if not names:
        return {}
    session = open_fetching(model, names)
    found: dict[str, list[_Sizes]] = {name: [] for name in names}
    for sample in samples:
        for name, array in run_session(session, sample, names).items():
            flat = array.reshape(-1, array.shape[-1]).astype(np.float64)
            found[name].append(
                _Sizes(flat.min(0), flat.max(0), flat.mean(0), np.mean(flat * flat, axis=0))
            )
    return {
        name: _Sizes(
            np.min([s.lowest for s in each], axis=0),
            np.max([s.highest for s in each], axis=0),
            np.mean([s.mean for s in each], axis=0),
            np.mean([s.power for s in each], axis=0),
        )
        for name, each in found.items()
    }


def _even_shared(shared: _Shared, sizes: _Sizes) -> int:
    """Take the mean off a tensor, and bring its channels to like sizes where they may be scaled."""
    if shared.can_shift:
        mean = sizes.mean.astype(np.float32)
        for reader in shared.readers:
            reader.shift(reader.by_output @ mean)
        if isinstance(shared.shift, Linear):
            shared.shift.shift(-mean)
        else:
            replace_array(shared.shift, array_of(shared.shift) - mean)
        sizes = sizes.centred()
    if shared.scale is None:
        return int(shared.can_shift)
    weights = [reader.by_output.astype(np.float64) for reader in shared.readers]

    def noise(by: Doubles) -> float:
        return _rounded_tensor(sizes.largest, weights, by) + _rounded_weights(sizes, weights, by)

    by = _best(sizes.largest, noise)
    if by is None:
        return int(shared.can_shift)
    replace_array(shared.scale, array_of(shared.scale) * by)
    if isinstance(shared.shift, ir.Value):
        replace_array(shared.shift, array_of(shared.shift) * by)
    for reader in shared.readers:
        reader.scale_inputs(1.0 / by)
    return 1


def _even_scores(pair: _Pair, sizes: Mapping[str, _Sizes]) -> int:
    first, second = (sizes[str(layer.result.name)] for layer in (pair.first, pair.second))
    q, k = pair.first_channels, pair.second_channels

    def noise(by: Doubles) -> float:
        queries, keys = first.largest.copy(), second.largest.copy()
        if pair.first is pair.second:
            keys = queries
        queries[q] *= by
        keys[k] /= by
        return float(
            queries.max() ** 2 * (second.power[k] / by**2).sum()
            + keys.max() ** 2 * (first.power[q] * by**2).sum()
        )

    least = np.finfo(np.float32).tiny
    ratio = np.sqrt(np.maximum(first.largest[q], least) / np.maximum(second.largest[k], least))
    by = _best(ratio, noise)
    if by is None:
        return 0
    pair.first.scale_outputs(_spread(len(first.mean), q, by))
    pair.second.scale_outputs(_spread(len(second.mean), k, 1.0 / by))
    return 2


def _even_mixed(pair: _Pair, sizes: Mapping[str, _Sizes]) -> int:
    read = pair.second.node.inputs[0]
    assert read is not None, "a layer reads something"
    values, mixed = sizes[str(pair.first.result.name)], sizes[str(read.name)]
    v, o = pair.first_channels, pair.second_channels
    weights = [pair.second.by_output[:, o].astype(np.float64)]
    here = _Sizes(mixed.lowest[o], mixed.highest[o], mixed.mean[o], mixed.power[o])

    def noise(by: Doubles) -> float:
        largest = values.largest.copy()
        largest[v] *= by
        power = sum(float((np.sum(w * w, axis=0) / by**2).sum()) for w in weights)
        return (
            float(largest.max()) ** 2 * power
            + _rounded_tensor(here.largest, weights, by)
            + _rounded_weights(here, weights, by)
        )

    by = _best(np.sqrt(values.largest[v] * here.largest), noise)
    if by is None:
        return 0
    pair.first.scale_outputs(_spread(len(values.mean), v, by))
    pair.second.scale_inputs(_spread(pair.second.by_output.shape[1], o, 1.0 / by))
    return 2


def _spread(length: int, channels: Numbers, by: NDArray[np.float32]) -> NDArray[np.float32]:
    found = np.ones(length, np.float32)
    found[channels] = by
    return found


def _best(largest: Doubles, noise: Callable[[Doubles], float]) -> NDArray[np.float32] | None:
    """Return what channels of these sizes are multiplied with, None where nothing is gained."""
    some = largest > 0.0
    if not some.any():
        return None
    middle = float(np.exp(np.log(largest[some]).mean()))
    even = np.where(some, middle / np.where(some, largest, 1.0), 1.0).clip(1.0 / _MOST, _MOST)
    noises = [noise(even**exponent) for exponent in _EXPONENTS]
    best = int(np.argmin(noises))
    if noises[best] > (1.0 - _LEAST_GAIN) * noises[0]:
        return None
    by: NDArray[np.float32] = (even ** _EXPONENTS[best]).astype(np.float32)
    return by


def _rounded_tensor(largest: Doubles, weights: Sequence[Doubles], by: Doubles) -> float:
    """Return the noise behind products of a tensor that is rounded, in squares of 1 ÷ 127."""
    power = sum(float((np.sum(w * w, axis=0) / by**2).sum()) for w in weights)
    return float((largest * by).max()) ** 2 * power


def _rounded_weights(sizes: _Sizes, weights: Sequence[Doubles], by: Doubles) -> float:
    power = float((sizes.power * by**2).sum())
    return _WEIGHT_SHARE * power * sum(len(w) * float(np.abs(w / by).max()) ** 2 for w in weights)
