"""A language model compiled ahead of time: what the C library reads of a decoder, and its bytes.

A table (facts, arrays, programs), the arrays one behind the other, and the objects. The C library
reads them out of a `.rai` or out of what they are linked into (`clib/source/decoder_open.c`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.backends import DECODER
from vermilion.codegen.emit.decoder.weights import PANEL
from vermilion.codegen.table import RUN, SERVE
from vermilion.llm.engine.block_forms import floats_of_scales
from vermilion.llm.engine.block_types import block_type
from vermilion.llm.engine.embedding import Embedding
from vermilion.llm.engine.image import PROGRAMS, Image

# `clib/source/decoder.c` says the same. The part's name, and the files in it.
FORMAT = 1
PART, TABLE_FILE, WEIGHTS_FILE = DECODER, "kernels.json", "packed.bin"
_ALIGNMENT = 64
_ROWS_AT_ONCE = 4096
_FLOATS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_PLAIN = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}

Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class ObjectFile:
    """An object of a program: the file's name, its bytes, and the functions in it."""

    name: str
    data: bytes
    functions: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class DecoderParts:
    """A decoder as the C library reads it. `objects` are those of each program."""

    table: bytes
    arrays: Mapping[str, tuple[int, NDArray[np.generic]]]  # where each begins
    size_bytes: int
    objects: Mapping[str, tuple[ObjectFile, ...]]

    def write_weights(self, path: Path) -> None:
        """Write the arrays."""
        with path.open("wb") as file:
            for at, array in self.arrays.values():
                file.write(bytes(at - file.tell()))
                file.write(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
            file.write(bytes(self.size_bytes - file.tell()))


def decoder_parts(image: Image, context: int) -> DecoderParts:
    """Return what the C library reads of a decoder for sequences of at most `context` tokens."""
    facts = image.facts
    embedding, arrays = _embedding(image.embedding)
    for table in image.programs.values():
        arrays |= {name: image.arrays[name] for name in table.buffers if name in image.arrays}
    places, at = {}, 0
    for name, array in arrays.items():
        places[name] = (at, array)
        at += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    objects = {name: _objects(image, name) for name in PROGRAMS}
    about = {
        "format": FORMAT,
        "facts": {
            "vocabulary": facts.vocabulary,
            "context": min(context, facts.positions or context),
            "short": facts.short,
            "item_bytes": facts.cache_item_bytes,
            "hidden_width": facts.hidden_width,
            "logits_width": -(-facts.vocabulary // PANEL) * PANEL,
            "logits_bound": _bits(facts.logits_bound),
            "logits_factor": _bits(facts.logits_factor),
            "layers": facts.layers,
            "crossing": facts.crossing,
        },
        "embedding": embedding,
        "arrays": {name: [place, array.nbytes] for name, (place, array) in places.items()},
        "programs": {name: _program(image, name, objects[name]) for name in PROGRAMS},
    }
    # Kernels may read a vector behind the last array.
    return DecoderParts(json.dumps(about).encode(), places, at + _ALIGNMENT, objects)


def _bits(value: float) -> int:
    """Return a float32 as the number that its bits are."""
    return int(np.float32(value).view(np.uint32))


def _objects(image: Image, name: str) -> tuple[ObjectFile, ...]:
    table = image.programs[name]
    return tuple(
        ObjectFile(
            f"{name}_{number}.o",
            code.data,
            (*code.functions, *((RUN, SERVE) if number == 0 else ())),
        )
        for number, code in enumerate(table.objects)
    )


def _program(image: Image, name: str, objects: tuple[ObjectFile, ...]) -> dict[str, object]:
    table = image.programs[name]
    return {
        "arena_bytes": table.arena_bytes,
        "functions": table.functions,
        "buffers": table.buffers,
        "objects": [one.name for one in objects],
        "calls": table.calls.tolist(),
        "addresses": table.addresses.tolist(),
    }


def _embedding(own: Embedding) -> tuple[dict[str, object], Arrays]:
    """Return what is said of the rows that tokens begin with, and their arrays."""
    about: dict[str, object] = {"width": own.width, "factor": _bits(own.factor)}
    if own.plain is not None:
        kind = _PLAIN.get(own.plain.dtype.name, "f32")
        rows = own.plain if own.plain.dtype.name in _PLAIN else own.plain.astype(np.float32)
        return {**about, "kind": kind, "tokens": len(rows)}, {"embedding rows": rows}
    if own.stored is not None and own.type in _FLOATS:
        about |= {"kind": _FLOATS[own.type], "tokens": len(own.stored)}
        return about, {"embedding rows": own.stored}
    more, arrays = _of_blocks(own) if own.stored is not None else _of_codes(own)
    return {**about, "kind": "codes", **more}, arrays


def _of_codes(own: Embedding) -> tuple[dict[str, object], Arrays]:
    assert own.codes is not None, "either numbers or codes"
    assert own.scales is not None, "codes come with scales"
    arrays: Arrays = {
        "embedding rows": own.codes,
        "embedding scales": own.scales.astype(np.float32),
    }
    if own.zeros is not None:
        arrays["embedding zeros"] = own.zeros
    return _described(arrays, own.bits, own.block, 1 << (own.bits - 1)), arrays


def _of_blocks(own: Embedding) -> tuple[dict[str, object], Arrays]:
    """Return rows of a block type of GGUF files as codes: the same numbers, bit for bit."""
    assert own.stored is not None, "rows as a file has them"
    found = block_type(own.type)
    assert found is not None, "a type that was read"
    form, pieces = found.form, []
    for first in range(0, len(own.stored), _ROWS_AT_ONCE):
        columns = found.unpack(own.stored[first : first + _ROWS_AT_ONCE])
        shared: Any = columns.shared or (None, None)
        codes = columns.codes.reshape(len(columns.codes), -1)
        piece: Arrays = {
            "rows": codes[:, ::2] | codes[:, 1::2] << np.uint8(4) if form.bits == 4 else codes,
            "scales": floats_of_scales(form, columns.scales, shared[0]),
        }
        if columns.mins is not None:
            piece["mins"] = floats_of_scales(form, columns.mins, shared[-1])
        pieces.append(piece)
    arrays: Arrays = {
        f"embedding {name}": np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]
    }
    if form.table is not None:
        table = np.zeros(1 << form.bits, np.float32)
        table[: len(form.table)] = form.table
        arrays["embedding table"] = table
    middle = 0 if "embedding mins" in arrays else 1 << (form.bits - 1)
    return _described(arrays, form.bits, form.block, middle), arrays


def _described(arrays: Arrays, bits: int, block: int, middle: int) -> dict[str, object]:
    rows, scales = arrays["embedding rows"], arrays["embedding scales"]
    zeros = arrays.get("embedding zeros")
    return {
        "tokens": len(rows),
        "bits": bits,
        "block": block,
        "blocks": scales.shape[1],
        "row_bytes": rows.shape[1],
        "zero_bytes": 0 if zeros is None else zeros.shape[1],
        "middle": middle,
    }
