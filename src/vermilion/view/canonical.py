"""Nodes as what they compute, without names: what two graphs are matched by.

Two exporters write the same thing in different ways: a default or nothing, an attribute or (from a
later opset on) a constant input. Here both are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir

from vermilion.ir.opset import bodies_of, constant_of, is_operator
from vermilion.view.graph import shorter

# A whole-number constant of up to so many elements is a parameter, as axes and pads are.
_PARAMETER_ELEMENTS = 64
# Names under which one thing stands in two versions of an operator.
_SAME = {"constant_value": "value"}
NOTHING = -3
"""In the place of a parent: an input that is left out, or a parameter."""
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
# Attributes that say nothing of what is computed.
_SILENT = frozenset(("consumed_inputs", "is_test", "spatial"))


@dataclass(frozen=True)
class Part:
    """One node without its names.

    `parameters` are those that are not as by default, `defaults` those of its own opset.
    `parents` has, for each input: the node that makes it with which of its
    outputs, or -1 and the number of the graph's input, or -2 for a weight; `NOTHING` stands for
    an input that is left out, or that is a parameter. What graphs in the node read of the graph
    around it stands behind. `weights` are the numbers of those inputs that are constants, with the
    tensors; `bodies` the graphs in attributes, by name; `imports` the opsets of all of them.
    """

    node: ir.Node
    op: str
    parameters: Mapping[str, object]
    defaults: Mapping[str, object]
    parents: tuple[tuple[int, int], ...]
    weights: tuple[tuple[str, ir.TensorProtocol], ...]
    shape: tuple[object, ...] | None
    type: str
    bodies: Mapping[str, ir.Graph]
    imports: Mapping[str, int]

    def value_of(self, parameter: str, other: Part) -> object:
        """Return a parameter, written or by default; what only `other` knows is as it has it."""
        known = {**self.defaults, **self.parameters}
        return known.get(parameter, other.defaults.get(parameter))

    @property
    def name(self) -> str:
        """The node's own name, for people."""
        return shorter(self.node.name or "")


def parts_of(graph: ir.Graph | ir.Function, imports: Mapping[str, int] | None = None) -> list[Part]:
    """Return the nodes in an order that follows from structure alone: outputs first, depth first.

    The order of the file and all names may differ between two equal graphs; this does not.
    `imports` are the opsets of the model, for a graph in a node, which has none of its own.
    """
    known = graph.opset_imports if imports is None else imports
    inputs = _inputs_of(graph)
    order: dict[ir.Node, int] = {}
    roots = [value.producer() for value in graph.outputs]
    for root in [*roots, *graph]:  # what no output needs stands last
        _visit(root, order)
    places = {node: number for number, node in enumerate(order)}
    return [_part(node, places, inputs, known) for node in order]


def ends_of(graph: ir.Graph | ir.Function, parts: Sequence[Part]) -> tuple[tuple[int, int], ...]:
    """Return where each output of a graph comes from, as a node's `parents` say it."""
    places = {part.node: number for number, part in enumerate(parts)}
    inputs = _inputs_of(graph)
    return tuple(
        _end(value, places, inputs) if constant_of(value) is None else (-2, 0)
        for value in graph.outputs
    )


def _inputs_of(graph: ir.Graph | ir.Function) -> dict[int, int]:
    """Return the numbers of a graph's inputs; behind them, those of values from around it."""
    own = [value for value in graph.inputs if not value.is_initializer()]
    return {id(value): n for n, value in enumerate([*own, *_read_around(graph)])}


def _read_around(graph: ir.Graph | ir.Function) -> list[ir.Value]:
    """Return what the graph and those in its nodes read of graphs around it, first come first."""
    own = {id(value) for value in graph.inputs}
    found: dict[int, ir.Value] = {}
    for node in graph:
        own.update(id(value) for value in node.outputs)
        inner = [value for body in bodies_of(node) for value in _read_around(body)]
        for value in [*node.inputs, *inner]:
            if value is not None and id(value) not in own and constant_of(value) is None:
                found[id(value)] = value
    for value in graph.outputs:
        if id(value) not in own and constant_of(value) is None:
            found[id(value)] = value
    return list(found.values())


def _end(
    value: ir.Value, order: Mapping[ir.Node, int], inputs: Mapping[int, int]
) -> tuple[int, int]:
    maker = value.producer()
    if maker is not None and maker in order:
        return order[maker], list(maker.outputs).index(value)
    return -1, inputs.get(id(value), -1)


def _visit(root: ir.Node | None, order: dict[ir.Node, int]) -> None:
    """Number a node after all that it reads; a stack, for graphs are deeper than Python's."""
    stack: list[tuple[ir.Node, int]] = []
    if root is not None and root not in order and not _is_constant(root):
        stack.append((root, 0))
    entered = {root}
    while stack:
        node, at = stack.pop()
        if at < len(node.inputs):
            stack.append((node, at + 1))
            value = node.inputs[at]
            maker = value.producer() if value is not None else None
            if maker is None or maker in entered or maker in order or _is_constant(maker):
                continue
            if maker.graph is node.graph:
                entered.add(maker)
                stack.append((maker, 0))
        elif node not in order:
            order[node] = len(order)


