"""What a decoder needs on a device, from its measures alone: by batch, length and precision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vermilion.device_memory import MemoryNeed, bits_of, workspace_of
from vermilion.errors import OptionError
from vermilion.llm.architecture import (
    Architecture,
    Quantization,
    architecture_of_config,
    architecture_of_gguf,
)
from vermilion.llm.gguf import read_gguf

# Rows of the logits and of a layer's widest product are alive together with its input.
_NUMBERS_ALIVE = 4
_CACHE_BITS = 16


def is_decoder(path: Path) -> bool:
    """Say whether a path is a decoder's: a GGUF file, a configuration, or a folder with one."""
    if path.is_dir():
        return any((path / name).exists() for name in ("config.json", "genai_config.json"))
    return path.suffix.lower() in {".gguf", ".json"}


def estimate_decoder(
    path: Path,
    *,
    batches: Sequence[int] = (1,),
    lengths: Sequence[int] = (),
    precision: str = "",
    gpu: str = "",
) -> tuple[MemoryNeed, ...]:
    """Return what a decoder needs at each batch and length of prompt and answer together.

    Without a precision, weights are counted as they are stored, in FP16 where nothing says.

    Raises: OptionError for a length over the context; ModelError for the configuration.
    """
    found, stored = _architecture(path)
    wanted = lengths or (min(found.context, 4096),)
    if max(wanted) > found.context:
        raise OptionError(
            f"{max(wanted):,} tokens are over the model's context of {found.context:,}",
            where=str(path),
        )
    weights = _weight_bytes(found, stored, precision)
    return tuple(
        MemoryNeed(
            batch, length, weights, _activations(found, batch, length), workspace_of(gpu),
            _cache_bytes(found, batch, length),
        )
        for batch in batches
        for length in wanted
    )  # fmt: skip


def _architecture(path: Path) -> tuple[Architecture, Quantization | None]:
    if path.suffix.lower() == ".gguf":
        return architecture_of_gguf(read_gguf(path)), None
    file = path / "config.json" if path.is_dir() else path
    if not file.exists():
        raise OptionError(
            "the folder has no `config.json`", where=str(path),
            hint="give the configuration of the model that it was built from",
        )  # fmt: skip
    return architecture_of_config(file)


def _weight_bytes(found: Architecture, stored: Quantization | None, precision: str) -> int:
    bits = bits_of(precision) if precision else 0
    if bits == 4 or (not bits and stored is not None):
        numbers = stored or Quantization()
        tables = (1 if found.has_tied_embeddings else 2) * found.hidden * found.vocabulary
        products = found.parameters - tables
        packed = numbers.stored_bytes(numbers.block, -(-products // numbers.block))
        return packed + tables * 2  # embeddings and the head stay in 16 bits
    return found.parameters * (bits or 16) // 8


def _cache_bytes(found: Architecture, batch: int, length: int) -> int:
    return 2 * found.layers * batch * length * found.kv_heads * found.head_size * _CACHE_BITS // 8


def _activations(found: Architecture, batch: int, length: int) -> tuple[int, int]:
    """Return what a decode step, and a prefill of the whole length, have alive."""
    widest = max(found.intermediate * 2, found.heads * found.head_size * 3, found.hidden)
    row = (widest + _NUMBERS_ALIVE * found.hidden) * 2
    logits = found.vocabulary * 4
    scores = found.heads * length * 4
    return batch * (row + logits + scores), batch * (length * row + logits + length * scores)
