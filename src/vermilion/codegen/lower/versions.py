"""Which meaning an operator has: lowering reads the present one, and old nodes must not be.

Models are raised to opset 17 where onnx's converter can; what is left comes here as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from vermilion.ir.attributes import integer
from vermilion.ir.opset import static_shape, version_of

# Before it, an operator has broadcasting, training and sizes of its own way.
_OLDEST = 7


def check_version(node: ir.Node) -> str:
    """Say why the version of a node is not read, empty where it is."""
    if node.domain not in ("", "ai.onnx"):
        return ""
    version = version_of(node)
    if version < _OLDEST:
        return f"{node.op_type} of opset {version}, older than {_OLDEST}"
    last, differs = _CHANGED.get(node.op_type, (0, None))
    if version <= last and (differs is None or differs(node)):
        return f"{node.op_type} of opset {version}, which meant another thing"
    return ""


def _takes_axes_together(node: ir.Node) -> bool:
    """Say whether an old Softmax has more than one axis (`settle_softmax` writes it otherwise)."""
    shape = static_shape(node.inputs[0]) or ()
    axis = integer(node, "axis", 1)
    return "axis" not in node.attributes or any(n != 1 for n in shape[axis % len(shape) + 1 :])


def _is_in_training(node: ir.Node) -> bool:
    """Say whether an old BatchNormalization has results of its training, or one mean a place."""
    results = [value for value in node.outputs if value.name]
    return len(results) > 1 or not integer(node, "spatial", 1)


_ANY: Callable[[ir.Node], bool] | None = None

# The last version of another meaning, and whether a node has it; source: ONNX's changelog.
_CHANGED: Mapping[str, tuple[int, Callable[[ir.Node], bool] | None]] = {
    "Softmax": (12, _takes_axes_together),
    "LogSoftmax": (12, _takes_axes_together),
    "BatchNormalization": (13, _is_in_training),
    "Resize": (10, _ANY),  # no coordinates but asymmetric ones, scales as second input
    "Slice": (9, _ANY),  # bounds as attributes
    "Pad": (10, _ANY),  # amounts as an attribute
}
