"""Attributes of a node, with the default of their operator."""

from __future__ import annotations

import onnx_ir as ir


def number(node: ir.Node, name: str, default: float) -> float:
    """Give a float attribute."""
    attribute = node.attributes.get(name)
    return default if attribute is None else float(attribute.as_float())


def integer(node: ir.Node, name: str, default: int) -> int:
    """Give an integer attribute."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def text(node: ir.Node, name: str, default: str) -> str:
    """Give a string attribute."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_string()
