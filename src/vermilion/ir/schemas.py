"""Nodes held against ONNX's own definition of their operator, before anything relies on it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import onnx
import onnx_ir as ir

from vermilion.errors import ModelError, UnsupportedError
from vermilion.ir.attributes import EXPORT, wrong_type
from vermilion.ir.opset import where

KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.ms.internal.nhwc"})
"""Of operators that ONNX Runtime's CPU provider brings along."""

# Dropped from ONNX before its first version; ONNX Runtime still runs them for old Keras and Core
# ML exports (`contrib_ops/cpu/cpu_contrib_kernels.cc`, "deprecated experimental operators").
_LEGACY = frozenset(
    {
        "Affine",
        "Crop",
        "DynamicSlice",
        "GivenTensorFill",
        "GRUUnit",
        "ImageScaler",
        "ParametricSoftplus",
        "Scale",
        "ScaledTanh",
        # Never ONNX's: onnxruntime-genai's model builder writes it without a domain.
        "SimplifiedLayerNormalization",
    }
)
_ATTRIBUTE_TYPES = {kind.name: kind for kind in ir.AttributeType}

# Of things of which there is at least one. ONNX Runtime divides by some of them unseen, and keeps
# others in 32 bits.
_COUNTS = {
    *("blocksize", "dilations", "group", "hidden_size", "kernel_shape", "num_groups"),
    *("num_outputs", "size", "strides"),
}
_LARGEST_COUNT = 2**31 - 1
_BODIES = {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS}


def check_nodes(model: ir.Model) -> None:
    """Check every node's operator, number of inputs and outputs, and types of attributes.

    Raises: ModelError for a node that its operator's definition does not allow;
    UnsupportedError for an operator that nobody here knows.
    """
    functions = {(domain, name) for domain, name, _ in model.functions}
    _check_graph(model.graph, _versions(model.opset_imports), functions, inside=False)
    for function in model.functions.values():
        imports = {**model.opset_imports, **function.opset_imports}
        _check_graph(function.graph, _versions(imports), functions, inside=True)


def _versions(imports: Mapping[str, int]) -> dict[str, int]:
    return {("" if domain == "ai.onnx" else domain): at for domain, at in imports.items()}


def _check_graph(
    graph: ir.Graph, versions: Mapping[str, int], functions: set[tuple[str, str]], *, inside: bool
) -> None:
    for node in ir.traversal.RecursiveGraphIterator(graph):
        if (node.domain, node.op_type) in functions:
            continue
        _check_domain(node)
        for attribute in node.attributes.values():
            if attribute.is_ref() and not inside:
                raise ModelError(
                    f"the attribute `{attribute.name}` refers to a function's, and this is none",
                    where=where(node),
                    hint=EXPORT,
                )
        domain = "" if node.domain == "ai.onnx" else node.domain
        schema = _schema(domain, node.op_type, versions.get(domain, 0))
        if schema is not None:
            _check_arity(node, schema)
            _check_attributes(node, schema)
            _check_bodies(node)
        elif domain == "" and node.op_type not in _LEGACY:
            raise UnsupportedError(
                f"opset {versions.get('', 0)} of ONNX has no operator `{node.op_type}`",
                where=where(node),
                hint="export with standard operators, or with a later opset",
            )


def _check_domain(node: ir.Node) -> None:
    if node.op_type == "EPContext":
        source = node.attributes.get("source")
        maker = f", compiled by `{source.value}`" if source is not None else ""
        raise UnsupportedError(
            "this model holds a compiled program (EPContext), not the graph it came from",
            where=f"{where(node)}{maker}",
            hint="use the model it was compiled from",
        )
    if node.domain not in KNOWN_DOMAINS:
        raise UnsupportedError(
            f"operator `{node.domain}::{node.op_type}` is from a domain nobody here knows",
            where=where(node),
            hint="a custom operator needs its library; export without it, or as standard operators",
        )


@cache
def _schema(domain: str, op_type: str, version: int) -> Any:
    """Return the operator's definition, None where there is none; ONNX Runtime's are like onnx's.

    An operator of ONNX Runtime has one version.
    """
    if domain == "com.microsoft":
        return _runtime_schemas().get(op_type)
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


