import time

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.errors import ModelError
from vermilion.ir.passes.contract_test import MODELS, parse, weight
from vermilion.ir.schemas import check_nodes
from vermilion.ir.verify import MAX_DEPTH, check_graph

ABS = "(float[2] x) => (float[2] y) { a = Neg(x) y = Abs(a) }"


@pytest.mark.parametrize("name", MODELS)
def test_legal_models_pass(name) -> None:
    check_graph(MODELS[name])


def test_unsorted_is_legal_and_a_cycle_is_not() -> None:
    model = parse(ABS)
    first = model.graph[0]
    model.graph.remove(first)
    model.graph.append(first)
    check_graph(model)
    first.replace_input_with(0, model.graph.outputs[0])
    with pytest.raises(ModelError, match="cycle") as caught:
        check_graph(model)
    assert "node `" in caught.value.where


def test_a_cycle_through_a_body_is_a_cycle() -> None:
    model = parse(
        """(float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = a () => (float[2] t) { t = Abs(x) },
                else_branch = b () => (float[2] e) { e = Neg(x) }
            >
        }"""
    )
    inner = model.graph[0].attributes["then_branch"].as_graph()[0]
    inner.replace_input_with(0, model.graph.outputs[0])
    with pytest.raises(ModelError, match="cycle"):
        check_graph(model)


def test_a_value_from_nowhere() -> None:
    model = parse(ABS)
    model.graph[1].replace_input_with(0, ir.val("lost"))
    with pytest.raises(ModelError, match="nothing gives the value `lost`") as caught:
        check_graph(model)
    assert caught.value.where == "node `y`, Abs"


def test_a_body_sees_outside_but_not_into_its_neighbour() -> None:
    model = parse(
        """(float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = a () => (float[2] t) { i = Neg(x) t = Abs(i) },
                else_branch = b () => (float[2] e) { e = Neg(x) }
            >
        }"""
    )
    check_graph(model)
    attributes = model.graph[0].attributes
    stolen = attributes["then_branch"].as_graph()[0].outputs[0]
    attributes["else_branch"].as_graph()[0].replace_input_with(0, stolen)
    with pytest.raises(ModelError, match="nothing gives the value `i`"):
        check_graph(model)


def test_an_output_from_nowhere_and_twice() -> None:
    model = parse(ABS)
    model.graph.outputs.append(ir.val("lost"))
    with pytest.raises(ModelError, match="nothing gives the output `lost`"):
        check_graph(model)
    model = parse(ABS)
    model.graph.outputs.append(model.graph.outputs[0])
    with pytest.raises(ModelError, match="output `y` is listed twice"):
        check_graph(model)


def test_names_twice_or_missing() -> None:
    model = parse(ABS)
    model.graph[0].outputs[0].name = "y"
    with pytest.raises(ModelError, match="the name `y` is given twice"):
        check_graph(model)
    model = parse(ABS)
    model.graph[0].outputs[0].name = "x"
    with pytest.raises(ModelError, match="the name `x` is given twice"):
        check_graph(model)
    model = parse(ABS)
    model.graph.inputs[0].name = ""
    with pytest.raises(ModelError, match="a value has no name"):
        check_graph(model)


def test_domains_need_an_import() -> None:
    model = parse("(float[2] x) => (float[2] y) { y = com.microsoft.Gelu(x) }")
    with pytest.raises(ModelError, match=r"no version of the domain `com\.microsoft`"):
        check_graph(model)
    model.graph.opset_imports["com.microsoft"] = 1
    check_graph(model)
    del model.graph.opset_imports[""]
    model.graph.opset_imports["ai.onnx"] = 17
    check_graph(model)
    node = ir.node("Abs", [model.graph.inputs[0]])
    node.outputs[0].name = "z"
    model.graph.append(node)
    del model.graph.opset_imports["ai.onnx"]
    with pytest.raises(ModelError, match=r"domain `ai\.onnx`"):
        check_graph(model)


