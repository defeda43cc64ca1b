"""What the code generator needs to know of a processor, from the target's facts."""

from __future__ import annotations

from dataclasses import dataclass

from vermilion.hardware.targets.target import CpuFacts, Target


@dataclass(frozen=True)
class Isa:
    """Vector width, registers and special instructions.

    Units: `lanes` are 32-bit elements in a vector register.
    """

    llvm_cpu: str
    lanes: int
    registers: int
    has_bf16: bool  # vdpbf16ps: two bfloat16 products a lane, accumulated in float32
    has_vnni: bool  # vpdpbusd: four u8×s8 products a lane, accumulated in int32
    llvm_features: str = ""  # what LLVM is to add to and take from what the core has

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector register."""
        return self.lanes * 4

    def vectors_beside(self, rows: int, vectors: int) -> int:
        """Return how many of some vectors of columns have their sums in registers, of so many rows.

        One at least, or a half, a quarter of them: the rest of the registers is for operands.
        """
        while vectors > 1 and rows * vectors > self.registers * 3 // 4:
            vectors //= 2
        return vectors


def isa_of(target: Target) -> Isa:
    """Return the instruction set of a CPU target."""
    core = target.cpu or CpuFacts()
    wide = "avx512f" in core.features
    return Isa(
        llvm_cpu=core.llvm_cpu,
        lanes=16 if wide else 8,
        registers=32 if wide else 16,
        has_bf16="avx512bf16" in core.features,
        has_vnni="avx512vnni" in core.features,
        llvm_features=core.llvm_features,
    )
