"""What the code generator needs to know of a processor, from the target's facts."""

from __future__ import annotations

from dataclasses import dataclass

from vermilion.hardware.targets.target import Target

# LLVM's generic level splits vectors of 512 bits into halves, and has no VNNI.
# Source: LLVM, llvm/lib/Target/X86/X86.td, x86-64-v4: TuningPrefer256Bit.
_LLVM_FEATURES = {"x86-64-v4": "+avx512vnni,-prefer-256-bit"}


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


def isa_of(target: Target) -> Isa:
    """Return the instruction set of a CPU target."""
    wide = "avx512f" in target.features
    return Isa(
        llvm_cpu=target.llvm_cpu,
        lanes=16 if wide else 8,
        registers=32 if wide else 16,
        has_bf16="avx512_bf16" in target.features or "avx512bf16" in target.features,
        has_vnni="avx512_vnni" in target.features or "avx512vnni" in target.features,
        llvm_features=_LLVM_FEATURES.get(target.llvm_cpu, ""),
    )