def _is_constant(node: ir.Node) -> bool:
    return is_operator(node, "Constant") and constant_of(node.outputs[0]) is not None


def _part(
    node: ir.Node,
    order: Mapping[ir.Node, int],
    inputs: Mapping[int, int],
    imports: Mapping[str, int],
) -> Part:
    parameters: dict[str, object] = {}
    weights: list[tuple[str, ir.TensorProtocol]] = []
    parents: list[tuple[int, int]] = []
    version = imports.get(node.domain, imports.get("ai.onnx", 0))
    names, defaults = _definition(node.op_type, node.domain, version)
    for name, attribute in node.attributes.items():
        if name.lower() not in _SILENT and attribute.type not in _GRAPHS:
            parameters[_SAME.get(name.lower(), name.lower())] = _settled(_written(attribute))
    for at, value in enumerate(node.inputs):
        if value is None:
            parents.append((NOTHING, 0))
            continue
        constant = constant_of(value)
        name = names[at] if at < len(names) else f"input {at}"
        if constant is None:
            parents.append(_end(value, order, inputs))
        elif _is_parameter(node, constant):
            parameters[_SAME.get(name.lower(), name.lower())] = _listed(constant)
            parents.append((NOTHING, 0))
        else:
            weights.append((name, constant))
            parents.append((-2, len(weights)))
    while parents and parents[-1][0] == NOTHING:
        parents.pop()
    for body in bodies_of(node):
        parents += [_end(value, order, inputs) for value in _read_around(body)]
    parameters = {
        name: value
        for name, value in parameters.items()
        if name not in defaults or defaults[name] != value
    }
    value = node.outputs[0] if node.outputs else None
    shape = None if value is None or value.shape is None else tuple(str(d) for d in value.shape)
    kind = "" if value is None or value.dtype is None else value.dtype.name.lower()
    domain = f"{node.domain}::" if node.domain else ""
    return Part(
        node, f"{domain}{node.op_type}", parameters, defaults, tuple(parents), tuple(weights),
        shape, kind, _bodies(node), imports,
    )  # fmt: skip


def _bodies(node: ir.Node) -> dict[str, ir.Graph]:
    """Return the graphs in a node's attributes, by name."""
    found: dict[str, ir.Graph] = {}
    for name, attribute in node.attributes.items():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            found[name] = attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            found |= {f"{name} {n}": body for n, body in enumerate(attribute.as_graphs())}
    return found


def _written(attribute: ir.Attr) -> object:
    """Return an attribute's value; of what is long, enough to tell it from any other."""
    if attribute.is_ref():
        return f"the function's {attribute.ref_attr_name}"
    value = attribute.value
    if isinstance(value, ir.TensorProtocol):
        numbers = value.numpy().reshape(-1)
        shown = numbers.tolist() if value.size <= _PARAMETER_ELEMENTS else _mark(value.tobytes())
        return f"{value.dtype.name.lower()} {list(value.shape)}: {shown}"
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) > _PARAMETER_ELEMENTS:
            return f"{len(value):,} values, {_mark(repr(list(value)).encode())}"
        return [item.decode("utf-8", "replace") if isinstance(item, bytes) else item
                for item in value]  # fmt: skip
    return value if isinstance(value, bool | int | float | str) else str(value)


def _mark(data: bytes) -> str:
    return f"digest {hashlib.blake2b(data, digest_size=6).hexdigest()}"


def _is_parameter(node: ir.Node, constant: ir.TensorProtocol) -> bool:
    """Say whether a constant is what an attribute was before: a few whole numbers, or an end."""
    if constant.dtype in (ir.DataType.INT64, ir.DataType.BOOL):
        return constant.size <= _PARAMETER_ELEMENTS and node.op_type != "Gather"
    return constant.size == 1 and node.op_type in ("Clip", "Pad", "Dropout")


def _listed(constant: ir.TensorProtocol) -> object:
    return _settled([x.item() for x in np.asarray(constant.numpy()).reshape(-1)])


def _settled(value: object) -> object:
    """Return lists of one thing as that thing, and numbers as floats: attributes differ in both."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = tuple(_settled(item) for item in value)
        return items[0] if len(items) == 1 else items
    if isinstance(value, bool | int | float):
        number = float(np.float32(value)) if isinstance(value, float) else value
        return int(number) if number == number and number in (0, 1) else number
    return value


@cache
def _definition(
    op_type: str, domain: str, version: int
) -> tuple[tuple[str, ...], Mapping[str, object]]:
    """Return the names of inputs and the defaults of attributes, of the operator's own version."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return (), {}
    defaults: dict[str, object] = {}
    for key, attribute in schema.attributes.items():
        if attribute.default_value.type and key.lower() not in _SILENT:
            value = onnx.helper.get_attribute_value(attribute.default_value)
            text = value.decode() if isinstance(value, bytes) else value
            defaults[_SAME.get(key.lower(), key.lower())] = _settled(text)
    return tuple(one.name for one in schema.inputs), defaults
