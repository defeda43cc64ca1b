"""What a file says of its values, held against what its nodes make of their inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from vermilion.errors import ModelError
from vermilion.ir.inference import INFERENCE_ERRORS, infer
from vermilion.ir.opset import where
from vermilion.ir.passes.infer_shapes import without_weights
from vermilion.ir.passes.inline import inline_functions
from vermilion.ir.passes.rewrite import Notes
from vermilion.ir.pool_windows import pools_to_change
from vermilion.ir.protobuf import all_graphs, paired_graphs

Sizes = list[int | None]

_HINT = "remove what the file declares of this value (its `value_info`), or export it again"


@dataclass(frozen=True)
class _Kind:
    """A type and shape as far as they are known. `sizes` is None where the rank is not."""

    dtype: ir.DataType | None
    sizes: Sizes | None

    def contradicts(self, other: _Kind) -> bool:
        """Say whether no tensor can be of both."""
        if None not in (self.dtype, other.dtype) and self.dtype != other.dtype:
            return True
        if self.sizes is None or other.sizes is None:
            return False
        if len(self.sizes) != len(other.sizes):
            return True
        pairs = zip(self.sizes, other.sizes, strict=True)
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)

    def __str__(self) -> str:
        name = self.dtype.name.lower() if self.dtype is not None else "a tensor"
        if self.sizes is None:
            return name
        return f"{name}[{', '.join('?' if s is None else str(s) for s in self.sizes)}]"


def inferred_anew(
    model: ir.Model, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> onnx.GraphProto | None:
    """Return the graph with shapes from inputs and weights alone, None where inference fails.

    What is declared of the nodes' results is left out first. Inputs named in `shapes` have those.
    """
    with without_weights(model) as proto:
        for value in proto.graph.input:
            _fix_shape(value, (shapes or {}).get(value.name))
        _forget_results(proto.graph)
        _name_what_is_inferred(proto.graph)
        try:
            return infer(proto).graph
        except INFERENCE_ERRORS:
            return None  # such a model does not run: ONNX Runtime says why


def check_declared(model: ir.Model, inferred: onnx.GraphProto | None) -> None:
    """Raise ModelError where a value is declared with another type or shape than it has.

    `inferred` is the model inferred anew. Generated code lays out memory by shapes: one that is
    wrong would be memory overwritten. What inference cannot tell (results of operators that it
    does not know, sizes that depend on data) is not checked here. A dynamic shape promises no sizes
    (exporters declare `[batch]` where it is `[batch, 4]`): what is computed is written instead. So
    it is where onnx infers a pool's size wrongly: exporters declare what it infers from there on.
    """
    if model.functions:
        model = model.clone()
        inline_functions(model, Notes())
        inferred = inferred_anew(model)
    is_misled = inferred is not None and bool(pools_to_change(inferred))
    for value, node, computed in list(_contradictions(model, inferred)):
        declared = _declared(value)
        is_dynamic, is_typed = (
            None in (declared.sizes or ()),
            declared.dtype in (None, computed.dtype),
        )
        if (is_dynamic or is_misled) and is_typed and computed.sizes is not None:
            value.shape = ir.Shape(computed.sizes)
            continue
        raise ModelError(
            f"`{value.name}` is declared as {_declared(value)}, and its node makes it {computed}",
            where=where(node),
            hint=_HINT,
        )


def forget_wrong(model: ir.Model, inferred: onnx.GraphProto | None) -> None:
    """Write what values are where another shape is declared.

    Exporters write the sizes of one run beside open dimensions: bound to others, they are wrong.
    """
    for value, _, computed in list(_contradictions(model, inferred)):
        if computed.sizes is not None:
            value.shape = ir.Shape(computed.sizes)


def _contradictions(
    model: ir.Model, inferred: onnx.GraphProto | None
) -> Iterator[tuple[ir.Value, ir.Node, _Kind]]:
    """Go through the values that are declared as what they are not, with what they are."""
    if inferred is None:
        return
    for graph, other in paired_graphs(model.graph, inferred):
        found = {info.name: info.type for info in (*other.value_info, *other.output)}
        for node in graph:
            for value in node.outputs:
                computed = _computed(found[value.name]) if value.name in found else None
                if computed is not None and computed.contradicts(_declared(value)):
                    yield value, node, computed


def _forget_results(graph: onnx.GraphProto) -> None:
    """Leave out what is declared of all that nodes make, here and inside them."""
    for each in all_graphs(graph):
        made = {name for node in each.node for name in node.output}
        del each.value_info[:]
        for value in each.output:
            if value.name in made:
                value.ClearField("type")


def _name_what_is_inferred(graph: onnx.GraphProto) -> None:
    """Write an operator for which onnx 1.23 has no inference as one of the same results."""
    for each in all_graphs(graph):
        for node in each.node:
            if node.op_type == "GroupNormalization" and node.domain in ("", "ai.onnx"):
                node.op_type = "InstanceNormalization"


def _fix_shape(value: onnx.ValueInfoProto, sizes: tuple[int, ...] | None) -> None:
    if sizes is None or not value.type.HasField("tensor_type"):
        return
    if not value.type.tensor_type.HasField("shape"):
        return
    dims = value.type.tensor_type.shape.dim
    del dims[:]
    for size in sizes:
        dims.add(dim_value=size)


def _computed(kind: onnx.TypeProto) -> _Kind | None:
    if not kind.HasField("tensor_type"):
        return None
    tensor = kind.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return _Kind(dtype, None)
    return _Kind(
        dtype, [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
    )


def _declared(value: ir.Value) -> _Kind:
    if value.shape is None:
        return _Kind(value.dtype, None)
    sizes = [size if isinstance(size, int) and size >= 0 else None for size in value.shape.dims]
    return _Kind(value.dtype, sizes)
