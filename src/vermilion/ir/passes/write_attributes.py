"""Writing out attributes that a node leaves to their defaults."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.ir.attributes import integers, window_of
from vermilion.ir.opset import is_operator, static_shape
from vermilion.ir.passes.rewrite import Notes

_WINDOWED = ("AveragePool", "Conv", "ConvTranspose", "MaxPool")


def write_attributes(model: ir.Model, notes: Notes) -> None:
    """Before → after: `Conv (x, w)` → `Conv<strides, pads, dilations, kernel_shape, group>`.

    `auto_pad` SAME becomes `pads` where the shapes are known. The NPU's INT8 compiler aborts where
    a convolution has no `strides` (`XIR conv2d stride REQUIRED`).
    Source: ONNX Conv-11, ConvTranspose-11, MaxPool-12, AveragePool-11: the defaults.
    """
    for node in model.graph.all_nodes():
        if is_operator(node, *_WINDOWED):
            notes.fired += _write(node, notes)


def _write(node: ir.Node, notes: Notes) -> int:
    kernel = _kernel(node)
    if kernel is None:
        notes.refuse(node.name or "?", f"the kernel of this {node.op_type} is not known")
        return 0
    dims = len(kernel)
    wanted: dict[str, tuple[int, ...] | int] = {"strides": (1,) * dims}
    if node.op_type in ("Conv", "ConvTranspose"):
        wanted |= {"kernel_shape": kernel, "dilations": (1,) * dims, "group": 1}
    if node.op_type == "MaxPool":
        wanted["dilations"] = (1,) * dims
    written = 0
    for name, value in wanted.items():
        if name not in node.attributes:
            kind = ir.AttrInt64 if isinstance(value, int) else ir.AttrInt64s
            node.attributes.add(kind(name, value))  # type: ignore[arg-type]
            written += 1
    return written + _write_pads(node, kernel, notes)


def _write_pads(node: ir.Node, kernel: tuple[int, ...], notes: Notes) -> int:
    attribute = node.attributes.get("auto_pad")
    auto = attribute.as_string() if attribute is not None else "NOTSET"
    if auto in ("NOTSET", "VALID"):
        changed = int(attribute is not None) + int("pads" not in node.attributes)
        if attribute is not None:
            del node.attributes["auto_pad"]
        if "pads" not in node.attributes:
            node.attributes.add(ir.AttrInt64s("pads", (0,) * (2 * len(kernel))))
        return changed
    if node.op_type == "ConvTranspose":
        notes.refuse(node.name or "?", "`auto_pad` of ConvTranspose depends on its output's shape")
        return 0
    shape = static_shape(node.inputs[0])
    if shape is None:
        notes.refuse(node.name or "?", "`auto_pad` needs the input's shape, which is not known")
        return 0
    pads = window_of(node, kernel).explicit_pads(shape[2:])
    del node.attributes["auto_pad"]
    node.attributes.add(ir.AttrInt64s("pads", pads))
    return 1


def _kernel(node: ir.Node) -> tuple[int, ...] | None:
    written = integers(node, "kernel_shape", None)
    if written is not None:
        return written
    shape = static_shape(node.inputs[1]) if len(node.inputs) > 1 else None
    return None if shape is None else shape[2:]
