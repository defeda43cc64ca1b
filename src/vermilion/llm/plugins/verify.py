"""Whether compiled operators compute what they should: on a model's own weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.llm.genai_config import read_genai_config
from vermilion.llm.plugins.archive import Entry, Plugin
from vermilion.llm.plugins.decode_operator import DecodeOperator
from vermilion.llm.plugins.identity import Identity
from vermilion.llm.plugins.node_weights import Float32, node_of, weights_of
from vermilion.llm.plugins.run_operator import LoadedOperator
from vermilion.progress import Progress, no_progress

# Of the root mean square of the results. Both sides of a product are rounded: to 8 bits of
# magnitude in blocks of 8 (bfp16), to 8 bits of a significand (bf16), to 8 bits a row and column
# (int8). Measured on normal activations and the weights of SmolLM2: 0.9, 0.2 and 1.3 percent.
# Decoding rounds a row alone, to 8 bits in blocks: 0.5 percent. Wrong code is off by far more.
TOLERANCE: dict[str, float] = {"bfp16": 0.015, "bf16": 0.006, "int8": 0.03, "int4": 0.012}

_COLUMNS = 8192


@dataclass(frozen=True)
class Verified:
    """One operator: the error against float64, and how long a call took.

    Units: `error` is the root mean square of the differences over that of the results.
    """

    entry: Entry
    node: str
    error: float
    milliseconds: float

    @property
    def is_right(self) -> bool:
        """Whether the error is within what the format gives."""
        return self.error <= TOLERANCE[self.entry.identity.number]


def verify_plugin(
    plugin: Plugin, folder: Path, progress: Progress = no_progress
) -> tuple[Verified, ...]:
    """Run each operator on weights of the model that has its shape.

    The smallest number of rows of each shape is enough: others differ in how often a loop runs.

    Raises: ArtifactError for code that is not the operator's, DeviceError for another chip's.
    """
    from vermilion.ir.load import load_model

    config = read_genai_config(folder)
    model = load_model(config.folder / config.model_files()[0])
    chosen = _smallest(plugin.entries)
    results = []
    for number, entry in enumerate(chosen):
        progress("verifying", number, len(chosen))
        shape = entry.identity.shape
        node = node_of(model, shape)
        if node is None:
            continue
        weights = weights_of(node)
        rows = np.random.default_rng(0).standard_normal(
            (entry.identity.rows, shape["K"]), dtype=np.float32
        )
        got, milliseconds = _multiplied(entry.identity, plugin.object_of(entry), rows, node)
        wanted = _exact(rows, weights)
        scale = float(np.sqrt(np.mean(wanted**2))) or 1.0
        error = float(np.sqrt(np.mean((got - wanted) ** 2))) / scale
        results.append(Verified(entry, str(node.name), error, milliseconds))
    return tuple(results)


def _exact(rows: Float32, weights: Float32) -> NDArray[np.float64]:
    """Return rows times weights in float64, some columns at a time.

    A head has a gigabyte of them.
    """
    wide = rows.astype(np.float64)
    pieces = [
        wide @ weights[start : start + _COLUMNS].T.astype(np.float64)
        for start in range(0, len(weights), _COLUMNS)
    ]
    return np.concatenate(pieces, axis=1)


def _multiplied(
    identity: Identity, data: bytes, rows: Float32, node: ir.Node
) -> tuple[Float32, float]:
    """Return rows times the weights of a node, and the time of a call."""
    if identity.is_decode:
        decode = DecodeOperator(identity, data)
        begin = time.process_time()
        got = decode.multiply(rows[0], node)[None]
        return got, (time.process_time() - begin) * 1e3
    operator = LoadedOperator(identity, data)
    packed = operator.pack(weights_of(node))
    operator.multiply(rows, packed)
    begin = time.process_time()
    got = operator.multiply(rows, packed)
    return got, (time.process_time() - begin) * 1e3


def _smallest(entries: Sequence[Entry]) -> list[Entry]:
    """Return of each shape, format and chip the entry with the fewest rows."""
    kept: dict[tuple[object, ...], Entry] = {}
    for entry in sorted(entries, key=lambda one: one.identity.rows):
        identity = entry.identity
        place = (tuple(sorted(identity.shape.items())), identity.number, identity.target)
        kept.setdefault(place, entry)
    return list(kept.values())
