"""Models that parse and are not what they say: graphs, names, types, functions, versions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from hostile import Hostile, model_case, sound_model, text_model

Edit = Callable[[onnx.ModelProto], None]


def _edited(edit: Edit) -> onnx.ModelProto:
    model = sound_model()
    edit(model)
    return model


def _case(name: str, edit: Edit, says: str) -> Hostile:
    return model_case(name, lambda: _edited(edit), says)


def _text_case(name: str, text: str, says: str, **weights: np.ndarray) -> Hostile:
    return model_case(name, lambda: text_model(text, **weights), says)


def _dim(at: int, size: int) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[at].dim_value = size
        model.graph.output[0].type.tensor_type.ClearField("shape")

    return edit


def _end_type(end: str, number: int) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        getattr(model.graph, end)[0].type.tensor_type.elem_type = number

    return edit


def _empty_tensor(model: onnx.ModelProto) -> None:
    made = helper.make_node("Constant", [], ["c"], name="made")
    attribute = made.attribute.add()
    attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
    model.graph.node.insert(0, made)


def _attribute(name: str, value: object) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.node[0].attribute.append(helper.make_attribute(name, value))

    return edit


def _opset(version: int) -> Edit:
    return lambda model: setattr(model.opset_import[0], "version", version)


def _two_opsets(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("ai.onnx", 13))


def _no_opset(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


def _rename(field: str, name: str) -> Edit:
    """Let the Conv read `name`, or be called so, or be that operator."""

    def edit(model: onnx.ModelProto) -> None:
        node = model.graph.node[0]
        if field == "input":
            node.input[0] = name
        elif field == "output":
            node.output[0] = name
        else:
            setattr(node, field, name)

    return edit


def _many_dimensions(model: onnx.ModelProto) -> None:
    for _ in range(100_000):
        model.graph.input[0].type.tensor_type.shape.dim.add(dim_value=1)


def _cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "y"


def _self_reader(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "h"


def _two_makers(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Relu", ["x"], ["h"]))


def _input_twice(model: onnx.ModelProto) -> None:
    model.graph.input.append(model.graph.input[0])


def _weight_twice(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(model.graph.initializer[0])


def _output_from_nowhere(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "nowhere"


def _sparse(model: onnx.ModelProto) -> None:
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [1 << 50])
    sparse = helper.make_sparse_tensor(values, indices, [1 << 20, 1 << 20])
    model.graph.sparse_initializer.append(sparse)


def _text_not_utf8(model: onnx.ModelProto) -> None:
    attribute = model.graph.node[0].attribute.add(name="auto_pad", type=onnx.AttributeProto.STRING)
    attribute.s = b"\xff\xfe\x00"


def _tensor_not_utf8(model: onnx.ModelProto) -> None:
    texts = [b"cat", b"\xff\xfe"]
    model.graph.initializer.append(
        onnx.helper.make_tensor("names", onnx.TensorProto.STRING, [2], texts)
    )


def _stray_reference(model: onnx.ModelProto) -> None:
    attribute = model.graph.node[0].attribute.add(name="group", type=onnx.AttributeProto.INT)
    attribute.ref_attr_name = "group"


def _name_like_weight(model: onnx.ModelProto) -> None:
    model.graph.node[0].output[0] = "w"
    model.graph.node[1].input[0] = "w"


def _compiled_program(model: onnx.ModelProto) -> None:
    node = helper.make_node(
        "EPContext", ["x"], ["h"], domain="com.microsoft", source="VitisAI", ep_cache_context="/x"
    )
    model.graph.node[0].CopyFrom(node)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def _function_model(calls: dict[str, tuple[str, ...]]) -> onnx.ModelProto:
    """Return a model that calls `f0`; each function calls the named ones in a row."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = []
    for name, called in calls.items():
        nodes = [
            helper.make_node(other, [f"v{at}"], [f"v{at + 1}"], domain=_domain(other))
            for at, other in enumerate(called)
        ]
        last = f"v{len(called)}"
        functions.append(helper.make_function("own", name, ["v0"], [last], nodes, opsets))
    graph = helper.make_graph(
        [helper.make_node("f0", ["x"], ["y"], domain="own")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=8)


def _domain(operator: str) -> str:
    return "own" if operator.startswith("f") else ""


def _doubling(levels: int) -> dict[str, tuple[str, ...]]:
    inner = {f"f{at}": (f"f{at + 1}",) * 10 for at in range(levels)}
    return {**inner, f"f{levels}": ("Relu",)}


_QUANTIZED = """net (float[1, 4] x) => (float[1, 4] y) {{
  [q] q = QuantizeLinear (x, s, z)
  [d] y = DequantizeLinear (q, {scale}, z)
}}"""


def _scale_case(name: str, scale: float, says: str) -> Hostile:
    text = _QUANTIZED.format(scale="s")
    weights = {"s": np.array(scale, np.float32), "z": np.array(0, np.int8)}
    return _text_case(name, text, says, **weights)


_IF = """net (float[1] x, bool b) => (float[1] y) {{
  [i] y = If (b) <then_branch = t () => (float[1] p) {{ p = Relu (x) }},
                  else_branch = e () => ({outputs}) {{ {nodes} }}>
}}"""
_LONG = "n" * 3_000_000

CASES: tuple[Hostile, ...] = (
    _case("cycle", _cycle, "cycle"),
    _case("node-reads-itself", _self_reader, "cycle"),
    _case("input-from-nowhere", _rename("input", "nowhere"), "nothing gives the value `nowhere`"),
    _case("output-from-nowhere", _output_from_nowhere, "`nowhere`"),
    _case("output-made-twice", _two_makers, "`h`"),
    _case("input-twice", _input_twice, "`x` is given twice|two inputs"),
    _case("weight-twice", _weight_twice, "two weights are called `w`"),
    _case("weight-made-by-node", _name_like_weight, "`w`"),
    _case("no-nodes", lambda model: model.graph.ClearField("node"), "no nodes"),
    _case("no-outputs", lambda model: model.graph.ClearField("output"), "no outputs"),
    _case("no-operator", _rename("op_type", ""), "no operator"),
    _case("unknown-operator", _rename("op_type", "Convolve"), "has no operator `Convolve`"),
    _case("unknown-domain", _rename("domain", "evil.corp"), "domain `?evil.corp"),
    _case("compiled-program", _compiled_program, "EPContext"),
    _case("opset-0", _opset(0), "wants opset 0"),
    _case("opset-negative", _opset(-5), "wants opset -5"),
    _case("opset-999", _opset(999), "wants opset 999"),
    _case("opset-missing", _no_opset, "imports no operator set"),
    _case("opset-twice", _two_opsets, "two versions of the domain"),
    _case("ir-version-0", lambda model: setattr(model, "ir_version", 0), "no IR version"),
    _case("ir-version-huge", lambda m: setattr(m, "ir_version", 1 << 40), "IR version 1099511627"),
    _case("input-without-type", _end_type("input", 0), "`x` declares no data type"),
    _case("output-of-unknown-type", _end_type("output", 99), "`y` declares the unknown data type"),
    _case("attribute-of-no-tensor", _empty_tensor, "`value` holds a tensor without a data type"),
    _case("negative-dimension", _dim(0, -7), "negative dimension"),
    _case("huge-dimension", _dim(0, 1 << 62), "elements"),
    _case("terabyte-input", _dim(0, 1 << 30), "needs .* GB"),
    _case("many-dimensions", _many_dimensions, "100,004 dimensions"),
    _case("attribute-of-wrong-type", _attribute("kernel_shape", 3.0), "`kernel_shape` is FLOAT"),
    _case("attribute-is-text", _attribute("group", "two"), "`group` is STRING"),
    _case("attribute-unknown", _attribute("colour", 3), "colour"),
    _case("attribute-not-utf-8", _text_not_utf8, "`auto_pad` is not UTF-8"),
    _case("tensor-not-utf-8", _tensor_not_utf8, "a text of the tensor `names` is not UTF-8"),
    _case("attribute-refers-to-nothing", _stray_reference, "refers to a function's"),
    _case("attribute-value-absurd", _attribute("strides", [0, 0]), "."),
    _case("attribute-value-huge", _attribute("pads", [1 << 60] * 4), "."),
    _case("attribute-group-0", _attribute("group", 0), "."),
    _case("too-few-inputs", lambda model: model.graph.node[0].ClearField("input"), "0 inputs"),
    _case("too-many-inputs", lambda m: m.graph.node[1].input.extend(["x"] * 9), "10 inputs"),
    _case("too-many-outputs", lambda m: m.graph.node[1].output.append("z"), "2 outputs"),
    _case("sparse-weight-of-terabytes", _sparse, "sparse weights"),
    _case(
        "name-with-escape-codes", _rename("op_type", "\x1b[2J\x1b]0;x\x07\n\r\u202e"), "no operator"
    ),
    _case("name-of-megabytes", _rename("input", _LONG), "characters left out"),
    _case("operator-of-megabytes", _rename("op_type", _LONG), "characters left out"),
    _text_case(
        "weights-type-wrong",
        "net (float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { [c] y = Conv (x, w) }",
        "tensor\\(int64\\)|type",
        w=np.ones((4, 3, 3, 3), np.int64),
    ),
    _text_case(
        "input-type-wrong",
        "net (int32[1, 3, 8, 8] x) => (int32[1, 4, 6, 6] y) { [c] y = Conv (x, w) }",
        "int32",
        w=np.ones((4, 3, 3, 3), np.int32),
    ),
    _text_case(
        "rank-wrong",
        "net (float[3, 8] x) => (float[4, 6] y) { [c] y = Conv (x, w) }",
        ".",
        w=np.ones((4, 3, 3, 3), np.float32),
    ),
    _text_case(
        "channels-wrong",
        "net (float[1, 5, 8, 8] x) => (float[1, 4, 6, 6] y) { [c] y = Conv (x, w) }",
        ".",
        w=np.ones((4, 3, 3, 3), np.float32),
    ),
    _text_case(
        "reshape-that-cannot-be",
        "net (float[1, 5] x) => (float[7, 9] y) { [r] y = Reshape (x, s) }",
        ".",
        s=np.array([7, 9]),
    ),
    _text_case(
        "index-out-of-range",
        "net (float[2, 3] x) => (float[1, 3] y) { [g] y = Gather (x, i) }",
        ".",
        i=np.array([1 << 40]),
    ),
    _scale_case("scale-nan", np.nan, "not a number"),
    _scale_case("scale-infinite", np.inf, "infinite"),
    _scale_case("scale-zero", 0.0, "has to be above 0"),
    _scale_case("scale-negative", -1.0, "has to be above 0"),
    _text_case(
        "zero-point-of-other-type",
        _QUANTIZED.format(scale="s").replace("(q, s, z)", "(q, s, u)"),
        "type",
        s=np.array(1, np.float32),
        z=np.array(0, np.int8),
        u=np.array(0, np.uint8),
    ),
    _text_case(
        "scales-of-other-length",
        _QUANTIZED.format(scale="t"),
        ".",
        s=np.array(1, np.float32),
        t=np.ones(3, np.float32),
        z=np.array(0, np.int8),
    ),
    _text_case(
        "branch-without-output",
        _IF.format(outputs="", nodes="q = Relu (x)"),
        "its body `else_branch`",
    ),
    _text_case(
        "branch-output-from-nowhere", _IF.format(outputs="float[1] q", nodes="r = Relu (x)"), "`q`"
    ),
    _text_case(
        "branch-name-twice", _IF.format(outputs="float[1] x", nodes="x = Relu (x)"), "`x`|cycle"
    ),
    _text_case(
        "loop-without-condition",
        """net (float[1] x, int64 n, bool b) => (float[1] y) {
          [l] y = Loop (n, b, x) <body = o (int64 i, bool c, float[1] v) => (float[1] u)
            { u = Relu (v) }>
        }""",
        "its body `body`",
    ),
    model_case("function-calls-itself", lambda: _function_model({"f0": ("f0",)}), "calls itself"),
    model_case(
        "functions-call-each-other",
        lambda: _function_model({"f0": ("f1",), "f1": ("f0",)}),
        "calls itself",
    ),
    model_case("functions-without-end", lambda: _function_model(_doubling(9)), "unfold into"),
    model_case("function-calls-unknown", lambda: _function_model({"f0": ("f9",)}), "domain"),
)
