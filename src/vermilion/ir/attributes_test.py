"""Attributes read back from nodes: with, without, and of the wrong type."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import pytest

from vermilion.errors import ModelError
from vermilion.ir.attributes import flag, integer, integers, number, text

_ATTRIBUTES = (
    ir.AttrInt64("whole", 3),
    ir.AttrInt64("zero", 0),
    ir.AttrFloat32("real", 0.5),
    ir.AttrString("word", "linear"),
    ir.AttrInt64s("list", [1, 2]),
    ir.AttrInt64s("nothing", []),
    ir.RefAttr("given", "outer", ir.AttributeType.INT),
)
_READERS = {
    "whole": lambda node, name: integer(node, name, 7),
    "real": lambda node, name: number(node, name, 7.0),
    "word": lambda node, name: text(node, name, "cubic"),
    "list": lambda node, name: integers(node, name, (7,)),
}


def _node() -> ir.Node:
    return ir.node("Thing", [], attributes={one.name: one for one in _ATTRIBUTES}, name="odd")


def test_what_is_written_is_read() -> None:
    node = _node()
    assert {name: read(node, name) for name, read in _READERS.items()} == {
        "whole": 3, "real": 0.5, "word": "linear", "list": (1, 2),
    }  # fmt: skip
    assert integers(node, "nothing", (7,)) == ()
    assert integers(node, "list", None) == (1, 2)


def test_what_is_missing_has_the_default() -> None:
    node = _node()
    assert [read(node, "absent") for read in _READERS.values()] == [7, 7.0, "cubic", (7,)]
    assert integers(node, "absent", None) is None
    assert (flag(node, "whole"), flag(node, "zero"), flag(node, "absent")) == (True, False, False)


def test_what_is_needed_has_to_be_there() -> None:
    with pytest.raises(ModelError, match=r"`absent` is missing \(node `odd`, Thing\)\nhint: .*exp"):
        integer(_node(), "absent")


@pytest.mark.parametrize("wanted", _READERS)
def test_a_wrong_type_is_named(wanted: str) -> None:
    read: Callable[[ir.Node, str], object] = _READERS[wanted]
    for other in set(_READERS) - {wanted}:
        with pytest.raises(ModelError, match=rf"`{other}` is \w+, and has to be .*`odd`, Thing"):
            read(_node(), other)


def test_what_only_a_caller_knows_is_refused() -> None:
    with pytest.raises(ModelError, match=r"`given` is the function's"):
        integer(_node(), "given", 1)
