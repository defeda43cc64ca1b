"""Which version of the ONNX operators a model speaks, and what is true of operators by name."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from vermilion.ir.symbolic import is_known, size_of

OPSET = 17
"""The version that models are raised to. Ryzen AI recommends it (documentation, `modelrun.rst`)."""

RANDOM_OPERATORS = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)


def opset_of(model: ir.Model) -> int:
    """Return the version of the default domain, 0 where the model imports none."""
    imports = model.graph.opset_imports
    # A node's `ai.onnx` is read as the empty name, the import's is kept as written.
    return imports.get("", imports.get("ai.onnx", 0))


def version_of(node: ir.Node) -> int:
    """Return the version of the operators that a node speaks; `OPSET` where nothing says it."""
    if node.version is not None:
        return node.version
    imports = {} if node.graph is None else node.graph.opset_imports
    return imports.get("", imports.get("ai.onnx", OPSET))


# ONNX Runtime's own form of these is for 4 and 16 bits before opset 21, and means the same. Source:
# https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
_OF_BOTH_DOMAINS = frozenset({"QuantizeLinear", "DequantizeLinear"})


def is_standard(node: ir.Node) -> bool:
    """Say whether `node` is one of ONNX's own operators, or means what the one of its name does."""
    return node.domain == "" or (
        node.domain == "com.microsoft" and node.op_type in _OF_BOTH_DOMAINS
    )


def is_operator(node: ir.Node | None, *names: str) -> bool:
    """Say whether `node` is one of ONNX's own operators of these names."""
    return node is not None and node.op_type in names and is_standard(node)


def is_random(node: ir.Node) -> bool:
    """Say whether running the node twice may give two results."""
    if node.domain != "":
        return False
    if node.op_type == "Dropout":
        return not is_inference_dropout(node)
    return node.op_type in RANDOM_OPERATORS


def is_inference_dropout(node: ir.Node) -> bool:
    """Say whether a Dropout certainly passes its input through.

    Source: ONNX Dropout-13: `training_mode` is an optional input, false by default; before
    opset 12 the operator has no such input, before 7 an attribute `is_test`.
    """
    if "is_test" in node.attributes and node.attributes["is_test"].as_int() == 0:
        return False
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is None:
        return True
    constant = constant_of(training)
    return constant is not None and not constant.numpy().any()


def constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer that no caller can override, or of a Constant node."""
    if value is None:
        return None
    if value.is_initializer():
        return None if value.is_graph_input() else value.const_value
    producer = value.producer()
    if (
        is_operator(producer, "Constant")
        and producer is not None
        and "value" in producer.attributes
    ):
        attribute = producer.attributes["value"]
        # Of another type in a damaged file, which `check_nodes` refuses by its schema.
        return attribute.as_tensor() if attribute.type == ir.AttributeType.TENSOR else None
    return None


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the sizes of `value` where all are known, else None.

    Open ones are known where examples say what they stand for.
    """
    if value is None or value.shape is None:
        return None
    sizes: list[int] = []
    for dimension in value.shape.dims:
        size: int | None
        if type(dimension) is int:  # nearly all; of which class another one is takes longer to ask
            if dimension < 0:
                return None
            sizes.append(dimension)
            continue
        size = size_of(dimension) if isinstance(dimension, ir.SymbolicDim) else dimension
        if size is None or (is_known(size) and size < 0):
            return None
        sizes.append(size)
    return tuple(sizes)


def tensor_sizes(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """Return the sizes of a tensor, which are always known."""
    return tuple(int(size) for size in tensor.shape.numpy())


def tensor_bytes(tensor: ir.TensorProtocol) -> int:
    """Return the size of a tensor in memory; strings, which onnx_ir cannot size, count 16 each."""
    return tensor.size * 16 if tensor.dtype == ir.DataType.STRING else tensor.nbytes


def required_inputs(model: ir.Model) -> list[ir.Value]:
    """Return the inputs that a caller must supply: those without a default among the weights."""
    return [value for value in model.graph.inputs if not value.is_initializer()]


def bodies_of(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs in a node's attributes (If, Loop, Scan)."""
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def sources_of(node: ir.Node, graph: ir.Graph) -> set[int]:
    """Return the ids of the nodes of `graph` that `node` or anything in its bodies reads from."""
    found: set[int] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        for value in current.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer.graph is graph:
                found.add(id(producer))
        for body in bodies_of(current):
            pending.extend(body)
            for value in body.outputs:
                producer = value.producer()
                if producer is not None and producer.graph is graph:
                    found.add(id(producer))
    return found


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the one node that reads a value, None where more do or it is given out."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def where(node: ir.Node) -> str:
    """Name a node for people: its name, else its first output, and the operator."""
    first = node.outputs[0].name if node.outputs else ""
    return f"node `{node.name or first or '?'}`, {node.op_type}"
