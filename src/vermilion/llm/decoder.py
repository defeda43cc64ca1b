"""What every engine gives the generation loop, and which engine of ours runs a folder.

That is tokens in, logits out; the engine owns the cache of keys and values. Generated code runs a
folder, or ONNX Runtime with the reason for it.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from vermilion.errors import OptionError, UnsupportedError
from vermilion.llm.genai_config import GenaiConfig
from vermilion.version import VERSION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vermilion.llm.hybrid_config import HybridPlace


class Decoder(Protocol):
    """An opened model. Each batch of sequences that is started on it has a cache of its own."""

    @property
    def vocabulary_size(self) -> int:
        """Width of the logits."""
        ...

    @property
    def context_length(self) -> int:
        """The most tokens that one sequence may have."""
        ...

    def exact_rows(self, length: int) -> int:
        """Return how many tokens of one sequence may be read at once with the same numbers.

        That is after `length` of them, and the same as one by one.
        """
        ...

    def start(self, batch: int, capacity: int) -> DecoderState:
        """Return an empty cache for `batch` sequences of `capacity` tokens each, allocated once."""
        ...


class DecoderState(Protocol):
    """The cache of a batch of sequences that advance together."""

    @property
    def length(self) -> int:
        """Tokens in the cache, the same for every row."""
        ...

    def forward(
        self, tokens: NDArray[np.int64], every_position: bool = False
    ) -> NDArray[np.float32]:
        """Append `tokens` and give the logits of the last one, or of every position.

        Shapes: tokens (batch, n) → (batch, vocabulary), or (batch, n, vocabulary) for all.
        """
        ...

    def rewind(self, length: int) -> None:
        """Forget the tokens after the first `length`."""
        ...

    def reorder(self, source_rows: NDArray[np.int64]) -> None:
        """Make row i a copy of what row `source_rows[i]` was: (batch,) row numbers."""
        ...


EngineName = Literal["auto", "native", "onnxruntime", "onnxruntime-genai"]
Prefill = Literal["auto", "bf16", "int8", "bfp16", "fp32"]

_OWN = f"Vermilion {VERSION}, own code"
# The operator that a graph with weights of few bits has, as its name stands in the file.
_FEW_BITS = b"MatMulNBits"


@dataclass(frozen=True)
class EngineOptions:
    """How a folder is opened. `threads` 0: as many as the engine likes."""

    threads: int = 0
    on_cpu: bool = False  # whatever provider the folder names
    engine: EngineName = "auto"
    # In what the native engine computes a prompt. `auto`: fp32 where the weights are floats, bf16
    # where they have few bits, which lose more than that; int8 on a processor without bf16.
    prefill: Prefill = "auto"
    cache: Path | None = None  # of the native engine's compiled code; None: the user's own

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise OptionError("`--threads` is a number of zero or more")
        for name, value, known in (
            ("--engine", self.engine, get_args(EngineName)),
            ("--prefill", self.prefill, get_args(Prefill)),
        ):
            if value not in known:
                raise OptionError(f"`{name} {value}`", hint=f"there are {', '.join(known)}")

    def of_hybrid(self, place: HybridPlace) -> EngineOptions:
        """Return the options for what stands for a hybrid folder; `auto` takes what it names."""
        prefill = place.prefill if self.prefill == "auto" else self.prefill
        return replace(self, prefill=prefill, cache=place.cache)


@dataclass(frozen=True)
class OpenedDecoder:
    """A decoder, what runs it, and why that is not our generated code (empty if it is)."""

    decoder: Decoder = field(repr=False)
    engine: str
    reason: str


def open_decoder(config: GenaiConfig, options: EngineOptions) -> OpenedDecoder:
    """Open a folder on the engine asked for; of `auto`, on the first that takes it.

    Raises: ModelError for a damaged folder; UnsupportedError where no engine runs it.
    """
    if config.source is not None:
        return OpenedDecoder(_of_source(config, options), _OWN, "")
    reason = "asked for"
    if options.engine != "onnxruntime":
        try:
            return OpenedDecoder(_native(config, options), _OWN, "")
        except UnsupportedError as error:
            if options.engine == "native":
                raise
            reason = f"{error.message} ({error.where})" if error.where else error.message
    # ONNX Runtime is loaded by who needs it: that takes longer than opening a model without.
    import onnxruntime as ort

    from vermilion.llm.open_ort_decoder import open_ort_decoder

    decoder = open_ort_decoder(config, threads=options.threads)
    return OpenedDecoder(decoder, f"ONNX Runtime {ort.__version__}", reason)


def open_known(config: GenaiConfig, options: EngineOptions) -> OpenedDecoder | None:
    """Open a folder that was opened before and has not changed since; None for another.

    What was found sound then is not looked at again: neither the model nor its configuration.
    """
    from vermilion.llm.engine.open_native import open_known_decoder

    if options.engine not in ("auto", "native"):
        return None
    try:
        decoder, _ = open_known_decoder(
            config, threads=options.threads, prefill=options.prefill, cache=options.cache
        )
    except UnsupportedError:  # of the processor: who opens the folder anew says so
        return None
    return None if decoder is None else OpenedDecoder(decoder, _OWN, "")


def _of_source(config: GenaiConfig, options: EngineOptions) -> Decoder:
    """Open a published model, which our own code alone reads."""
    from vermilion.llm.engine.open_native import open_known_decoder, open_source_decoder

    assert config.source is not None, "a folder of onnxruntime-genai is opened otherwise"
    if options.engine not in ("auto", "native"):
        raise UnsupportedError(
            f"{options.engine} reads folders of onnxruntime-genai alone",
            where=str(config.folder),
            hint=f"build one: `vermilion llm build {config.folder} -o FOLDER`",
        )
    _, opening = open_known_decoder(
        config, threads=options.threads, prefill=options.prefill, cache=options.cache
    )
    return open_source_decoder(
        config.source, config.context_length(), threads=options.threads, prefill=options.prefill,
        cache=options.cache, opening=opening,
    )  # fmt: skip


def _native(config: GenaiConfig, options: EngineOptions) -> Decoder:
    from vermilion.llm.engine.open_native import (
        chosen_prefill,
        open_known_decoder,
        open_native_decoder,
        this_isa,
    )
    from vermilion.llm.hybrid_config import hybrid_place, is_hybrid

    if is_hybrid(config.folder):
        # One set of weights serves both of its stages, with the programs that it came with.
        place = hybrid_place(config.folder, options.cache)
        config, options = place.config, options.of_hybrid(place)
    known, opening = open_known_decoder(
        config, threads=options.threads, prefill=options.prefill, cache=options.cache
    )
    if known is not None:
        return known
    prefill = options.prefill
    if prefill == "auto":
        prefill = chosen_prefill(this_isa(), has_few_bits=_has_few_bits(config))
    return open_native_decoder(
        config.folder,
        threads=options.threads,
        prefill=prefill,
        cache=options.cache,
        opening=opening,
    )


def _has_few_bits(config: GenaiConfig) -> bool:
    """Say whether a graph multiplies weights of few bits, without reading it as a graph."""
    for file in config.model_files():
        path = config.folder / file
        if path.is_file() and path.stat().st_size:
            with (
                path.open("rb") as stream,
                mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                if data.find(_FEW_BITS) >= 0:
                    return True
    return False
