"""What becomes of a vector instruction's result before it lies in its register."""

from __future__ import annotations

from typing import Any

import numpy as np

from vermilion.amdgpu.assembly import Instruction
from vermilion.amdgpu.formats import Write
from vermilion.amdgpu.lanes import placed, written
from vermilion.amdgpu.operands import NotInterpretedError
from vermilion.amdgpu.waves import Waves


def finished(instruction: Instruction, write: Write, kind: str) -> Write:
    """Return what writes a result after the instruction's clamp, factor and lanes."""
    modifiers = dict(instruction.modifiers)
    if "clamp" in modifiers or "mul" in modifiers or "div" in modifiers:
        if kind not in ("f32", "f16", "f64"):
            raise NotInterpretedError(f"`{instruction.text}` clamps integers")
        factor = float(modifiers.get("mul", 1)) / float(modifiers.get("div", 1))
        scaled, clamps = write, "clamp" in modifiers

        def write(w: Waves, found: Any) -> None:
            found = found * found.dtype.type(factor) if factor != 1 else found
            scaled(w, np.clip(np.nan_to_num(found, nan=0.0), 0, 1) if clamps else found)

    part = modifiers.get("dst_sel", "DWORD")
    if part != "DWORD":
        operand, unused = instruction.operands[0], modifiers.get("dst_unused", "UNUSED_PAD")
        if kind in ("f32", "f64"):
            raise NotInterpretedError(f"`{instruction.text}` writes a part of a register")

        def write_part(w: Waves, found: Any) -> None:
            whole = np.asarray(found)
            whole = whole.astype(np.float16).view(np.uint16) if kind == "f16" else whole
            words = placed(whole.astype(np.uint32), w.register(operand), part, unused)
            w.set_register(operand, words)

        return write_part
    return _in_lanes(modifiers, write)


def _in_lanes(modifiers: dict[str, str], write: Write) -> Write:
    if not any(key.startswith(("quad", "row", "dpp", "wave")) for key in modifiers):
        return write

    def within(w: Waves, found: Any) -> None:
        lanes = written(modifiers, w)
        before = w.exec
        w.exec = before if lanes is None else before & lanes
        write(w, found)
        w.exec = before

    return within
