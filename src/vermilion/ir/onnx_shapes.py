"""onnx's shape inference, kept from ending the process.

A window larger than its image has a result of a size like -2, and so have pads that cut more than
there is, and the last of more equal parts than there are elements. A Slice of that fails an
assertion in C++ (onnx 1.23 and ONNX Runtime 1.32, a `std::clamp` whose bounds are the wrong way
round), which ends the process that asked. Such a model is inferred without its Slices first, and in
a child process where that does not tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from vermilion.ir.infer_here import HIDDEN_DOMAIN, infer_here
from vermilion.ir.protobuf import all_graphs

Attributes = Mapping[str, onnx.AttributeProto]


def infer_by_onnx(
    model: onnx.ModelProto, *, follow: bool = False, strict: bool = False
) -> onnx.ModelProto:
    """Return the model with the shapes that onnx infers; `follow` also through values of shapes.

    Raises: what onnx raises, InferenceError also where a size is below zero.
    """
    if may_go_below_zero(model, follow=follow) and not _is_settled(model, follow=follow):
        return _in_child(model, follow=follow, strict=strict)
    return infer_here(model, follow=follow, strict=strict)


def may_go_below_zero(model: onnx.ModelProto, *, follow: bool = False) -> bool:
    """Say whether a Slice may meet a size below zero, as far as the nodes alone tell."""
    graphs = [*all_graphs(model.graph)]
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for function in model.functions for node in function.node]
    if not any(node.op_type == "Slice" for node in nodes):
        return False
    if any(_size_below_zero(graph) for graph in graphs):
        return True
    constants = _constants(graphs, nodes)
    subtracts = follow and any(node.op_type == "Sub" for node in nodes)
    return any(
        node.op_type in _SHRINKING
        and not _SHRINKING[node.op_type](node, {a.name: a for a in node.attribute}, constants)
        for node in nodes
    ) or (subtracts and any(node.op_type == "Expand" for node in nodes))


@dataclass(frozen=True)
class Constants:
    """Weights of a model by name, and the sizes of those that are declared as inputs too."""

    tensors: Mapping[str, onnx.TensorProto]
    sizes: Mapping[str, list[int]]


def _constants(graphs: Sequence[onnx.GraphProto], nodes: Sequence[onnx.NodeProto]) -> Constants:
    tensors = {tensor.name: tensor for graph in graphs for tensor in graph.initializer}
    for node in nodes:
        value = node.attribute[0] if node.op_type == "Constant" and node.attribute[:1] else None
        if value is not None and value.HasField("t"):
            tensors[node.output[0]] = value.t
        elif value is not None and value.name in ("value_int", "value_ints", "value_floats"):
            numbers = np.array(onnx.helper.get_attribute_value(value))
            tensors[node.output[0]] = onnx.numpy_helper.from_array(numbers)
    sizes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in graphs[0].input
        if all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }
    return Constants(tensors, sizes | {name: list(one.dims) for name, one in tensors.items()})


def _is_settled(model: onnx.ModelProto, *, follow: bool) -> bool:
    """Say whether the rest of the model shows the sizes that each Slice meets.

    Raises: InferenceError where one is below zero.
    """
    if model.functions or any(graph is not model.graph for graph in all_graphs(model.graph)):
        return False
    hidden = onnx.ModelProto()
    hidden.CopyFrom(model)
    hidden.opset_import.append(onnx.helper.make_opsetid(HIDDEN_DOMAIN, 1))
    sliced = set()
    for node in hidden.graph.node:
        if node.op_type == "Slice":
            node.domain = HIDDEN_DOMAIN
            sliced.update(node.input[:1])
    found = infer_here(hidden, follow=follow, strict=False).graph
    below = _size_below_zero(found)
    if below:
        raise onnx.shape_inference.InferenceError(below)
    known = {tensor.name for tensor in found.initializer}
    known |= {
        value.name
        for value in (*found.input, *found.value_info, *found.output)
        if value.type.tensor_type.HasField("shape")
        and all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }
    return sliced <= known


def _size_below_zero(graph: onnx.GraphProto) -> str:
    """Name a value with a size below zero; empty if there is none."""
    for value in (*graph.input, *graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0:
                return f"`{value.name}` would have a size of {dim.dim_value}"
    return ""


def _in_child(model: onnx.ModelProto, *, follow: bool, strict: bool) -> onnx.ModelProto:
    """Infer in the child process.

    Raises: InferenceError where the process ends, or what onnx says there.
    """
    # Sessions open with inference; only few models need the child, which imports ONNX Runtime.
    from vermilion.errors import VermilionError
    from vermilion.ir.limits import Limits
    from vermilion.ir.literal.child import the_child

    child, limits = the_child(), Limits()
    with child.lock:
        child.folder.mkdir(mode=0o700, exist_ok=True)
        given, found = child.folder / "to-infer.onnx", child.folder / "inferred.onnx"
        try:
            given.write_bytes(model.SerializeToString())
            order = {
                "infer": given.name, "inferred": found.name, "follow": follow, "strict": strict,
                "forget": child.forgotten(), "memory_bytes": limits.memory_bytes,
            }  # fmt: skip
            child.obey(order, limits, lambda seconds: None)
            inferred: onnx.ModelProto = onnx.ModelProto.FromString(found.read_bytes())
            return inferred
        except VermilionError as error:
            raise onnx.shape_inference.InferenceError(error.message) from error
        finally:
            given.unlink(missing_ok=True)
            found.unlink(missing_ok=True)


# What each operator must say so that no size of its result is below zero where none of its inputs
# has one. Whatever is not in the table makes no size smaller than it was (or no size at all).

Row = Callable[[onnx.NodeProto, Attributes, Constants], bool]


def _never(node: onnx.NodeProto, named: Attributes, constants: Constants) -> bool:
    return False


def _window(weights: int | None) -> Row:
    def holds(node: onnx.NodeProto, named: Attributes, constants: Constants) -> bool:
        """Say whether the window fits into nothing but its pads and one stride."""
        if named.get("auto_pad") and named["auto_pad"].s.startswith(b"SAME"):
            return True
        kernel = _ints(named, "kernel_shape") or _kernel(node, weights, constants)
        return bool(kernel) and all(
            stride > 0 and dilation > 0 and dilation * (size - 1) + 1 - before - after <= stride
            for size, stride, dilation, before, after in _axes(named, kernel)
        )

    return holds


def _transposed(node: onnx.NodeProto, named: Attributes, constants: Constants) -> bool:
    kernel = _ints(named, "kernel_shape") or _kernel(node, 1, constants)
    return bool(kernel) and all(
        stride > 0 and dilation > 0 and dilation * (size - 1) + 1 - before - after >= stride
        for size, stride, dilation, before, after in _axes(named, kernel)
    )


def _not_below_zero(index: int, attribute: str) -> Row:
    def holds(node: onnx.NodeProto, named: Attributes, constants: Constants) -> bool:
        """Say whether what decides the sizes is computed, or known and nowhere below zero."""
        numbers: Sequence[float] = _ints(named, attribute)
        if attribute in named and named[attribute].floats:
            numbers = list(named[attribute].floats)
        name = node.input[index] if len(node.input) > index else ""
        if name in constants.tensors:
            tensor = constants.tensors[name]
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                return False
            numbers = onnx.numpy_helper.to_array(tensor).reshape(-1).astype(np.float64).tolist()
        return all(number >= 0 for number in numbers)

    return holds


def _split(node: onnx.NodeProto, named: Attributes, constants: Constants) -> bool:
    """Say whether the last of equal parts, which has what is left, has no less than nothing.

    Of 1 in three parts of 1 the last one is -1; of two parts it never is below zero.
    """
    if "num_outputs" in named:
        return named["num_outputs"].i <= 2
    return _not_below_zero(1, "split")(node, named, constants)


def _ints(named: Attributes, name: str) -> list[int]:
    """Return the integers of an attribute, or the one that it is."""
    if name not in named:
        return []
    return [named[name].i] if named[name].HasField("i") else list(named[name].ints)


def _kernel(node: onnx.NodeProto, weights: int | None, constants: Constants) -> list[int]:
    name = node.input[weights] if weights is not None and len(node.input) > weights else ""
    return constants.sizes.get(name, [])[2:]


def _axes(named: Attributes, kernel: list[int]) -> Iterator[tuple[int, int, int, int, int]]:
    rank = len(kernel)
    strides, dilations = (_ints(named, name) or [1] * rank for name in ("strides", "dilations"))
    pads = _ints(named, "pads") or [0] * (2 * rank)
    if min(len(strides), len(dilations), len(pads) // 2) < rank:
        yield (1, 0, 0, 0, 0)  # of no window
        return
    yield from zip(kernel, strides, dilations, pads[:rank], pads[rank:], strict=False)


_SHRINKING: Mapping[str, Row] = {
    "Conv": _window(1), "ConvInteger": _window(1), "QLinearConv": _window(3),
    "MaxPool": _window(None), "AveragePool": _window(None), "LpPool": _window(None),
    "ConvTranspose": _transposed, "Pad": _not_below_zero(1, "pads"),
    "Expand": _not_below_zero(1, ""), "Split": _split,
    "Resize": _not_below_zero(2, ""), "Upsample": _not_below_zero(1, "scales"),
    "TopK": _not_below_zero(1, "k"), "Multinomial": _not_below_zero(1, "sample_size"),
    "Tile": _not_below_zero(1, ""),
    **dict.fromkeys(
        ("CenterCropPad", "Col2Im", "DeformConv", "DFT", "MaxUnpool", "RoiAlign", "STFT"), _never
    ),
}  # fmt: skip
