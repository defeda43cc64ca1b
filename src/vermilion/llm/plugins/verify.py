"""Whether compiled operators compute what they should: on a model's own weights."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import ModelError
from vermilion.llm.genai_config import read_genai_config
from vermilion.llm.plugins.archive import Entry, Plugin
from vermilion.llm.plugins.decode_operator import DecodeOperator
from vermilion.llm.plugins.identity import Identity
from vermilion.llm.plugins.prompt_operator import LoadedOperator
from vermilion.progress import Progress, no_progress

Float32 = NDArray[np.float32]


def node_of(model: ir.Model, shape: Mapping[str, int]) -> ir.Node | None:
    """Return the first product of a graph that has a shape; None where there is none.

    A shape with `bits` and `block` wants weights that are stored so, with zero points if named.
    """
    for node in model.graph:
        if _size(node) != (shape["K"], shape["N"]):
            continue
        if "bits" not in shape or _is_stored(node, shape):
            return node
    return None


def _is_stored(node: ir.Node, shape: Mapping[str, int]) -> bool:
    if node.op_type != "MatMulNBits":
        return False
    has_zeros = len(node.inputs) > 3 and node.inputs[3] is not None
    stored = (node.attributes["bits"].as_int(), node.attributes["block_size"].as_int(), has_zeros)
    return stored == (shape["bits"], shape["block"], "zero_points" in shape)


def weights_of(node: ir.Node) -> Float32:
    """Return the weights (N, K) of a product.

    Source: onnxruntime, `docs/ContribOperators.md`, MatMulNBits: codes (N, blocks, bytes), low
    halves first, scales by block, zero points packed like the codes, 2^(bits-1) where none are.

    Raises: ModelError where shapes disagree.
    """
    size = _size(node)
    if size is None:
        raise ModelError(f"`{node.op_type}` has no stored weights", where=f"node `{node.name}`")
    depth, columns = size
    if node.op_type == "MatMul":
        return np.ascontiguousarray(_array(node, 1).astype(np.float32).T)
    bits, block = node.attributes["bits"].as_int(), node.attributes["block_size"].as_int()
    blocks = -(-depth // block)
    try:
        codes = _unpacked(_array(node, 1).reshape(columns, -1), bits)
        codes = codes.reshape(columns, blocks, block).astype(np.float32)
        scales = _array(node, 2).astype(np.float32).reshape(columns, blocks, 1)
        zeros = _zero_points(node, bits, columns, blocks)
    except ValueError as error:
        raise ModelError(
            f"the weights are not of K {depth}, N {columns}: {error}", where=f"node `{node.name}`"
        ) from error
    values: Float32 = ((codes - zeros) * scales).reshape(columns, blocks * block)[:, :depth]
    return np.ascontiguousarray(values)


def _zero_points(node: ir.Node, bits: int, columns: int, blocks: int) -> Float32:
    stored = node.inputs[3] if len(node.inputs) > 3 else None
    if stored is None:
        return np.full((columns, blocks, 1), float(1 << (bits - 1)), np.float32)
    array = _array(node, 3)
    if array.dtype == np.uint8:
        # A row of zero points ends with a whole byte.
        array = _unpacked(array.reshape(columns, -1), bits)[:, :blocks]
    return array.astype(np.float32).reshape(columns, blocks, 1)


def _unpacked(packed: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Return the codes of a row of bytes, low bits first."""
    if bits == 8:
        return packed.astype(np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None].astype(np.uint8) >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1)


def _array(node: ir.Node, index: int) -> NDArray[Any]:
    value = node.inputs[index]
    if value is None or value.const_value is None:
        raise ModelError("its weights are no constant", where=f"node `{node.name}`")
    return value.const_value.numpy()


def _size(node: ir.Node) -> tuple[int, int] | None:
    if node.op_type == "MatMulNBits" and {"K", "N", "bits", "block_size"} <= set(node.attributes):
        return node.attributes["K"].as_int(), node.attributes["N"].as_int()
    if node.op_type == "MatMul":
        value = node.inputs[1]
        if (
            value is not None
            and value.const_value is not None
            and len(value.const_value.shape) == 2
        ):
            depth, columns = value.const_value.shape.numpy()
            return int(depth), int(columns)
    return None


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
