"""What each operator does, by domain, name and version; for those left, `onnx.reference`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from vermilion.ir.literal import (
    attention,
    control,
    elementwise,
    fused,
    fused_quantized,
    indexing,
    movement,
    normalize,
    products,
    quantize,
    recurrent,
    reduce,
    resize,
    search,
    windows,
)
from vermilion.ir.literal.call import Call, Row, Table

_STANDARD = (
    attention,
    control,
    elementwise,
    indexing,
    movement,
    normalize,
    windows,
    products,
    quantize,
    recurrent,
    reduce,
    resize,
    search,
)

OPERATORS: Mapping[str, Table] = {
    "com.microsoft": {**fused.OPERATORS, **fused_quantized.OPERATORS},
    "vermilion.numbers": fused_quantized.OWN,
    "": {name: rows for module in _STANDARD for name, rows in module.OPERATORS.items()},
}


def find_row(domain: str, name: str, version: int) -> Row | None:
    """Return what an operator does in a version of its domain, None where it is not here."""
    domain = "" if domain == "ai.onnx" else domain
    rows = OPERATORS.get(domain, {}).get(name, ())
    known = [row for row in rows if row.since <= version]
    return known[-1] if known else None


Array = NDArray[Any]

# What has a random result or no kernel that is right: better none than a wrong one.
_REFUSED = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)


def find_fallback(node: ir.Node, version: int) -> Row | None:
    """Return the row that runs a standard operator by the reference, None where it cannot."""
    if node.domain not in ("", "ai.onnx") or node.op_type in _REFUSED:
        return None
    if not onnx.defs.has(node.op_type, ""):
        return None
    return Row(_by_reference, moves=False)


def _by_reference(call: Call) -> tuple[Any, ...]:
    node = ir.to_proto(call.node)
    names = [f"x{at}" if call.has(at) else "" for at in range(len(call.inputs))]
    results = [f"y{at}" for at in range(len(node.output))]
    del node.input[:], node.output[:]
    node.input.extend(names)
    node.output.extend(results)
    for attribute in node.attribute:
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            raise call.unsupported(f"the interpreter has no `{node.op_type}`")
    graph = onnx.GraphProto(name="one")
    graph.node.append(node)
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in names if name)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in results)
    model = onnx.ModelProto(ir_version=10, graph=graph)
    model.opset_import.append(onnx.OperatorSetIdProto(domain="", version=call.version))
    given = {name: call[at] for at, name in enumerate(names) if name}
    try:
        found = ReferenceEvaluator(model).run(None, given)
    except (NotImplementedError, RuntimeError, AttributeError, AssertionError) as error:
        words = str(error).splitlines() or [type(error).__name__]
        raise call.unsupported(f"the reference cannot run it: {words[0]}") from error
    return tuple(_held(result) for result in found)


def _held(result: Any) -> Any:
    if not isinstance(result, np.ndarray | np.generic):
        return result
    array = np.asarray(result)
    return array.astype(object) if array.dtype.kind in "US" else array
