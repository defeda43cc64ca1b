"""All that a decoder needs to run: facts, arrays that may be mapped, and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.table import ProgramTable
from vermilion.llm.engine.embedding import Embedding

# Buffers that the decoder gives its programs, beside `keys i` and `values i` of each layer; what
# else they read is among the arrays.
CONTROL, FIRST, HIDDEN, HEAD_INPUT, LOGITS = "control", "first", "hidden", "head input", "logits"
# What names of arrays begin with that every token reads whole.
WEIGHTS = "weights"
# Programs: for a token or a few; for prompts up to the keys of the last attention, and from its
# queries on; the head.
FEW, MANY, REST, HEAD = "few", "many", "rest", "head"
PROGRAMS = (FEW, MANY, REST, HEAD)
# In which numbers prompts are multiplied.
Prefill = Literal["bf16", "int8", "bfp16", "fp32"]
_EMBEDDING = ("plain", "codes", "scales", "zeros", "stored")


@dataclass(frozen=True)
class Facts:
    """Sizes of a decoder.

    `layers` has the heads of keys and the size of a head, of each; a convolution remembers one of
    half of its numbers among the keys, and one among the values. `crossing` are the buffers that
    go from the first program of a prompt to the second, with their widths.
    """

    vocabulary: int
    positions: int  # that have cosines; 0 where none are turned
    short: int  # the longest sequence that is turned by rows of its own; 0: all by the same
    logits_bound: float
    logits_factor: float
    cache_item_bytes: int
    layers: tuple[tuple[int, int], ...]
    crossing: tuple[tuple[str, int], ...]
    expert_bytes: int  # of a mixture's weights, those that a token reads
    hidden_width: int
    embedding_width: int
    embedding_factor: float
    embedding_bits: Literal[4, 8]
    embedding_block: int
    embedding_type: str


@dataclass(frozen=True, eq=False)
class Image:
    """A decoder, packed and compiled."""

    facts: Facts
    embedding: Embedding
    arrays: Mapping[str, NDArray[np.generic]]
    programs: Mapping[str, ProgramTable]


def about_image(facts: Facts, programs: Mapping[str, ProgramTable]) -> dict[str, object]:
    """Return what is said of an image beside its arrays: numbers and names."""
    tables = {name: table.about() for name, table in programs.items()}
    return {"facts": asdict(facts), "programs": tables}


def program_arrays(name: str, table: ProgramTable) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of a program."""
    objects = {
        _object(name, number): np.frombuffer(code.data, np.uint8)
        for number, code in enumerate(table.objects)
    }
    return {f"{name} calls": table.calls, f"{name} addresses": table.addresses, **objects}


def embedding_arrays(embedding: Embedding) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of an embedding."""
    found = {f"embedding {name}": getattr(embedding, name) for name in _EMBEDDING}
    return {name: array for name, array in found.items() if array is not None}


def image_of(arrays: Mapping[str, NDArray[np.generic]], about: Mapping[str, Any]) -> Image:
    """Put an image together from its arrays and what was said about them."""
    given = about["facts"]
    pairs = {name: tuple(map(tuple, given[name])) for name in ("layers", "crossing")}
    facts = Facts(**{**given, **pairs})
    stored: dict[str, Any] = {name: arrays.get(f"embedding {name}") for name in _EMBEDDING}
    embedding = Embedding(
        facts.embedding_width, facts.embedding_factor,
        bits=facts.embedding_bits, block=facts.embedding_block, type=facts.embedding_type,
        **stored,
    )  # fmt: skip
    programs = {name: _program(arrays, name, row) for name, row in about["programs"].items()}
    return Image(facts, embedding, arrays, programs)


def _program(
    arrays: Mapping[str, NDArray[np.generic]], name: str, row: Mapping[str, Any]
) -> ProgramTable:
    objects = [arrays[_object(name, n)].tobytes() for n in range(len(row["objects"]))]
    calls, addresses = (
        cast("NDArray[np.int64]", arrays[f"{name} {part}"]) for part in ("calls", "addresses")
    )
    return ProgramTable.of(row, objects, calls, addresses)


def _object(program: str, number: int) -> str:
    return f"{program} object {number}"
