"""Writing Resize in the form that compilers know: constant scales, plain modes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.ir.attributes import text
from vermilion.ir.opset import constant_of, is_operator, static_shape
from vermilion.ir.passes.replace import drop_if_unread, new_weight
from vermilion.ir.passes.report import Notes


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
