"""A decoder's description → its image: products joined, programs compiled, weights packed.

Machine code is kept in the cache by what it depends on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.cache import CacheNumbers
from vermilion.codegen.emit.decoder.experts import (
    CombineSpec,
    ExpertProductSpec,
    RoutedCopySpec,
    RoutedRowsSpec,
)
from vermilion.codegen.emit.decoder.panel_product import PanelProductSpec
from vermilion.codegen.emit.decoder.routes import ChooseSpec
from vermilion.codegen.emit.decoder.strassen import SevenProductsSpec
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.table import ProgramTable, table_of
from vermilion.codegen.tensor import Buffer
from vermilion.errors import UnsupportedError
from vermilion.llm.engine.decoder import FEW_ROWS, MANY_ROWS
from vermilion.llm.engine.description import (
    Attention,
    Convolution,
    Description,
    ExpertMatrix,
    Experts,
    Operation,
    Product,
    Rotation,
    RowOperation,
    Rows,
)
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
    WEIGHTS,
    Facts,
    Image,
    Prefill,
    about_image,
    embedding_arrays,
    image_of,
    program_arrays,
)
from vermilion.llm.engine.lower import lower
from vermilion.llm.engine.lowering import Lowered, PackedMatrix, Shape, Weighed
from vermilion.llm.engine.matrices import Matrix
from vermilion.llm.engine.rewrite import cut_at_last_attention, join_products
from vermilion.store.arrays import NewArray, in_memory, new_array
from vermilion.store.entry import Entry, EntryWriter
from vermilion.store.namespaces import PROGRAMS
from vermilion.store.store import Store
from vermilion.version import code_digest

# Two groups of panels; a gate's unit has two. 1024 tokens on two cores took 2 % longer with an
# eighth of a product, and 1.2 % with twice as many panels of gates.
_MOST_PANELS = 8
_OBJECT = "decoder_{}.o"
_ROUTED = (ChooseSpec, RoutedCopySpec, RoutedRowsSpec, ExpertProductSpec, CombineSpec)
_ROW_BY_ROW = (
    "row", "heads", "halved_rows", "choose_experts", "routed_copy", "routed_rows",
    "combine_experts", "remembered_rows", "short_convolution",
)  # fmt: skip


def compile_program(lowered: Lowered, isa: Isa, cache: Path) -> ProgramTable:
    """Return the program of steps, from the cache where it was compiled before."""
    entry = Store(cache).get_or_make(
        PROGRAMS, _key(lowered, isa), lambda writer: _write(_compile(lowered, isa), writer)
    )
    return _compile(lowered, isa) if entry is None else _read(entry)


def _chunk(step: Step) -> int:
    """Return the units a worker takes at a time, 0 where that follows from their number.

    Below 0 it follows from it too, but they are no more than so many: whoever is done with a long
    product waits less for the last.

    A kernel makes of its units those that are there, so that a few hundred may be a few dozen. Of
    few rows one worker does all.
    """
    family, units = step.spec.family, step.spec.units
    max_rows = getattr(step.spec, "max_rows", 0)
    if isinstance(step.spec, _ROUTED):
        max_rows = step.spec.routes.max_rows
    if family in _ROW_BY_ROW:
        return units if max_rows <= FEW_ROWS else 4
    if family == "cached_attention":
        return 1 if max_rows <= 16 else units // max_rows
    if isinstance(step.spec, SevenProductsSpec):
        return 1  # of one pair of panels there is enough to do
    product = step.spec.product if isinstance(step.spec, ExpertProductSpec) else step.spec
    if isinstance(product, PanelProductSpec) and max_rows > FEW_ROWS:
        return -_MOST_PANELS // (2 if product.gate else 1)
    return 0


def _key(lowered: Lowered, isa: Isa) -> str:
    """Return what the machine code depends on: shapes and numbers, not the weights' values."""
    names = {id(buffer): index for index, buffer in enumerate(lowered.inputs)}
    parts: list[str] = [code_digest(), repr(isa)]
    for step in lowered.steps:
        parts.append(repr(step.spec))
        for view in step.arguments:
            buffer = view.buffer
            index = names.get(id(buffer), -1)
            parts.append(f"{buffer.place} {index} {buffer.size_bytes} {view.offset} {buffer.name}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _compile(lowered: Lowered, isa: Isa) -> ProgramTable:
    # The compiler is loaded by who compiles; who finds its work in the cache does without.
    from vermilion.codegen.program import compile_steps

    compiled = compile_steps(lowered.steps, lowered.inputs, [], isa, inputs_have_room=True)
    calls = [
        replace(call, chunk=_chunk(step))
        for call, step in zip(compiled.calls, lowered.steps, strict=True)
    ]
    buffers = {("input", index): buffer.name for index, buffer in enumerate(lowered.inputs)}
    return table_of(compiled.objects, compiled.arena_bytes, calls, buffers)


def _write(table: ProgramTable, writer: EntryWriter) -> dict[str, Any]:
    """Write the objects; return what else there is of the table."""
    for number, code in enumerate(table.objects):
        writer.write(_OBJECT.format(number), code.data)
    rows = {"calls": table.calls.tolist(), "addresses": table.addresses.tolist()}
    return {**table.about(), **rows}


def _read(entry: Entry) -> ProgramTable:
    about = entry.about
    objects = [
        bytes(entry.files[_OBJECT.format(number)]) for number in range(len(about["objects"]))
    ]
    calls, addresses = (
        np.array(about[kind], np.int64).reshape(-1, columns)
        for kind, columns in (("calls", 5), ("addresses", 2))
    )
    return ProgramTable.of(about, objects, calls, addresses)


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
    for name, lowered, names in _lowered(description, operations, matrices, isa, prefill):
        compiled = compile_program(lowered, isa, cache)
        programs[name] = _named(compiled, lowered, names, constants)
        if name == MANY:
            given = cut_at_last_attention(operations[:-1]).crossing
            crossing = [(names[f"rows {one}"], lowered.widths[one]) for one in given]
    facts = _facts(description, operations, isa, prefill, crossing, matrices)
    stored: dict[str, NDArray[np.generic]] = {**embedding_arrays(description.embedding)}
    stored |= dict(constants.values())
    for name, table in programs.items():
        stored |= program_arrays(name, table)
    arrays = [new_array(name, values) for name, values in stored.items()]
    return ImageDraft((*arrays, *packed), about_image(facts, programs))


def _facts(
    description: Description,
    operations: Sequence[Operation],
    isa: Isa,
    prefill: Prefill,
    crossing: Sequence[tuple[str, int]],
    matrices: Mapping[str, PackedMatrix],
) -> Facts:
    embedding = description.embedding
    return Facts(
        vocabulary=description.vocabulary,
        positions=min((one.positions for one in _rotations(description)), default=0),
        short=_short(description),
        logits_bound=description.logits_bound,
        logits_factor=description.logits_factor,
        cache_item_bytes=4 if _storage(isa, prefill) == "f32" else 2,
        layers=tuple(
            (one.key_heads, one.head_size) if isinstance(one, Attention) else (1, one.width // 2)
            for one in operations
            if isinstance(one, Attention | Convolution)
        ),
        crossing=tuple(crossing),
        expert_bytes=sum(
            one.routing.chosen * matrices[name].form.size_bytes
            for one in operations
            if isinstance(one, Experts)
            for name, _ in one.products
        ),
        hidden_width=description.hidden.width,
        embedding_width=embedding.width,
        embedding_factor=embedding.factor,
        embedding_bits=embedding.bits,
        embedding_block=embedding.block,
        embedding_type=embedding.type,
    )


def _rotations(description: Description) -> Iterator[Rotation]:
    for layer in description.attentions:
        for rows in (layer.query, layer.key):
            if rows.rotation is not None:
                yield rows.rotation


def _short(description: Description) -> int:
    """Return up to which length sequences are turned otherwise; it is one length for all layers."""
    found = {one.short for one in _rotations(description)} or {0}
    if len(found) > 1:
        lengths = ", ".join(str(one) for one in sorted(found))
        raise UnsupportedError(
            f"layers change how they turn heads at different lengths: {lengths}",
            hint="it runs on ONNX Runtime",
        )
    return found.pop()


def _storage(isa: Isa, prefill: Prefill) -> CacheNumbers:
    """Return in what keys and values are kept, and multiplied.

    Of vectors of eight in 16 bits: memory bounds decoding, and widening takes less than it gives.
    """
    if prefill == "fp32":
        return "f32"
    if isa.has_bf16:
        return "bf16"
    return "bf16_wide" if isa.lanes == 8 else "f32"


def _matrices(operations: Sequence[Operation]) -> tuple[dict[str, PackedMatrix], list[NewArray]]:
    """Return the weights of all products, by the product's output, and as arrays."""
    found: dict[str, PackedMatrix] = {}
    arrays = []

    def add(output: str, name: str, matrix: Matrix | ExpertMatrix, count: int) -> None:
        form = matrix.form()
        size = count * form.size_bytes
        found[output] = PackedMatrix(form, Buffer(name, size, "input"))

        def fill(out: NDArray[np.uint8]) -> None:
            matrix.pack(form, out)

        arrays.append(NewArray(name, "|u1", (size,), fill))

    for operation in operations:
        match operation:
            case Product(output=output, matrix=matrix):
                add(output, f"{WEIGHTS} {len(found)}", matrix, 1)
            case Experts():
                for output, own in operation.products:
                    add(output, f"experts {len(found)}", own, len(own.matrices))
    return found, arrays


def _lowered(
    description: Description,
    operations: tuple[Operation, ...],
    matrices: dict[str, PackedMatrix],
    isa: Isa,
    prefill: Prefill,
) -> Iterator[tuple[str, Lowered, dict[str, str]]]:
    """Yield the steps of each program, and our names for the buffers that it is given."""
    head = operations[-1]
    assert isinstance(head, Product), "a decoder ends with its head"
    hidden = head.source
    storage = _storage(isa, prefill)
    # Whoever asks for float32 has it for short prompts and for tokens, too.
    few = Shape(FEW_ROWS, "f32" if prefill == "fp32" else "int8", "f32", storage, 1, is_single=True)
    codes = _NUMBERS[prefill]
    floats: Literal["bf16", "f32"] = "bf16" if isa.has_bf16 else "f32"
    plain = floats if codes == "int8" else codes
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
    layers = sum(isinstance(one, Attention | Convolution) for one in halves.before)
    after = Weighed(halves.after, matrices, layers - 1)
    yield REST, lower(after, many, given, [hidden.buffer]), names
    given = {_HEAD_INPUT: hidden.width}
    yield HEAD, lower(Weighed((alone,), matrices), few, given, [head.output]), names


def _first_name(operations: tuple[Operation, ...]) -> str:
    first = operations[0]
    if isinstance(first, Product):
        return first.source.buffer
    assert isinstance(first, RowOperation), "nothing attends to embedded tokens"
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
