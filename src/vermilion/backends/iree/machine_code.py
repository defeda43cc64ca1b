"""What a GPU program really consists of, read from its code object and its assembly.

Formats: ELF-64 (symbols: sizes of kernels); LLVM AMDGPUUsage, "Code Object V5 Metadata" (registers,
spills, scratch) as the assembler writes it, between `.amdgpu_metadata` and `.end_amdgpu_metadata`.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from vermilion.backends.iree.static_cost import (
    StaticCost,
    instruction_of,
    is_matrix,
    static_cost,
    waves_at_once,
)
from vermilion.errors import UnsupportedError

_LABEL = re.compile(r"([\w$.]+):")
_FIELD = re.compile(r"  [- ] \.(\w+):\s+(.+)")
# How IREE names a kernel: what it computes, the sizes of its loops, the types that it reads.
_PRODUCT = re.compile(
    r"_(?:conv|matmul\w*|batch_matmul\w*|reduction|contract)_([\dx]+)_f16xf16xf\d+"
)
# A register that goes to memory and back costs a hundred cycles of a loop that wants none of it;
# a handful outside of the loop costs nothing that shows.
HEAVY_SPILLS = 16
# Under this a product is launch time whatever its instructions are.
_SMALL_PRODUCT = 1 << 20
_DYNSYM, _FUNCTION = 11, 2


@dataclass(frozen=True)
class Kernel:
    """One kernel for one GPU. Bytes of scratch and of group memory; `matrix` is by instruction."""

    gpu: str
    name: str
    code_bytes: int
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    scratch_bytes: int
    group_bytes: int
    matrix: Mapping[str, int]
    cost: StaticCost = field(default_factory=StaticCost)

    @property
    def is_half_product(self) -> bool:
        """Whether it multiplies float16 and is large enough for the matrix units to matter.

        A single row times a matrix is bound by memory, and has no use for them.
        """
        found = _PRODUCT.search(self.name)
        if found is None:
            return False
        sizes = [int(size) for size in found[1].split("x")]
        return sizes[0] > 1 and math.prod(sizes) >= _SMALL_PRODUCT

    def as_json(self) -> dict[str, object]:
        """Return the keys of `machine_code` in `compile --json`."""
        return {
            "gpu": self.gpu,
            "kernel": self.name,
            "code_bytes": self.code_bytes,
            "vgprs": self.vgprs,
            "agprs": self.agprs,
            "sgprs": self.sgprs,
            "vgpr_spills": self.vgpr_spills,
            "sgpr_spills": self.sgpr_spills,
            "scratch_bytes": self.scratch_bytes,
            "group_bytes": self.group_bytes,
            "matrix_instructions": sum(self.matrix.values()),
            "matrix": dict(self.matrix),
            "instructions": self.cost.instructions,
            "matrix_share": round(self.cost.matrix_share, 4),
            "shared_memory_instructions": self.cost.shared,
            "memory_instructions": self.cost.memory,
            "scratch_instructions": self.cost.scratch,
            "waves_per_simd": waves_at_once(self.gpu, self.vgprs),
        }


def read_kernels(gpu: str, code_object: bytes, assembly: str) -> tuple[Kernel, ...]:
    """Return the kernels of a code object, in order.

    Raises: UnsupportedError where it is not what it should be, or the two do not belong together.
    """
    instructions = _instructions(assembly)
    sizes = function_sizes(code_object)
    kernels = []
    for row in _metadata(assembly):
        name = row.get("name", "").strip("'")
        if name not in sizes:
            raise UnsupportedError(f"the code object for {gpu} has no kernel `{name}`")
        kernels.append(
            Kernel(
                gpu=gpu,
                name=name,
                code_bytes=sizes[name],
                vgprs=_number(row, "vgpr_count"),
                agprs=_number(row, "agpr_count"),
                sgprs=_number(row, "sgpr_count"),
                vgpr_spills=_number(row, "vgpr_spill_count"),
                sgpr_spills=_number(row, "sgpr_spill_count"),
                scratch_bytes=_number(row, "private_segment_fixed_size"),
                group_bytes=_number(row, "group_segment_fixed_size"),
                matrix={
                    key: count
                    for key, count in sorted(instructions.get(name, Counter()).items())
                    if is_matrix(key)
                },
                cost=static_cost(instructions.get(name, Counter())),
            )
        )
    if len(kernels) != len(sizes):
        raise UnsupportedError(
            f"the code object for {gpu} has {len(sizes)} kernels, its metadata {len(kernels)}"
        )
    return tuple(kernels)


def findings(kernels: tuple[Kernel, ...]) -> Iterator[str]:
    """Yield what a user should know: a sentence with a hint for each kind of trouble and GPU."""
    for gpu in dict.fromkeys(kernel.gpu for kernel in kernels):
        mine = [kernel for kernel in kernels if kernel.gpu == gpu]
        without = [k.name for k in mine if k.is_half_product and not k.matrix]
        if without:
            yield (
                f"{gpu}: {len(without)} of {len(mine)} kernels multiply float16 without a matrix "
                f"instruction ({_some(without)}); hint: sizes that are multiples of 16 let the "
                "compiler use them"
            )
        spilling = [k.name for k in mine if k.vgpr_spills >= HEAVY_SPILLS]
        if spilling:
            worst = max(kernel.vgpr_spills for kernel in mine)
            yield (
                f"{gpu}: {len(spilling)} of {len(mine)} kernels spill registers to memory, up to "
                f"{worst} ({_some(spilling)}); hint: another batch size makes other tiles, "
                "and what they cost shows only on the device"
            )


def function_sizes(code_object: bytes) -> dict[str, int]:
    """Return the bytes of every function that an ELF file names. Raises: UnsupportedError."""
    try:
        return _function_sizes(code_object)
    except (struct.error, IndexError, ValueError) as error:
        raise UnsupportedError(
            f"the code object is not an ELF file as it should be: {error}"
        ) from None


def _function_sizes(data: bytes) -> dict[str, int]:
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("no ELF-64 at its beginning")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry) for i in range(count)]
    found = {}
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind != _DYNSYM:
            continue
        names_at = sections[link][4]
        for at in range(offset, offset + size, 24):
            name_at, info, _, _, _, length = struct.unpack_from("<IBBHQQ", data, at)
            if info & 0xF == _FUNCTION:
                start = names_at + name_at
                found[data[start : data.index(b"\0", start)].decode()] = length
    return found


def _instructions(assembly: str) -> dict[str, Counter[str]]:
    """Count the instructions of each function, as they stand."""
    found: dict[str, Counter[str]] = {}
    function = ""
    for line in assembly.splitlines():
        if label := _LABEL.match(line):
            if not label[1].startswith(".L"):
                function = label[1]
        elif name := instruction_of(line):
            found.setdefault(function, Counter())[name] += 1
    return found


def _metadata(assembly: str) -> Iterator[dict[str, str]]:
    """Yield the plain fields of each kernel, without those of its arguments, which stand deeper."""
    _, _, rest = assembly.partition(".amdgpu_metadata")
    text, _, _ = rest.partition(".end_amdgpu_metadata")
    _, _, text = text.partition("amdhsa.kernels:")
    row: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("amdhsa."):
            break
        if line.startswith("  - "):
            if row:
                yield row
            row = {}
        if field := _FIELD.fullmatch(line):
            row[field[1]] = field[2].strip()
    if row:
        yield row


def _number(row: Mapping[str, str], key: str) -> int:
    text = row.get(key, "0")
    return int(text) if text.isdigit() else 0


def _some(names: list[str]) -> str:
    short = [name.partition("$async_")[2] or name for name in names]
    return ", ".join(short[:2]) + (", …" if len(short) > 2 else "")
