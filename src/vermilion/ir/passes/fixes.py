"""Rewrites that make more of a model fit for an NPU, applied on request and each one proven.

They are not part of simplifying: on a CPU they gain nothing. Each is run on a copy, and kept only
where graph and interface are sound and the outputs are those of the model as it came.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from vermilion.errors import Refusal, VermilionError
from vermilion.ir.attributes import integers, text
from vermilion.ir.opset import constant_of, is_operator, required_inputs, static_shape
from vermilion.ir.passes.bind_dimensions import bind_in_place, dimension_name
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.opset_versions import lower_opset
from vermilion.ir.passes.pipeline import Simplified, simplify
from vermilion.ir.passes.probe import Probe, interface_change, take_probe
from vermilion.ir.passes.rewrite import (
    Notes,
    PassStep,
    Rewrite,
    bypass,
    cannot_bypass,
    drop_if_unread,
    new_weight,
    run_pass,
)
from vermilion.ir.passes.unroll_batch import unroll_batch
from vermilion.ir.passes.write_attributes import write_attributes
from vermilion.ir.verify import check_graph
from vermilion.progress import Progress, no_progress

_BATCH_NAMES = frozenset(("b", "batch", "batch_size", "bs", "n", "n_batch", "num_batch"))


def freeze_batch(model: ir.Model, notes: Notes) -> None:
    """Before → after: `x[N, 3, 224, 224]` → `x[1, 3, 224, 224]`.

    An input's first size is its batch if it has a batch's name, or if the input has rank 4 (images;
    exporters name their batch `unk__653` or not at all). Every other open size is refused: what it
    should be, only the user knows.
    """
    sizes: dict[str, int] = {}
    for value in required_inputs(model):
        if value.shape is None:
            notes.refuse(f"input `{value.name}`", "its rank is not known", "export it with a shape")
            continue
        _freeze_unnamed(value, notes)
        for axis, size in enumerate(value.shape.dims):
            if isinstance(size, int) and size >= 0:
                continue
            name = dimension_name(size)
            if axis == 0 and name and (name.lower() in _BATCH_NAMES or len(value.shape) == 4):
                sizes[name] = 1
            elif name not in sizes:
                hint = f"`--dim {name}=…`" if name else f"`--dim {value.name}=1x…`"
                reason = f"axis {axis} is dynamic"
                notes.refuse(f"input `{value.name}`", reason, f"choose it: {hint}")
    if sizes:
        bind_in_place(model, sizes, notes)


def _freeze_unnamed(value: ir.Value, notes: Notes) -> None:
    assert value.shape is not None, "the caller has looked"
    first = value.shape.dims[0] if len(value.shape) == 4 else 1
    if isinstance(first, int) and first >= 0:
        return
    if dimension_name(first):
        return
    value.shape = ir.Shape([1, *value.shape.dims[1:]])
    notes.fired += 1


def fold_pad(model: ir.Model, notes: Notes) -> None:
    """Before → after: `Conv (Pad (x, p), w)` → `Conv<pads += p> (x, w)`."""
    for node in list(model.graph):
        if not is_operator(node, "Pad"):
            continue
        pads = _spatial_pads(node)
        reason = pads if isinstance(pads, str) else _unfit_reader(node)
        if reason or isinstance(pads, str):
            notes.refuse(node.name or "?", str(reason))
            continue
        for reader in node.outputs[0].consumers():
            _widen(reader, pads)
        amounts = [value for value in node.inputs[1:] if value is not None]
        source = node.inputs[0]
        assert source is not None, "a Pad has an input"
        bypass(node, source)
        for value in amounts:
            drop_if_unread(model.graph, value)
        notes.fired += 1


def _spatial_pads(node: ir.Node) -> tuple[int, ...] | str:
    """Return the pads of height and width as Conv spells them, or why there are none."""
    mode = text(node, "mode", "constant")
    if mode != "constant":
        return f"it pads by {mode}, not by zeros"
    amounts = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if amounts is None:
        return "its amounts are computed"
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        return "it pads some axes only"
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is not None and value.name:
        filling = constant_of(value)
        if filling is None or filling.numpy().any():
            return "it does not pad by zeros"
    pads = [int(amount) for amount in amounts.numpy().ravel()]
    rank = len(pads) // 2
    before, after = pads[:rank], pads[rank:]
    if any(before[:2]) or any(after[:2]) or min(pads, default=0) < 0:
        return "it pads other axes than height and width, or cuts"
    return (*before[2:], *after[2:])


def _unfit_reader(node: ir.Node) -> str:
    readers = node.outputs[0].consumers()
    if not readers or node.outputs[0].is_graph_output():
        return "its result leaves the model"
    for reader in readers:
        if not is_operator(reader, "Conv") or reader.inputs[0] is not node.outputs[0]:
            return f"{reader.op_type} reads it, not a convolution"
        if text(reader, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            return "the convolution chooses its own padding"
    return cannot_bypass(node, node.inputs[0])


def _widen(conv: ir.Node, pads: tuple[int, ...]) -> None:
    own = integers(conv, "pads", (0,) * len(pads))
    if "auto_pad" in conv.attributes:
        del conv.attributes["auto_pad"]
    both = tuple(a + b for a, b in zip(own, pads, strict=True))
    conv.attributes.add(ir.AttrInt64s("pads", both))


def replace_prelu(model: ir.Model, notes: Notes) -> None:
    """Before → after: `PRelu (x, s)` → `Relu (x) - s · (Relu (x) - x)`.

    Both differences are exact: where x is positive the second is 0, where it is negative it is -x.
    Source: ONNX PRelu-16, f(x) = s·x for x < 0, else x. The NPU's BF16 compiler gets PRelu wrong
    for some weights (https://github.com/amd/RyzenAI-SW/issues/390).
    """
    for node in list(model.graph):
        if not is_operator(node, "PRelu"):
            continue
        x, slope = node.inputs[0], node.inputs[1]
        if x is None or slope is None or (x.dtype is not None and not x.dtype.is_floating_point()):
            notes.refuse(node.name or "?", "it is not on floats")
            continue
        relu = _like(node, "Relu", [x], "relu")
        negative = _like(node, "Sub", [relu.outputs[0], x], "negative")
        scaled = _like(node, "Mul", [slope, negative.outputs[0]], "scaled")
        last = _like(node, "Sub", [relu.outputs[0], scaled.outputs[0]], "result")
        model.graph.insert_before(node, [relu, negative, scaled, last])
        reason = cannot_bypass(node, last.outputs[0])
        assert not reason, "its replacement is a plain node's result"
        bypass(node, last.outputs[0])
        notes.fired += 1


def _like(node: ir.Node, op_type: str, inputs: list[ir.Value], suffix: str) -> ir.Node:
    """Return a new node whose result has the type and shape of `node`'s."""
    old = node.outputs[0]
    made = ir.node(op_type, inputs, name=f"{node.name or old.name}/{suffix}")
    made.outputs[0].name = f"{old.name}/{suffix}"
    made.outputs[0].type, made.outputs[0].shape = old.type, old.shape
    return made


def settle_resize(model: ir.Model, notes: Notes) -> None:
    """Before → after: `Resize (x, roi, , sizes)` → `Resize (x, , scales)`.

    Nearest by whole factors becomes `asymmetric` and `floor`, which pick the same element: with
    factor s, output i = k·s + r (0 ≤ r < s) lies at k + (r + 0.5)/s - 0.5 in half_pixel, which
    rounds, halves down, to k. The NPU's compiler leaves models with other forms to the CPU
    (https://github.com/amd/RyzenAI-SW/issues/164 and 318).
    """
    for node in model.graph:
        if is_operator(node, "Resize") and len(node.inputs) > 2:
            notes.fired += _settle(model.graph, node, notes)


def _settle(graph: ir.Graph, node: ir.Node, notes: Notes) -> int:
    place = node.name or "?"
    if text(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        notes.refuse(place, "it crops", "crop with Slice before it")
        return 0
    before, after = static_shape(node.inputs[0]), static_shape(node.outputs[0])
    if before is None or after is None or 0 in before or len(before) != len(after):
        notes.refuse(place, "its shapes are not known", "bind the model's dimensions with `--dim`")
        return 0
    changed = 0
    if node.inputs[1] is not None and node.inputs[1].name:
        roi = node.inputs[1]
        node.replace_input_with(1, None)
        drop_if_unread(graph, roi)
        changed = 1
    changed += _write_scales(graph, node, before, after, notes)
    return changed + _plain_modes(node, before, after)


def _write_scales(
    graph: ir.Graph,
    node: ir.Node,
    before: tuple[int, ...],
    after: tuple[int, ...],
    notes: Notes,
) -> int:
    sizes = node.inputs[3] if len(node.inputs) > 3 else None
    if sizes is None or not sizes.name:
        return 0
    if "keep_aspect_ratio_policy" in node.attributes or "axes" in node.attributes:
        notes.refuse(node.name or "?", "its sizes are for some axes or keep an aspect ratio")
        return 0
    scales = (np.array(after, np.float64) / np.array(before)).astype(np.float32)
    reached = np.floor(np.array(before, np.float32) * scales).astype(np.int64)
    if tuple(int(size) for size in reached) != after:
        notes.refuse(node.name or "?", "no float32 scale gives its sizes exactly")
        return 0
    weight = new_weight(graph, f"{node.name or node.outputs[0].name}/scales", ir.tensor(scales))
    node.replace_input_with(2, weight)
    node.replace_input_with(3, None)
    node.resize_inputs(3)
    drop_if_unread(graph, sizes)
    return 1


def _plain_modes(node: ir.Node, before: tuple[int, ...], after: tuple[int, ...]) -> int:
    if text(node, "mode", "nearest") != "nearest":
        return 0
    if any(new % old for old, new in zip(before, after, strict=True)):
        return 0
    scales = node.inputs[2]
    if scales is None or constant_of(scales) is None:
        return 0
    form = (
        text(node, "coordinate_transformation_mode", "half_pixel"),
        text(node, "nearest_mode", "round_prefer_floor"),
    )
    if form != ("half_pixel", "round_prefer_floor"):
        return 0
    node.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
    node.attributes.add(ir.AttrString("nearest_mode", "floor"))
    return 1


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
