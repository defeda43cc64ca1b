"""What machine code says of its speed before it runs: kinds of instructions, waves at one time.

Modelled from the text alone: no loop is counted, nothing is timed.

Source: AMD's instruction set guides, and LLVM AMDGPUUsage, for registers and waves a SIMD.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"\s+([a-z]+_\w+)")
_MATRIX = re.compile(r"v_(?:wmma|mfma|smfmac|swmmac)_")
_SHARED = re.compile(r"ds_(?:read|write|load|store)")
_MEMORY = re.compile(r"(?:buffer|global|flat)_(?:load|store)_")
_SCRATCH = re.compile(r"scratch_(?:load|store)")
# Instructions that only tell the hardware when to go on.
_WAITING = ("s_wait", "s_nop", "s_delay", "s_clause", "s_code_end", "s_sendmsg")


@dataclass(frozen=True)
class Simd:
    """Registers a lane of one SIMD, in which steps a wave gets them, how many waves it holds."""

    registers: int
    granule: int
    waves: int


_CDNA = Simd(512, 8, 8)
_RDNA2, _RDNA, _LARGE_RDNA = Simd(1024, 8, 16), Simd(1024, 16, 16), Simd(1536, 24, 16)
_LARGE = ("gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201", "gfx12-generic")


@dataclass(frozen=True)
class StaticCost:
    """Counts of a kernel's instructions as they stand, each once."""

    instructions: int = 0
    matrix: int = 0
    shared: int = 0
    memory: int = 0
    scratch: int = 0

    @property
    def matrix_share(self) -> float:
        """The share of matrix instructions among those that compute or move something."""
        return self.matrix / self.instructions if self.instructions else 0.0


def static_cost(lines: Mapping[str, int]) -> StaticCost:
    """Return what a kernel consists of; `lines` are its instructions with their numbers."""
    counted = {name: n for name, n in lines.items() if not name.startswith(_WAITING)}

    def of(pattern: re.Pattern[str]) -> int:
        return sum(n for name, n in counted.items() if pattern.match(name))

    return StaticCost(sum(counted.values()), of(_MATRIX), of(_SHARED), of(_MEMORY), of(_SCRATCH))


def waves_at_once(gpu: str, vgprs: int) -> int:
    """Return how many waves of a kernel a SIMD holds, as far as their registers decide.

    `vgprs` are all that a lane has, accumulators among them.
    """
    if gpu.startswith("gfx9"):
        simd = _CDNA
    elif gpu.startswith("gfx10"):
        simd = _RDNA2
    else:
        simd = _LARGE_RDNA if gpu in _LARGE else _RDNA
    wanted = max(1, -(-vgprs // simd.granule)) * simd.granule
    return min(simd.waves, simd.registers // wanted)


def instruction_of(line: str) -> str:
    """Return an assembly line's instruction, nothing where it has none."""
    found = _INSTRUCTION.match(line)
    return found[1] if found else ""


def is_matrix(name: str) -> bool:
    """Say whether an instruction is one of the matrix units."""
    return bool(_MATRIX.match(name))