@cache
def _runtime_schemas() -> dict[str, Any]:
    # Loaded where a model has such operators: importing it takes a quarter of a second.
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    return {found.name: found for found in get_all_operator_schema() if _is_microsoft(found)}


def _is_microsoft(schema: Any) -> bool:
    return bool(schema.domain == "com.microsoft")


def _check_arity(node: ir.Node, schema: Any) -> None:
    rows = (
        ("input", node.inputs, schema.inputs, schema.min_input, schema.max_input),
        ("output", node.outputs, schema.outputs, schema.min_output, schema.max_output),
    )
    for what, values, formal, least, most in rows:
        if not least <= len(values) <= most:
            allowed = str(least) if least == most else f"{least} to {most}"
            raise ModelError(
                f"it has {len(values)} {what}s; its operator takes {allowed}",
                where=where(node),
                hint=EXPORT,
            )
        for at, value in enumerate(values):
            parameter = formal[min(at, len(formal) - 1)]
            # Of several, each has to be there: ONNX Runtime crashes on `Min(x, '')`.
            repeated = parameter.option.name == "Variadic" and what == "input"
            needed = parameter.option.name == "Single" or repeated
            if needed and (value is None or not value.name):
                number = f" number {at + 1}" if repeated else ""
                raise ModelError(
                    f"its {what} `{parameter.name}`{number} is missing",
                    where=where(node),
                    hint=EXPORT,
                )


def _check_attributes(node: ir.Node, schema: Any) -> None:
    for name, formal in schema.attributes.items():
        attribute = node.attributes.get(name)
        if attribute is None:
            if formal.required:
                raise ModelError(
                    f"its attribute `{name}` is missing", where=where(node), hint=EXPORT
                )
            continue
        wanted = _ATTRIBUTE_TYPES[formal.type.name]
        if attribute.type != wanted:
            raise wrong_type(node, attribute, wanted)
        if name in _COUNTS and not attribute.is_ref():
            _check_count(node, attribute)
        if name == "num_outputs" and not attribute.is_ref():
            _check_outputs(node, attribute.as_int())
    for name, attribute in node.attributes.items():
        if attribute.type in _BODIES and name not in schema.attributes:
            raise ModelError(
                f"its attribute `{name}` holds a graph, and its operator has none",
                where=where(node),
                hint=EXPORT,
            )


def _check_count(node: ir.Node, attribute: ir.Attr) -> None:
    is_one = attribute.type == ir.AttributeType.INT
    counts = [attribute.as_int()] if is_one else list(attribute.as_ints())
    if any(not 1 <= count <= _LARGEST_COUNT for count in counts):
        raise ModelError(
            f"its attribute `{attribute.name}` is {counts[0] if is_one else counts}, and has to be "
            f"1 to {_LARGEST_COUNT}",
            where=where(node),
            hint=EXPORT,
        )


def _check_outputs(node: ir.Node, count: int) -> None:
    """Hold the number of results against those that are there: inference makes so many sizes."""
    if count != len(node.outputs):
        raise ModelError(
            f"its attribute `num_outputs` is {count}, and it has {len(node.outputs)} outputs",
            where=where(node),
            hint=EXPORT,
        )


def _check_bodies(node: ir.Node) -> None:
    """Hold the bodies of If and Loop against the node around them.

    Source: ONNX If-1 (a branch gives what the node gives) and Loop-1 (a body takes the iteration
    number, the condition and the carried values, and gives the condition and the node's outputs).
    """
    if node.op_type not in ("If", "Loop"):
        return
    extra = 1 if node.op_type == "Loop" else 0
    for attribute in node.attributes.values():
        if attribute.type not in _BODIES or attribute.is_ref():
            continue
        body = attribute.as_graph()
        takes = len(node.inputs) if node.op_type == "Loop" else 0
        if len(body.outputs) != len(node.outputs) + extra or len(body.inputs) != takes:
            raise ModelError(
                f"its body `{attribute.name}` takes {len(body.inputs)} values and gives "
                f"{len(body.outputs)}; needed are {takes} and {len(node.outputs) + extra}",
                where=where(node),
                hint=EXPORT,
            )
