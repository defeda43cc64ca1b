"""The decoder: packed weights, a program for few rows and one for many, caches of sequences."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, cast, get_args

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.cache import BLOCK_TOKENS
from vermilion.codegen.emit.decoder.control import CAPACITY, CONTROL_WORDS, LENGTH, PAST, ROWS
from vermilion.codegen.emit.decoder.weights import LANES, PANEL
from vermilion.codegen.isa import Isa, isa_of
from vermilion.codegen.tensor import SLACK_BYTES, Buffer
from vermilion.codegen.workers import aligned_bytes, usable_cores
from vermilion.errors import OptionError, UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.ir.load import load_model
from vermilion.llm.engine.description import Attention, Description, Operation, Product, Rows
from vermilion.llm.engine.lower import (
    PackedMatrix,
    Prefill,
    Shape,
    Weighed,
    join_products,
    lower,
)
from vermilion.llm.engine.program import Program
from vermilion.llm.engine.read_graph import read_graph
from vermilion.llm.genai_config import read_genai_config
from vermilion.runtime.cache import default_root

FEW_ROWS, MANY_ROWS = 16, 512
# A token is bound by memory, which a few cores exhaust: more would only wait for each other at each
# of its three hundred steps.
_MOST_TOKEN_THREADS = 8
# What the head program reads: no value of a graph has an empty name.
_HEAD_INPUT = ""


def open_native_decoder(
    folder: Path, *, threads: int = 0, prefill: Prefill = "bf16", cache: Path | None = None
) -> NativeDecoder:
    """Open the decoder of an OGA folder on our own machine code.

    `prefill` is in which numbers prompts are multiplied; with `int8` that is products whose weights
    are codes, and bfloat16 for others. `cache` keeps the machine code; None is the user's own.
    Raises: UnsupportedError for a graph or a processor that it cannot take, with the reason.
    """
    if prefill not in get_args(Prefill):
        raise OptionError(
            f"a prompt cannot be computed in `{prefill}`",
            hint=f"there are {', '.join(get_args(Prefill))}",
        )
    isa = _isa()
    config = read_genai_config(folder)
    if len(config.model_files()) != 1:
        raise UnsupportedError(
            "the native decoder takes folders of one model",
            where=str(folder),
            hint="it runs on ONNX Runtime",
        )
    description = read_graph(load_model(folder / config.model_files()[0]))
    return NativeDecoder(
        description,
        config.context_length(),
        isa,
        threads or usable_cores(),
        prefill,
        default_root() if cache is None else cache,
    )


def _isa() -> Isa:
    isa = isa_of(find_target("cpu"))
    if isa.lanes != LANES or not isa.has_vnni or not isa.has_bf16:
        raise UnsupportedError(
            "the native decoder needs AVX-512 with VNNI and BF16 (Zen 4 or later)",
            where=f"processor `{isa.llvm_cpu}`",
            hint="it runs on ONNX Runtime",
        )
    return isa


class NativeDecoder:
    """A decoder whose work is machine code. States of several threads take turns."""

    def __init__(
        self,
        description: Description,
        context_length: int,
        isa: Isa,
        threads: int,
        prefill: Prefill,
        cache: Path,
    ) -> None:
        self.vocabulary_size = description.vocabulary
        self.tokens = min(description.vocabulary, description.embedding.tokens)
        # A position beyond the cosines that are stored cannot be turned.
        self.context_length = min([context_length, *_positions(description)])
        self.turn = threading.Lock()
        self._embedding = description.embedding
        self._bound = description.logits_bound
        operations = join_products(description.operations)
        self._layers = [one for one in operations if isinstance(one, Attention)]
        self._storage = np.dtype(np.float32 if prefill == "fp32" else ml_dtypes.bfloat16)
        self._matrices, self._weights = pack_matrices(operations, threads)
        self._control = np.zeros(CONTROL_WORDS, np.int64)
        self._programs = self._compile(operations, isa, threads, prefill, cache)
        self._state: weakref.ref[NativeState] | None = None

    def start(self, batch: int, capacity: int) -> NativeState:
        """Give an empty cache for `batch` sequences of at most `capacity` tokens."""
        if not 1 <= batch <= MANY_ROWS:
            raise OptionError(f"a batch of {batch}: 1 to {MANY_ROWS} sequences are possible")
        if not 1 <= capacity <= self.context_length:
            raise OptionError(
                f"a cache of {capacity} tokens for a context of {self.context_length}",
                hint=f"ask for 1 to {self.context_length}",
            )
        return NativeState(self, batch, capacity)

    def close(self) -> None:
        """End the workers."""
        for program in self._programs.values():
            program.close()

    def __del__(self) -> None:
        for program in getattr(self, "_programs", {}).values():
            program.close()

    def new_cache(
        self, batch: int, capacity: int
    ) -> list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
        """Give keys and values of every layer: (batch, heads, blocks, bytes of a block), zeros."""
        blocks = -(-capacity // BLOCK_TOKENS)
        caches = []
        for layer in self._layers:
            block_bytes = BLOCK_TOKENS * layer.head_size * self._storage.itemsize
            shape = (batch, layer.key_heads, blocks, block_bytes)
            pair = [aligned_bytes(int(np.prod(shape)) + SLACK_BYTES) for _ in range(2)]
            keys, values = (one[: int(np.prod(shape))].reshape(shape) for one in pair)
            caches.append((keys, values))
        return caches

    def forward(
        self, state: NativeState, tokens: NDArray[np.int64], *, every_position: bool
    ) -> NDArray[np.float32]:
        """Append tokens to a state's cache; the caller has its turn."""
        self._point(state)
        batch, count = tokens.shape
        if batch * count <= FEW_ROWS:
            self._run("few", state, tokens, 0)
            logits = self._logits[: batch * count, : self.vocabulary_size]
            shaped = logits.reshape(batch, count, -1)
            return self._bounded(shaped if every_position else shaped[:, -1])
        step = MANY_ROWS // batch
        pieces = []
        for first in range(0, count, step):
            piece = tokens[:, first : first + step]
            self._run("many", state, piece, first)
            rows = self._hidden[: piece.size].reshape(batch, piece.shape[1], -1)
            if every_position:
                pieces.append(
                    self._head(rows.reshape(piece.size, -1)).reshape(batch, piece.shape[1], -1)
                )
            elif first + step >= count:
                return self._bounded(self._head(rows[:, -1]))
        return self._bounded(np.concatenate(pieces, axis=1))

    def _bounded(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._bound:
            return logits.copy()
        bound = np.float32(self._bound)
        return cast("NDArray[np.float32]", np.tanh(logits / bound) * bound)

    def _run(self, name: str, state: NativeState, tokens: NDArray[np.int64], first: int) -> None:
        rows = self._embedding.rows(tokens.reshape(-1))
        (self._few if name == "few" else self._many)[: len(rows)] = rows
        self._control[[ROWS, LENGTH, PAST, CAPACITY]] = (
            tokens.size, tokens.shape[1], state.length + first, state.blocks * BLOCK_TOKENS
        )  # fmt: skip
        self._programs[name].run()

    def _head(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        out = np.empty((len(rows), self.vocabulary_size), np.float32)
        for first in range(0, len(rows), FEW_ROWS):
            piece = rows[first : first + FEW_ROWS]
            self._head_input[: len(piece)] = piece
            self._control[ROWS] = len(piece)
            self._programs["head"].run()
            out[first : first + FEW_ROWS] = self._logits[: len(piece), : self.vocabulary_size]
        return out

    def _point(self, state: NativeState) -> None:
        if self._state is not None and self._state() is state:
            return
        for program in self._programs.values():
            for layer, (keys, values) in enumerate(state.caches):
                program.point(f"keys {layer}", keys.ctypes.data)
                program.point(f"values {layer}", values.ctypes.data)
        self._state = weakref.ref(state)

    def _compile(
        self,
        operations: tuple[Operation, ...],
        isa: Isa,
        threads: int,
        prefill: Prefill,
        cache: Path,
    ) -> dict[str, Program]:
        head = operations[-1]
        assert isinstance(head, Product), "a decoder ends with its head"
        hidden = head.source
        numbers = {"bf16": "bf16", "int8": "int8", "bfp16": "bfp16", "fp32": "f32"}
        storage: Literal["bf16", "f32"] = "f32" if prefill == "fp32" else "bf16"
        few = Shape(FEW_ROWS, "int8", "f32", storage, 1, is_single=True)
        codes = numbers[prefill]
        many = Shape(
            MANY_ROWS, codes, "bf16" if codes == "int8" else codes, storage, 16, is_single=False  # type: ignore[arg-type]
        )  # fmt: skip
        first = (self._first_name(operations), self._embedding.width)
        weighed = Weighed(operations, self._matrices)
        body = Weighed(operations[:-1], self._matrices)
        alone = Product(head.node, Rows(_HEAD_INPUT, 0, hidden.width), head.output, head.matrix)
        lowered = {
            "few": lower(weighed, few, first, [head.output]),
            "many": lower(body, many, first, [hidden.buffer]),
            "head": lower(
                Weighed((alone,), self._matrices), few, (_HEAD_INPUT, hidden.width), [head.output]
            ),
        }
        few_threads = min(threads, _MOST_TOKEN_THREADS)
        programs = {
            name: Program(one, isa, threads if name == "many" else few_threads, cache)
            for name, one in lowered.items()
        }
        self._few = _matrix(FEW_ROWS, first[1])
        self._many = _matrix(MANY_ROWS, first[1])
        self._hidden = _matrix(MANY_ROWS, hidden.width)
        self._head_input = _matrix(FEW_ROWS, hidden.width)
        columns = -(-self.vocabulary_size // PANEL) * PANEL
        self._logits = _matrix(FEW_ROWS, columns)
        for name, program in programs.items():
            program.point("control", self._control.ctypes.data)
            program.point(f"rows {head.output}", self._logits.ctypes.data)
            program.point(f"rows {hidden.buffer}", self._hidden.ctypes.data)
            program.point(
                f"rows {first[0]}", (self._few if name == "few" else self._many).ctypes.data
            )
            program.point(f"rows {_HEAD_INPUT}", self._head_input.ctypes.data)
            for packed in self._matrices.values():
                data = packed.buffer.data
                assert data is not None, "weights are packed before programs are made"
                program.point(packed.buffer.name, data.ctypes.data)
        return programs

    @staticmethod
    def _first_name(operations: tuple[Operation, ...]) -> str:
        first = operations[0]
        if isinstance(first, Product):
            return first.source.buffer
        assert not isinstance(first, Attention), "nothing attends to embedded tokens"
        return first.inputs[0].buffer


def _positions(description: Description) -> Iterator[int]:
    for layer in description.attentions:
        for rows in (layer.query, layer.key):
            if rows.rotation is not None:
                yield len(rows.rotation.cosines)


def _matrix(rows: int, columns: int) -> NDArray[np.float32]:
    # Four rows more: products of many rows are made four at a time.
    return (
        aligned_bytes((rows + 4) * columns * 4 + SLACK_BYTES)[: (rows + 4) * columns * 4]
        .view(np.float32)
        .reshape(rows + 4, columns)
    )


def pack_matrices(
    operations: Sequence[Operation], threads: int
) -> tuple[dict[str, PackedMatrix], NDArray[np.uint8]]:
    """Pack the weights of all products into one piece of memory."""
    products = [one for one in operations if isinstance(one, Product)]
    forms = [product.matrix.form() for product in products]
    sizes = [-(-(form.size_bytes + SLACK_BYTES) // 64) * 64 for form in forms]
    memory = aligned_bytes(sum(sizes))
    packed: dict[str, PackedMatrix] = {}
    work = []
    at = 0
    for product, form, size in zip(products, forms, sizes, strict=True):
        data = memory[at : at + form.size_bytes]
        name = f"weights {len(packed)}"
        packed[product.output] = PackedMatrix(form, Buffer(name, form.size_bytes, "input", data))
        work.append((product.matrix, form, data))
        at += size
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(matrix.pack, form, data) for matrix, form, data in work]:
            done.result()
    return packed, memory


class NativeState:
    """The caches of a batch of sequences that go on together."""

    def __init__(self, decoder: NativeDecoder, batch: int, capacity: int) -> None:
        self._decoder = decoder
        self._batch = batch
        self._capacity = capacity
        self.blocks = -(-capacity // BLOCK_TOKENS)
        self.caches = decoder.new_cache(batch, capacity)
        self.length = 0

    def forward(
        self, tokens: NDArray[np.int64], every_position: bool = False
    ) -> NDArray[np.float32]:
        """Append tokens and give the logits of the last one, or of every position."""
        tokens = np.asarray(tokens, np.int64)
        if tokens.ndim != 2 or len(tokens) != self._batch or not tokens.size:
            raise OptionError(f"tokens of shape {list(tokens.shape)} for a batch of {self._batch}")
        if self.length + tokens.shape[1] > self._capacity:
            raise OptionError(
                f"{tokens.shape[1]} more tokens after {self.length} in a cache of {self._capacity}",
                hint="start with room for more",
            )
        if tokens.min() < 0 or tokens.max() >= self._decoder.tokens:
            raise OptionError(f"a token is outside 0 to {self._decoder.tokens - 1}")
        with self._decoder.turn:
            logits = self._decoder.forward(self, tokens, every_position=every_position)
        self.length += tokens.shape[1]
        return logits

    def rewind(self, length: int) -> None:
        """Forget the tokens after the first `length`."""
        if not 0 <= length <= self.length:
            raise OptionError(f"{length} of {self.length} tokens cannot be kept")
        self.length = length

    def reorder(self, source_rows: NDArray[np.int64]) -> None:
        """Make row i a copy of what row `source_rows[i]` was."""
        rows = np.asarray(source_rows, np.int64)
        if rows.shape != (self._batch,) or rows.min() < 0 or rows.max() >= self._batch:
            raise OptionError(f"rows {rows.tolist()} of a batch of {self._batch}")
        if np.array_equal(rows, np.arange(self._batch)):
            return
        used = -(-self.length // BLOCK_TOKENS)
        with self._decoder.turn:
            for pair in self.caches:
                for cache in pair:
                    cache[:, :, :used] = cache[rows, :, :used]