def with_tensor(**fields) -> ir.Model:
    """Make a model whose weight `w` says float[2,2] and holds what `fields` say."""
    proto = ir.to_proto(
        parse("(float[2,2] x, float[2,2] w) => (float[2,2] y) { y = Add(x, w) }", w=weight(2, 2))
    )
    tensor = proto.graph.initializer[0]
    for name, value in fields.items():
        if name == "dims":
            del tensor.dims[:]
            tensor.dims.extend(value)
        elif name == "float_data":
            tensor.ClearField("raw_data")
            tensor.float_data.extend(value)
        else:
            setattr(tensor, name, value)
    return ir.from_proto(proto)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"raw_data": b"1234"}, "needs 16 bytes, 4 are there"),
        ({"raw_data": b""}, "needs 16 bytes, 0 are there"),
        ({"dims": [1 << 40, 1 << 40]}, "needs 4835703278458516698824704 bytes, 16 are there"),
        ({"dims": [2, -2]}, "negative size"),
        ({"float_data": [1.0, 2.0]}, "needs 16 bytes, 8 are there"),
        ({"data_type": 11}, "needs 32 bytes, 16 are there"),
    ],
)
def test_weights_that_lie(fields, words) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        check_graph(with_tensor(**fields))
    assert caught.value.where == "weight `w`"


def test_a_constant_node_that_lies() -> None:
    proto = ir.to_proto(parse("() => (float[2] y) { y = Constant<value = float[2] {1.0, 2.0}>() }"))
    tensor = proto.graph.node[0].attribute[0].t
    del tensor.dims[:]
    tensor.dims.extend([1 << 40])
    with pytest.raises(ModelError, match="8 are there") as caught:
        check_graph(ir.from_proto(proto))
    assert caught.value.where == "node `y`, Constant"


def test_weights_in_typed_fields_are_counted_right() -> None:
    make = onnx.helper.make_tensor
    kinds = onnx.TensorProto
    tensors = [
        make("a", kinds.FLOAT, [2], [1.0, 2.0]),
        make("b", kinds.DOUBLE, [2], [1.0, 2.0]),
        make("c", kinds.FLOAT16, [3], [1.0, 2.0, 3.0]),
        make("d", kinds.INT8, [3], [1, 2, 3]),
        make("e", kinds.INT64, [1], [1]),
        make("f", kinds.UINT64, [1], [1]),
        make("g", kinds.BOOL, [2], [1, 0]),
        make("h", kinds.INT4, [3], [1, 2, 3]),
        make("i", kinds.STRING, [1], [b"text"]),
        make("j", kinds.BFLOAT16, [2], [1.0, 2.0]),
        make("k", kinds.FLOAT, [0], []),
        make("l", kinds.FLOAT, [], [1.0]),
        make("m", kinds.COMPLEX64, [2], [1j, 2j]),
    ]
    proto = ir.to_proto(parse("(float[2] x) => (float[2] y) { y = Abs(x) }"))
    proto.graph.initializer.extend(tensors)
    check_graph(ir.from_proto(proto))


def test_declared_and_stored_types_must_agree() -> None:
    model = with_tensor()
    model.graph.initializers["w"].shape = ir.Shape([4])
    with pytest.raises(ModelError, match="declared as"):
        check_graph(model)
    model = with_tensor()
    model.graph.initializers["w"].dtype = ir.DataType.INT32
    with pytest.raises(ModelError, match="declared as INT32, stored as FLOAT"):
        check_graph(model)


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (np.float32("nan"), "not a number or is infinite"),
        (np.float32("inf"), "not a number or is infinite"),
        (np.float32(0), "its scale is 0, and has to be above 0"),
        (np.float32(-0.5), "its scale is -0.5"),
        (np.array([0.5, 0], np.float32), "its scale is 0"),
    ],
)
@pytest.mark.parametrize("constant", [False, True])
def test_scales(scale, words, constant) -> None:
    size = f"[{scale.size}]" if scale.ndim else ""
    text = f"(float[2,2] x, float{size} s) => (uint8[2,2] y) {{ y = QuantizeLinear(x, s) }}"
    model = parse(text, s=scale)
    if constant:
        node = ir.node("Constant", [], {"value": ir.tensor(scale)})
        node.outputs[0].name = "k"
        model.graph.insert_before(model.graph[0], node)
        model.graph[1].replace_input_with(1, node.outputs[0])
    with pytest.raises(ModelError, match=words) as caught:
        check_graph(model)
    assert caught.value.where == "node `y`, QuantizeLinear"


