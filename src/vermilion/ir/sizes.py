"""How much memory a model's values would take, known before any of it is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import onnx
import onnx_ir as ir

from vermilion.errors import ModelError
from vermilion.ir.limits import memory_limit_bytes
from vermilion.ir.opset import required_inputs, static_shape
from vermilion.ir.samples import inferred_for_sample

_HINT = "bind smaller sizes with `--dim`; if they are fixed in the file, do not trust it"


def check_sizes(
    model: ir.Model,
    limit_bytes: int | None = None,
    inferred: onnx.GraphProto | None = None,
) -> None:
    """Raise ModelError where a run on sample inputs would need more than `limit_bytes`.

    What a file says of its inner values is not believed: shapes are inferred anew from inputs and
    weights. Values whose size depends on data are not counted; ONNX Runtime is given the same
    limit for those. A value counts from the node that makes it to the last that reads it.
    The model's nodes are sorted, which says the same. `inferred` is the model inferred anew, where
    that was done: it is taken where no input is open.
    """
    limit = memory_limit_bytes() if limit_bytes is None else limit_bytes
    model.graph.sort()
    inputs = required_inputs(model)
    if inferred is not None and all(static_shape(value) is not None for value in inputs):
        graph: onnx.GraphProto | None = inferred
    else:
        graph = inferred_for_sample(model)
    if graph is not None:
        _check_graph(graph, limit)


def _check_graph(graph: onnx.GraphProto, limit: int) -> None:
    sizes = dict(_value_bytes(graph))
    for value in graph.input:
        _check_one(value.name, sizes, limit, f"input `{value.name}`")
    live = sum(sizes.get(value.name, 0) for value in graph.input)
    last_use = _last_uses(graph)
    for at, node in enumerate(graph.node):
        place = f"node `{node.name or next(iter(node.output), '')}`, {node.op_type}"
        for name in node.output:
            _check_one(name, sizes, limit, place)
            live += sizes.get(name, 0)
        if live > limit:
            raise ModelError(
                f"its values need {_gigabytes(live)} at one time; at most {_gigabytes(limit)} "
                "(half of this machine's memory) are lent to a model",
                where=place,
                hint=_HINT,
            )
        for name in {*node.input, *node.output}:
            if last_use.get(name) == at:
                live -= sizes.get(name, 0)


def _check_one(name: str, sizes: Mapping[str, int], limit_bytes: int, place: str) -> None:
    size = sizes.get(name, 0)
    if size > limit_bytes:
        raise ModelError(
            f"`{name}` needs {_gigabytes(size)}; at most {_gigabytes(limit_bytes)} (half of this "
            "machine's memory) are lent to a model",
            where=place,
            hint=_HINT,
        )


def _value_bytes(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        sizes = [dim.dim_value for dim in tensor.shape.dim]
        if not tensor.HasField("shape") or not tensor.elem_type:
            continue
        if tensor.elem_type == onnx.TensorProto.STRING or any(size < 0 for size in sizes):
            continue
        yield value.name, math.prod(sizes) * ir.DataType(tensor.elem_type).bitwidth // 8


def _last_uses(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the number of the node after which each value is let go; outputs are kept."""
    found: dict[str, int] = {}
    for at, node in enumerate(graph.node):
        for name in (*node.output, *node.input):
            found[name] = at
    kept = {value.name for value in (*graph.output, *graph.input)}
    return {name: at for name, at in found.items() if name not in kept}


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB"
