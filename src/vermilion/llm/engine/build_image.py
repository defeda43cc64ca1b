"""A decoder's description → its image: products joined, programs compiled, weights packed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.isa import Isa
from vermilion.codegen.table import ProgramTable
from vermilion.codegen.tensor import Buffer
from vermilion.llm.engine.compile_program import compile_program
from vermilion.llm.engine.cut import cut_at_last_attention
from vermilion.llm.engine.decoder import FEW_ROWS, MANY_ROWS
from vermilion.llm.engine.description import Attention, Description, Operation, Product, Rows
from vermilion.llm.engine.image import (
    CONTROL,
    FEW,
    FIRST,
    HEAD,
    HEAD_INPUT,
    HIDDEN,
    LOGITS,
    MANY,
    REST,
    Facts,
    Image,
    Prefill,
    about_image,
    embedding_arrays,
    image_of,
    program_arrays,
)
from vermilion.llm.engine.join import join_products
from vermilion.llm.engine.lower import lower
from vermilion.llm.engine.lowering import Lowered, PackedMatrix, Shape, Weighed
from vermilion.store.arrays import NewArray, in_memory, new_array

# What the head program reads: no value of a graph has an empty name.
_HEAD_INPUT = ""
_NUMBERS: dict[Prefill, Literal["bf16", "int8", "bfp16", "f32"]] = {
    "bf16": "bf16",
    "int8": "int8",
    "bfp16": "bfp16",
    "fp32": "f32",
}


@dataclass(frozen=True, eq=False)
class ImageDraft:
    """An image before its weights are packed: the arrays that it is to have."""

    arrays: tuple[NewArray, ...]
    about: Mapping[str, object]

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(one.size_bytes for one in self.arrays)

    def in_memory(self, threads: int) -> Image:
        """Pack the weights into this process's own memory."""
        return image_of(in_memory(self.arrays, threads), self.about)


def draft_image(description: Description, isa: Isa, prefill: Prefill, cache: Path) -> ImageDraft:
    """Compile the programs, with those that `cache` has, and say what is to be packed."""
    operations = join_products(description.operations)
    matrices, packed = _matrices(operations)
    constants: dict[int, tuple[str, NDArray[np.float32]]] = {}
    programs, crossing = {}, []
    for name, lowered, names in _lowered(description, operations, matrices, prefill):
        compiled = compile_program(lowered, isa, cache)
        programs[name] = _named(compiled, lowered, names, constants)
        if name == MANY:
            given = cut_at_last_attention(operations[:-1]).crossing
            crossing = [(names[f"rows {one}"], lowered.widths[one]) for one in given]
    facts = _facts(description, operations, prefill, crossing)
    stored: dict[str, NDArray[np.generic]] = {**embedding_arrays(description.embedding)}
    stored |= dict(constants.values())
    for name, table in programs.items():
        stored |= program_arrays(name, table)
    arrays = [new_array(name, values) for name, values in stored.items()]
    return ImageDraft((*arrays, *packed), about_image(facts, programs))


def _facts(
    description: Description,
    operations: Sequence[Operation],
    prefill: Prefill,
    crossing: Sequence[tuple[str, int]],
) -> Facts:
    layers = [one for one in operations if isinstance(one, Attention)]
    embedding = description.embedding
    return Facts(
        vocabulary=description.vocabulary,
        positions=min(_positions(description), default=0),
        logits_bound=description.logits_bound,
        cache_item_bytes=4 if prefill == "fp32" else 2,
        layers=tuple((layer.key_heads, layer.head_size) for layer in layers),
        crossing=tuple(crossing),
        hidden_width=description.hidden.width,
        embedding_width=embedding.width,
        embedding_factor=embedding.factor,
        embedding_bits=embedding.bits,
        embedding_block=embedding.block,
    )


def _positions(description: Description) -> Iterator[int]:
    for layer in description.attentions:
        for rows in (layer.query, layer.key):
            if rows.rotation is not None:
                yield len(rows.rotation.cosines)


def _matrices(operations: Sequence[Operation]) -> tuple[dict[str, PackedMatrix], list[NewArray]]:
    """Return the weights of all products, by the product's output, and as arrays."""
    found: dict[str, PackedMatrix] = {}
    arrays = []
    for product in operations:
        if not isinstance(product, Product):
            continue
        form, name = product.matrix.form(), f"weights {len(found)}"
        found[product.output] = PackedMatrix(form, Buffer(name, form.size_bytes, "input"))

        def fill(out: NDArray[np.uint8], product: Product = product) -> None:
            product.matrix.pack(found[product.output].form, out)

        arrays.append(NewArray(name, "|u1", (form.size_bytes,), fill))
    return found, arrays


def _lowered(
    description: Description,
    operations: tuple[Operation, ...],
    matrices: dict[str, PackedMatrix],
    prefill: Prefill,
) -> Iterator[tuple[str, Lowered, dict[str, str]]]:
    """Yield the steps of each program, and our names for the buffers that it is given."""
    head = operations[-1]
    assert isinstance(head, Product), "a decoder ends with its head"
    hidden = head.source
    storage: Literal["bf16", "f32"] = "f32" if prefill == "fp32" else "bf16"
    few = Shape(FEW_ROWS, "int8", "f32", storage, 1, is_single=True)
    codes = _NUMBERS[prefill]
    plain = "bf16" if codes == "int8" else codes
    many = Shape(MANY_ROWS, codes, plain, storage, 16, is_single=False)
    first = _first_name(operations)
    given = {first: description.embedding.width}
    source = Rows(_HEAD_INPUT, 0, hidden.width)
    alone = Product(head.node, source, head.output, head.matrix, head.bias)
    halves = cut_at_last_attention(operations[:-1])
    names = {
        f"rows {first}": FIRST, f"rows {hidden.buffer}": HIDDEN,
        f"rows {head.output}": LOGITS, f"rows {_HEAD_INPUT}": HEAD_INPUT, "control": CONTROL,
    }  # fmt: skip
    for number, name in enumerate(halves.crossing):
        names.setdefault(f"rows {name}", f"crossing {number}")
    yield FEW, lower(Weighed(operations, matrices), few, given, [head.output]), names
    before = lower(Weighed(halves.before, matrices), many, given, halves.crossing)
    yield MANY, before, names
    given = {name: before.widths[name] for name in halves.crossing}
    layers = sum(isinstance(operation, Attention) for operation in halves.before)
    after = Weighed(halves.after, matrices, layers - 1)
    yield REST, lower(after, many, given, [hidden.buffer]), names
    given = {_HEAD_INPUT: hidden.width}
    yield HEAD, lower(Weighed((alone,), matrices), few, given, [head.output]), names


def _first_name(operations: tuple[Operation, ...]) -> str:
    first = operations[0]
    if isinstance(first, Product):
        return first.source.buffer
    assert not isinstance(first, Attention), "nothing attends to embedded tokens"
    return first.inputs[0].buffer


def _named(
    table: ProgramTable,
    lowered: Lowered,
    names: Mapping[str, str],
    constants: dict[int, tuple[str, NDArray[np.float32]]],
) -> ProgramTable:
    """Return buffers our names, and each small weight one that all programs know it by."""

    def name_of(buffer: str) -> str:
        values = lowered.constants.get(buffer)
        if values is None:
            return names.get(buffer, buffer)
        known = constants.setdefault(id(values), (f"constant {len(constants)}", values))
        return known[0]

    return replace(table, buffers=tuple(map(name_of, table.buffers)))
