"""Results that are maps, as `ZipMap` of scikit-learn's classifiers makes them.

The graph library has no type for them. ONNX Runtime finds types of results itself, so at the door
a result that is a map loses its type, and carries it as text for whoever asks what the model gives.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from vermilion.errors import UnsupportedError
from vermilion.ir.protobuf import all_graphs

TYPE_KEY = "vermilion.type"
"""The name under which a value without a type carries ONNX Runtime's text of it."""


def leave_out_maps(model: onnx.ModelProto, where: str) -> None:
    """Before → after: a result of a map's type → one of no type, with the text of the type.

    Raises: UnsupportedError for an input that is a map: its type is nowhere else.
    """
    for graph in all_graphs(model.graph):
        for info in graph.input:
            if _has_map(info.type):
                raise UnsupportedError(
                    f"the input `{info.name}` is a map, which is not read yet",
                    where=where,
                    hint="give the model tensors: with skl2onnx, leave `DictVectorizer` out",
                )
        for info in (*graph.output, *graph.value_info):
            if _has_map(info.type):
                info.metadata_props.add(key=TYPE_KEY, value=_text(info.type))
                info.ClearField("type")


def _has_map(kind: onnx.TypeProto) -> bool:
    while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
        kind = _element(kind)
    return bool(kind.HasField("map_type"))


def _element(kind: onnx.TypeProto) -> onnx.TypeProto:
    is_sequence = kind.HasField("sequence_type")
    return kind.sequence_type.elem_type if is_sequence else kind.optional_type.elem_type


def _text(kind: onnx.TypeProto) -> str:
    match kind.WhichOneof("value"):
        case "map_type":
            return f"map({_name(kind.map_type.key_type)},{_text(kind.map_type.value_type)})"
        case "sequence_type":
            return f"seq({_text(_element(kind))})"
        case "optional_type":
            return f"optional({_text(_element(kind))})"
        case _:
            return f"tensor({_name(kind.tensor_type.elem_type)})"


def _name(number: int) -> str:
    known = {int(kind) for kind in ir.DataType}
    return ir.DataType(number).name.lower() if number in known else str(number)