@pytest.mark.parametrize(("scale", "is_sound"), [(-0.5, True), (0.5, True), (0.0, False)])
def test_four_bits_may_have_a_scale_below_zero(scale: float, is_sound: bool) -> None:
    """Of the ends of int4 one reaches further, and a scale below zero turns it round."""
    model = parse(
        "(int8[2,2] x, float[1,2] s) => (float[2,2] y)"
        "{ y = DequantizeLinear<axis = 0, block_size = 2>(x, s) }",
        s=np.array([[0.25, scale]], np.float32),
    )
    model.opset_imports[""] = 21
    if is_sound:
        check_graph(model)
        return
    with pytest.raises(ModelError, match="its scale is 0, and has to be above 0"):
        check_graph(model)


def nested(depth: int) -> ir.Model:
    body = "t0 = Abs(x)"
    for level in range(depth - 1):
        body = (
            f"t{level + 1} = If (c) < then_branch = a{level} () => (float[2] t{level}) {{ {body} }}"
            f", else_branch = b{level} () => (float[2] e{level}) {{ e{level} = Neg(x) }} >"
        )
    return parse(f"(float[2] x, bool c) => (float[2] t{depth - 1}) {{ {body} }}")


def test_nesting_has_a_limit() -> None:
    check_graph(nested(MAX_DEPTH))
    with pytest.raises(ModelError, match=f"nested more than {MAX_DEPTH} deep"):
        check_graph(nested(MAX_DEPTH + 1))


def chain(length: int) -> ir.Model:
    x = ir.val("x", ir.DataType.FLOAT, [2])
    nodes = []
    value = x
    for number in range(length):
        node = ir.node("Add", [value, x])
        node.outputs[0].name = f"v{number}"
        nodes.append(node)
        value = node.outputs[0]
    graph = ir.Graph([x], [value], nodes=nodes, opset_imports={"": 17}, name="g")
    return ir.Model(graph, ir_version=8)


def test_time_grows_with_the_size_and_not_faster() -> None:
    def seconds(model: ir.Model) -> float:
        best = float("inf")
        for _ in range(3):
            started = time.process_time()
            check_graph(model)
            best = min(best, time.process_time() - started)
        return best

    assert seconds(chain(20_000)) < 40 * seconds(chain(2_000))


def test_an_attribute_without_a_type_is_refused() -> None:
    model = parse(ABS)
    model.graph[0].attributes.add(ir.Attr("x", ir.AttributeType.UNDEFINED, None))
    with pytest.raises(ModelError, match="`x` has no type") as caught:
        check_graph(model)
    assert "Neg" in caught.value.where


@pytest.mark.parametrize("kind", ["GRAPH", "INTS", "FLOAT"])
def test_a_scale_from_a_constant_that_is_no_tensor(kind: str) -> None:
    """It is refused by its schema (`check_nodes`); nothing before that may stumble over it."""
    model = parse(
        """(float[2] x) => (uint8[2] y) {
            s = Constant <value = float {0.5}> ()
            y = QuantizeLinear(x, s)
        }"""
    )
    value = {"GRAPH": model.graph, "INTS": [1], "FLOAT": 0.5}[kind]
    other = ir.Attr("value", ir.AttributeType[kind], value)
    constant = model.graph[0]
    constant.attributes.pop("value")
    constant.attributes.add(other)
    if kind != "GRAPH":
        check_graph(model)
    with pytest.raises(ModelError, match="has to be TENSOR"):
        check_nodes(model)


def test_padding_bits_of_packed_numbers_are_looked_at() -> None:
    raw = onnx.TensorProto(
        name="w", data_type=onnx.TensorProto.FLOAT6E2M3, dims=[3], raw_data=b"\xff\xff\xff"
    )
    model = parse(ABS)
    value = ir.val("w", const_value=ir.from_proto(raw))
    model.graph.register_initializer(value)
    with pytest.raises(ModelError, match="cannot be unpacked") as caught:
        check_graph(model)
    assert "`w`" in caught.value.where
