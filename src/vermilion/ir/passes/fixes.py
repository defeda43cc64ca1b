"""Rewrites that make more of a model fit for an NPU, applied on request and each one proven.

They are not part of simplifying: on a CPU they gain nothing. Each is run on a copy, and kept only
where graph and interface are sound and the outputs are those of the model as it came.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from vermilion.errors import Refusal, VermilionError
from vermilion.ir.passes.fold_pad import fold_pad
from vermilion.ir.passes.freeze_batch import freeze_batch
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.lower_opset import lower_opset
from vermilion.ir.passes.pipeline import Simplified, simplify
from vermilion.ir.passes.probe import Probe, interface_change, take_probe
from vermilion.ir.passes.replace_prelu import replace_prelu
from vermilion.ir.passes.report import PassStep, Rewrite, run_pass
from vermilion.ir.passes.settle_resize import settle_resize
from vermilion.ir.passes.unroll_batch import unroll_batch
from vermilion.ir.passes.write_attributes import write_attributes
from vermilion.ir.verify import check_graph
from vermilion.progress import Progress, no_progress

FIXES: tuple[Rewrite, ...] = (
    freeze_batch,  # first: everything else wants shapes
    lower_opset,  # before what writes operators of opset 17
    fold_pad,  # before attributes are written: it changes `pads`
    write_attributes,
    replace_prelu,
    settle_resize,
)
"""In this order."""

SINGLE_ENTRY_FIXES: tuple[Rewrite, ...] = (*FIXES, unroll_batch)
"""For a target that computes one entry of a batch."""


@dataclass(frozen=True)
class Fixed:
    """A model after the fixes, and what each of them did or why it did not."""

    model: ir.Model
    steps: tuple[PassStep, ...]

    @property
    def fired(self) -> tuple[PassStep, ...]:
        """The fixes that changed something."""
        return tuple(step for step in self.steps if step.fired)


def apply_fixes(
    model: ir.Model, *, max_batch: int | None = None, progress: Progress = no_progress
) -> Fixed:
    """Return a copy of `model`, weights shared, with every fix that keeps its outputs.

    `max_batch` is how many entries of a batch the target computes, None for any number.
    """
    rewrites = FIXES if max_batch is None else SINGLE_ENTRY_FIXES
    current = model.clone()
    run_pass(infer_shapes, current)
    probe = take_probe(current)
    steps: list[PassStep] = []
    for done, rewrite in enumerate(rewrites):
        progress("fix", done, len(rewrites))
        current, step = _apply(rewrite, current, probe)
        steps.append(step)
    progress("fix", len(rewrites), len(rewrites))
    return Fixed(current, (*steps, probe.step))


def fix_simplified(
    simplified: Simplified, max_batch: int | None, progress: Progress = no_progress
) -> Simplified:
    """Return a simplified model with the fixes, simplified once more, and what all of them did."""
    fixed = apply_fixes(simplified.model, max_batch=max_batch, progress=progress)
    again = simplify(fixed.model, progress=progress)
    fixes = tuple(replace(step, name=f"fix {step.name}") for step in fixed.steps)
    return Simplified(again.model, (*simplified.steps, *fixes))


def _apply(rewrite: Rewrite, model: ir.Model, probe: Probe) -> tuple[ir.Model, PassStep]:
    work = model.clone()
    name = rewrite.__name__.replace("_", "-")
    try:
        step = run_pass(rewrite, work)
        if not step.fired:
            return model, step
        run_pass(infer_shapes, work)
        check_graph(work)
    except (VermilionError, TypeError, ValueError) as error:
        # onnx_ir raises the other two for graphs that are legal and that it cannot edit so.
        return model, _left_out(name, f"it broke the graph: {error}")
    change = interface_change(model, work)
    if change:
        return model, _left_out(name, f"it changes the interface: {change}")
    difference = probe.difference(work)
    if difference:
        return model, _left_out(name, f"it changes the outputs ({difference})")
    return work, step


def _left_out(name: str, reason: str) -> PassStep:
    return PassStep(name, 0, (("model", Refusal(f"left out: {reason}")),))
