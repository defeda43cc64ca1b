"""A built folder's weights in 4 bits, rounded again: from the source's floats, and for a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import OptionError, UnsupportedError
from vermilion.llm.genai_config import GenaiConfig
from vermilion.llm.open_model import read_model_config
from vermilion.llm.rounding.round_products import cut, joined, round_products
from vermilion.llm.rounding.sensitivity import chosen_for_bytes, costs_of_rounding
from vermilion.llm.rounding.texts import own_texts, python_reference
from vermilion.llm.rounding.write_graph import BuiltGraph, Stored, wanted_products
from vermilion.progress import Progress, no_progress
from vermilion.store.cache_dir import default_root

# Pieces of a text, and their length. (SmolLM2-135M from its Q4_1 file, blocks of 32, head and all,
# `llm perplexity`'s text read in float32: 28.20 before, 35.78 by the builder, 28.49 and 30.45
# with two draws of 16, divergence 0.078 and 0.085.)
_LENGTH, _PIECES = 512, 16
_LEAST_TOKENS = 64
_LEAST_BITS = 4.0
# Nats a token, of what stays in 4 bits, as expected. (SmolLM2-135M, rounded for 2,048 tokens: a
# divergence of 0.043, perplexity 28.97 for 28.20; for 8,192, as built and read by our engine, 0.032
# and 28.82 for 28.23.)
_MOST_COST = 0.025

TextKind = Literal["the given text", "the model's own text", "Python's reference"]


@dataclass(frozen=True)
class Compensated:
    """How many products were rounded again, of those that there are in 4 bits."""

    rounded: int
    products: int
    tokens: int  # that they were rounded for
    text: TextKind
    in_bytes: tuple[str, ...] = ()  # those of them that have 8 bits now


def compensate_folder(
    source: Path,
    model_file: Path,
    *,
    is_symmetric: bool,
    mean_bits: float | None = None,
    text: str = "",
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> Compensated:
    """Round the weights of a graph in 4 bits so that their errors cancel.

    What loses most by 4 bits gets 8, until a weight has `mean_bits` on average; None: until the
    rest is expected to lose no more than `_MOST_COST`. `text` is what it is done for; if empty, the
    model writes one, or where our engine does not run it, it is Python's language reference.

    Raises: OptionError for a text that is too short; UnsupportedError for a model that is not read
    here, or whose graph has none of its products.
    """
    config = read_model_config(source)
    if config.source is None:
        raise UnsupportedError("this is no published model", where=str(source))
    tokens, kind = _tokens(config, text, cache or default_root(), progress)
    description = config.source.describe()
    graph = BuiltGraph(model_file)
    everything = list(graph.nodes())
    nodes = wanted_products(graph, description)
    if not nodes:
        raise UnsupportedError(
            "the built graph has no products in 4 bits that are known to be the model's",
            where=str(model_file),
            hint="`--algorithm default`",
        )
    (block,) = {node.block for node in nodes.values()}
    names = {name for node in nodes.values() for name in node.products}
    head = next((one for one in nodes.values() if description.head.node in one.products), None)
    is_shared = head is not None and graph.is_embedding(head)
    costs: Mapping[str, float] = {}
    if mean_bits is None or mean_bits > _LEAST_BITS:
        progress("reading a text", 0, 1)
        costs = costs_of_rounding(
            description, tokens, block, is_symmetric=is_symmetric, is_shared=is_shared
        )
    wide = _wide(nodes, costs, mean_bits)
    found = round_products(
        description, tokens, block, is_symmetric=is_symmetric,
        is_wanted=lambda product: product.node in names, is_shared=is_shared,
        in_bytes={one for name in wide for one in nodes[name].products},
        done=lambda done, total: progress("rounding", done, total),
    )  # fmt: skip
    for node in nodes.values():
        graph.write(node, joined([found[name] for name in node.products]))
    graph.save()
    return Compensated(len(nodes), len(everything), tokens.size, kind, tuple(sorted(wide)))


def _wide(
    nodes: Mapping[str, Stored], costs: Mapping[str, float], mean_bits: float | None
) -> frozenset[str]:
    """Return the nodes that get 8 bits, by what their products cost in 4."""
    return chosen_for_bytes(
        {key: sum(costs.get(one, 0.0) for one in own.products) for key, own in nodes.items()},
        {key: own.depth * own.columns for key, own in nodes.items()},
        mean_bits=8.0 if mean_bits is None else mean_bits,
        most_cost=_MOST_COST if mean_bits is None else 0.0,
    )


def _tokens(
    config: GenaiConfig, text: str, cache: Path, progress: Progress
) -> tuple[NDArray[np.int64], TextKind]:
    """Return pieces of a text as tokens, (pieces, length), and whose it is."""
    if text:
        return _cut_text(config, text, cache), "the given text"
    try:
        length = min(_LENGTH, config.context_length())
        return own_texts(config, _PIECES, length, cache, progress), "the model's own text"
    except UnsupportedError:  # of the processor: what follows is computed in numpy
        return _cut_text(config, python_reference(), cache), "Python's reference"


def _cut_text(config: GenaiConfig, text: str, cache: Path) -> NDArray[np.int64]:
    """Return pieces of a text as tokens: (pieces, length).

    Raises: OptionError for a text that is too short.
    """
    source = config.source
    assert source is not None, "it is a published model"
    own = source.tokenizer(cache).encode(text)
    begin = source.begin()
    length = min(_LENGTH, config.context_length(), len(own)) - len(begin)
    if length < _LEAST_TOKENS:
        raise OptionError(
            f"a text of {len(own)} tokens shows too little of what the model reads",
            hint=f"`--calibration FILE` of {_LENGTH * _PIECES:,} tokens or more",
        )
    pieces = np.array(list(cut(own, length, _PIECES)), np.int64)
    before = np.tile(np.array(begin, np.int64), (len(pieces), 1))
    return np.concatenate([before, pieces], axis=1)
