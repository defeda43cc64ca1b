"""Attributes of a node, with the default of their operator.

Only standard operators are held against their definition when a model is loaded (`schemas`):
an attribute of any other may have any type, so that each reader checks what it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import onnx_ir as ir

from vermilion.errors import ModelError
from vermilion.ir.opset import where
from vermilion.ir.symbolic import larger

EXPORT = "the file is damaged, or its exporter is at fault: export the model again"


def integer(node: ir.Node, name: str, default: int | None = None) -> int:
    """Return a whole number.

    Raises: ModelError where it is missing and there is no default.
    """
    attribute = _written(node, name, ir.AttributeType.INT)
    if attribute is not None:
        return int(attribute.as_int())
    if default is None:
        raise ModelError(f"its attribute `{name}` is missing", where=where(node), hint=EXPORT)
    return default


def flag(node: ir.Node, name: str) -> bool:
    """Say whether a whole number is there and not 0."""
    return integer(node, name, 0) != 0


def number(node: ir.Node, name: str, default: float) -> float:
    """Return a float attribute."""
    attribute = _written(node, name, ir.AttributeType.FLOAT)
    return default if attribute is None else float(attribute.as_float())


def text(node: ir.Node, name: str, default: str) -> str:
    """Return a string attribute."""
    attribute = _written(node, name, ir.AttributeType.STRING)
    return default if attribute is None else attribute.as_string()


@overload
def integers(node: ir.Node, name: str, default: Sequence[int]) -> tuple[int, ...]: ...


@overload
def integers(node: ir.Node, name: str, default: None) -> tuple[int, ...] | None: ...


def integers(node: ir.Node, name: str, default: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return a list of whole numbers."""
    attribute = _written(node, name, ir.AttributeType.INTS)
    if attribute is not None:
        return tuple(attribute.as_ints())
    return None if default is None else tuple(default)


@dataclass(frozen=True)
class Window:
    """How a convolution or a pooling walks over its input; one number a spatial axis.

    `pads` are begin then end; None: as much as `auto_pad` says, which depends on the input.
    (`ir.literal`, what others are held against, works its windows out by itself.)
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...] | None
    auto_pad: str

    def explicit_pads(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """Return begin and end padding for an input whose spatial axes have these lengths.

        Source: ONNX Conv-11, `auto_pad`: SAME keeps ceil(length ÷ stride) outputs.
        """
        if self.pads is not None:
            return self.pads
        if self.auto_pad == "VALID":
            return (0,) * 2 * len(self.kernel)
        small, large = [], []
        for length, size, stride, dilation in zip(
            lengths, self.kernel, self.strides, self.dilations, strict=True
        ):
            outputs = -(-length // stride)
            total = larger(0, (outputs - 1) * stride + (size - 1) * dilation + 1 - length)
            small.append(total // 2)
            large.append(total - total // 2)
        return (*small, *large) if self.auto_pad == "SAME_UPPER" else (*large, *small)


def window_of(node: ir.Node, kernel: Sequence[int]) -> Window:
    """Return how a convolution or a pooling with this kernel walks."""
    axes = len(kernel)
    words = text(node, "auto_pad", "NOTSET")
    return Window(
        tuple(kernel),
        integers(node, "strides", (1,) * axes),
        integers(node, "dilations", (1,) * axes),
        integers(node, "pads", (0,) * (2 * axes)) if words == "NOTSET" else None,
        words,
    )


def wrong_type(node: ir.Node, attribute: ir.Attr, wanted: ir.AttributeType) -> ModelError:
    """Return the error for an attribute of another type than its operator's."""
    return ModelError(
        f"its attribute `{attribute.name}` is {attribute.type.name}, and has to be {wanted.name}",
        where=where(node),
        hint=EXPORT,
    )


def _written(node: ir.Node, name: str, wanted: ir.AttributeType) -> ir.Attr | None:
    attribute = node.attributes.get(name)
    if attribute is None:
        return None
    if attribute.type != wanted:
        raise wrong_type(node, attribute, wanted)
    if attribute.is_ref():
        raise ModelError(
            f"its attribute `{name}` is the function's, whose caller gives it", where=where(node)
        )
    return attribute
