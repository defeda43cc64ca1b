"""What the code generator made on the way, for people: kernels as a table, IR, assembly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.object import assembly
from vermilion.codegen.program import module_text
from vermilion.codegen.tensor import View

KERNELS_FILE, IR_FILE, ASSEMBLY_FILE = "kernels.txt", "program.ll", "program.s"


def write_dump(folder: Path, steps: Sequence[Step], isa: Isa) -> None:
    """Write the steps, the LLVM IR and the assembly of one part."""
    folder.mkdir(parents=True, exist_ok=True)
    text = module_text(steps, isa)
    (folder / KERNELS_FILE).write_text(kernel_table(steps), encoding="utf-8")
    (folder / IR_FILE).write_text(text, encoding="utf-8")
    written = assembly(text, isa)
    (folder / ASSEMBLY_FILE).write_text(written, encoding="utf-8")


def kernel_table(steps: Sequence[Step]) -> str:
    """Return every step with its tensors and everything that its kernel's code depends on."""
    lines: list[str] = []
    for number, step in enumerate(steps):
        lines.append(f"{number:4} {step.function}  {', '.join(step.nodes)}")
        lines.append(f"     units {step.spec.units}  operations {step.operations:,}")
        for view in step.arguments:
            direction = "writes" if view in step.writes else "reads"
            lines.append(f"     {direction:6} {_view(view)}")
        lines += [f"     {name} = {value}" for name, value in _facts(step)]
        lines.append("")
    return "\n".join(lines)


def _view(view: View) -> str:
    shape = "×".join(map(str, view.shape)) or "scalar"
    strides = ",".join(map(str, view.strides))
    return f"{view.storage} {shape} strides {strides} + {view.offset}  {view.buffer.name}"


def _facts(step: Step) -> list[tuple[str, object]]:
    return [(field.name, getattr(step.spec, field.name)) for field in fields(step.spec)]  # type: ignore[arg-type]
