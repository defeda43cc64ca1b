"""What machine code a part becomes: kernels, which nodes each computes, where tensors lie.

Found by lowering the part as compiling does; no machine code is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import onnx_ir as ir

from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.batch_split import one_entry
from vermilion.codegen.lower.open_sizes import is_open
from vermilion.codegen.lower.part import lower_part
from vermilion.codegen.memory import lives_of, offsets_of, plan_memory
from vermilion.errors import VermilionError
from vermilion.view.graph import Graph, shorter

Found = dict[str, Any]
# Of a kernel's assembly; what is longer is cut, and says so.
_MOST_LINES = 400
_MOST_FACT = 160
# A program of more steps is described by its steps alone.
_MOST_LIVES = 6000


@dataclass
class Programs:
    """The parts in machine code, and every distinct kernel by its function."""

    parts: list[Found] = field(default_factory=list)
    kernels: dict[str, Found] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, model: ir.Model, isa: Isa, *, is_bf16: bool, winograd: bool) -> None:
        """Lower one part; what cannot be is a note."""
        if is_open(model):
            self.notes.append(f"{name}: its sizes are a run's, so that no addresses are settled")
            return
        try:
            entry = one_entry(model)
            whole = model if entry is None else entry.model
            steps = lower_part(whole, isa, "bf16" if is_bf16 else "f32", winograd=winograd).steps
        except VermilionError as error:
            self.notes.append(f"{name}: {error.message}")
            return
        self._add_steps(name, steps, 1 if entry is None else entry.batch)

    def _add_steps(self, name: str, steps: tuple[Step, ...], entries: int) -> None:
        plan = plan_memory(steps)
        offsets = offsets_of(plan)
        lives = lives_of(plan.steps)
        rows = [
            [offsets[key], offsets[key] + life.size_bytes, life.first, life.last,
             shorter(life.buffers[0].name)]
            for key, life in list(lives.items())[:_MOST_LIVES]
        ]  # fmt: skip
        described = [_step(step) for step in plan.steps]
        for step in plan.steps:
            self.kernels.setdefault(step.function, {"facts": list(_facts(step))})
        self.parts.append(
            {"name": name, "steps": described, "lives": rows, "arena_bytes": plan.arena_bytes,
             "entries": entries}
        )  # fmt: skip

    def of_nodes(self, graph: Graph) -> list[list[int] | None]:
        """Return for each node its part and step, None where it has none."""
        at = {
            name: [number, index]
            for number, part in enumerate(self.parts)
            for index, step in reversed(list(enumerate(part["steps"])))
            for name in step["nodes"]
        }
        return [at.get(node.name) for node in graph.nodes]


def _step(step: Step) -> Found:
    nodes = [shorter(name) for name in step.nodes]
    return {
        "name": nodes[-1] if nodes else step.spec.family, "nodes": nodes,
        "kernel": step.function, "operations": step.operations, "units": step.spec.units,
    }  # fmt: skip


def _facts(step: Step) -> Iterator[tuple[str, str]]:
    """Yield what the kernel's code depends on: tile, sizes, epilogue."""
    for one in fields(step.spec):  # type: ignore[arg-type]
        text = str(getattr(step.spec, one.name))
        yield one.name, text if len(text) <= _MOST_FACT else f"{text[:_MOST_FACT]}…"


def add_assembly(kernels: Mapping[str, Found], folder: Path) -> int:
    """Put in what `compile --dump` wrote of each kernel; return for how many."""
    count = 0
    for file in sorted(folder.rglob("program.s")):
        text = file.read_text(encoding="utf-8", errors="replace")
        for name, lines in _functions(text):
            if name in kernels and "assembly" not in kernels[name]:
                kernels[name]["assembly"] = lines
                count += 1
    return count


def _functions(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the instructions of each function, without what only the assembler reads."""
    name, lines = "", list[str]()
    for line in text.splitlines():
        word = line.strip()
        label, colon, _ = word.partition(":")
        if colon and not line[:1].isspace() and not label.startswith((".L", "#")):
            if name and lines:
                yield name, lines
            name, lines = label.strip('"'), []
        elif name and word and (not word.startswith((".", "#")) or word.startswith(".L")):
            if len(lines) < _MOST_LINES:
                lines.append(line.replace("\t", "  ").rstrip())
            elif len(lines) == _MOST_LINES:
                lines.append("… the rest is in the dump")
    if name and lines:
        yield name, lines
