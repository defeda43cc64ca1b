import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_wheels import package_file
from vermilion.errors import ModelError, OptionError
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.measure import agreement
from vermilion.ir.opset import opset_of, static_shape
from vermilion.ir.passes import pipeline
from vermilion.ir.passes.bind_dimensions import bind_dimensions
from vermilion.ir.passes.contract_test import MODELS, operators, parse, reasons, weight
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.samples import sample_inputs
from vermilion.ir.verify import check_graph


def step_of(simplified, name):
    return next(step for step in simplified.steps if step.name == name)


def assert_equal_outputs(
    before: ir.Model, after: ir.Model, cosine: float = 0.999999, inputs=None
) -> None:
    inputs = inputs or sample_inputs(before, seed=5)
    expected = run_session(open_session(before, optimize=False), inputs)
    found = run_session(open_session(after), inputs)
    for name, array in expected.items():
        assert agreement(name, array, found[name]).cosine >= cosine


class Builder:
    """Writes a network node by node."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.weights: list[ir.Value] = []

    def node(self, op_type: str, inputs, **attributes) -> ir.Value:
        node = ir.node(op_type, inputs, attributes)
        node.outputs[0].name = f"v{len(self.nodes)}"
        self.nodes.append(node)
        return node.outputs[0]

    def weight(self, array) -> ir.Value:
        value = ir.Value(name=f"w{len(self.weights)}", const_value=ir.tensor(array))
        self.weights.append(value)
        return value

    def conv_norm(self, value: ir.Value, into: int, out: int, size: int, stride: int) -> ir.Value:
        kernel = weight(out, into, size, size, seed=len(self.nodes)) / (size * into**0.5)
        value = self.node(
            "Conv",
            [value, self.weight(kernel.astype(np.float32))],
            strides=[stride, stride],
            pads=[size // 2] * 4,
        )
        one, zero = np.ones(out, np.float32), np.zeros(out, np.float32)
        statistics = [self.weight(array) for array in (one, zero + 0.1, zero - 0.1, one)]
        return self.node("BatchNormalization", [value, *statistics])

    def block(self, value: ir.Value, into: int, out: int, stride: int) -> ir.Value:
        skip = value if stride == 1 and into == out else self.conv_norm(value, into, out, 1, stride)
        value = self.node("Relu", [self.conv_norm(value, into, out, 3, stride)])
        value = self.conv_norm(value, out, out, 3, 1)
        return self.node("Relu", [self.node("Add", [value, skip])])


def resnet18(width: int = 8, side: int = 32) -> ir.Model:
    """ResNet-18 (He et al. 2015, table 1) with batch norms, thin."""
    build = Builder()
    x = ir.val("x", ir.DataType.FLOAT, ["batch", 3, side, side])
    value = build.node("Relu", [build.conv_norm(x, 3, width, 7, 2)])
    value = build.node("MaxPool", [value], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for stage in range(4):
        for number in range(2):
            stride = 2 if stage and not number else 1
            value = build.block(value, channels, width << stage, stride)
            channels = width << stage
    value = build.node("Flatten", [build.node("GlobalAveragePool", [value])])
    last = [build.weight(weight(channels, 10)), build.weight(weight(10))]
    y = build.node("Gemm", [value, *last])
    y.type, y.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["batch", 10])
    graph = ir.Graph(
        [x], [y], nodes=build.nodes, initializers=build.weights, opset_imports={"": 17}, name="g"
    )
    return ir.Model(graph, ir_version=8)


def test_resnet_18_has_49_nodes() -> None:
    model = resnet18()
    told: list[tuple[str, int, int]] = []
    simplified = simplify(model, dims={"batch": 1}, progress=lambda *step: told.append(step))
    assert simplified.model.graph.num_nodes() == 49
    assert step_of(simplified, "fold-batch-norm").fired == 20
    assert step_of(simplified, "compare-outputs").fired == 1
    assert all(static_shape(v) for node in simplified.model.graph for v in node.outputs)
    assert told[-1] == ("simplify", len(pipeline.PASSES), len(pipeline.PASSES))
    assert model.graph.num_nodes() == 69, "the original stays"
    assert_equal_outputs(bind_dimensions(model, {"batch": 1}), simplified.model)


OCR = [
    ("ch_PP-OCRv4_det_infer.onnx", (1, 3, 64, 96), 269),
    ("ch_PP-OCRv4_rec_infer.onnx", (1, 3, 48, 160), 341),
    ("ch_ppocr_mobile_v2.0_cls_infer.onnx", (1, 3, 48, 192), 180),
]


def written_page(*shape: int) -> np.ndarray:
    """Draw dark strokes on a light page: on noise, text detection finds nothing and says 1e-7."""
    page = np.full(shape, 1.0, np.float32)
    page[:, :, 16:32, 16:-16:6] = -1.0
    page[:, :, 16:32, 17:-16:6] = -1.0
    page[:, :, 22:24, 16:-16] = -1.0
    return page


@pytest.mark.parametrize(("name", "shape", "nodes"), OCR)
def test_pp_ocr_loses_its_shape_chains(name, shape, nodes) -> None:
    model = ir.load(package_file("rapidocr-onnxruntime", f"models/{name}"))
    simplified = simplify(model, dims={"x": shape})
    after = simplified.model
    assert opset_of(after) == 17
    assert not {"Shape", "Constant", "Identity", "BatchNormalization", "Cast"} & set(
        operators(after)
    )
    assert after.graph.num_nodes() == nodes
    assert step_of(simplified, "compare-outputs").fired == 1
    assert all(static_shape(v) is not None for node in after.graph for v in node.outputs)
    page = {"x": written_page(*shape)}
    assert_equal_outputs(bind_dimensions(model, {"x": shape}), after, 0.99999, page)
    again = simplify(after)
    assert {step.name for step in again.steps if step.fired} == {"compare-outputs"}


def test_weights_are_shared_not_copied() -> None:
    model = parse("(float[4] x, float[4] w) => (float[4] y) { y = Add(x, w) }", w=weight(4))
    after = simplify(model).model
    assert after.graph.initializers["w"].const_value is model.graph.initializers["w"].const_value


@pytest.mark.parametrize("name", MODELS)
def test_odd_graphs_go_through_and_a_second_time_changes_nothing(name) -> None:
    first = simplify(MODELS[name])
    check_graph(first.model)
    again = simplify(first.model)
    assert {step.name for step in again.steps if step.fired} <= {"compare-outputs"}


def test_wrong_dimensions_are_the_users_error() -> None:
    with pytest.raises(OptionError, match="no dynamic dimension"):
        simplify(resnet18(), dims={"bach": 1})


def test_a_cycle_is_the_models_error() -> None:
    model = parse("(float[2] x) => (float[2] y) { a = Add(x, x) y = Abs(a) }")
    model.graph[0].replace_input_with(1, model.graph.outputs[0])
    with pytest.raises(ModelError, match="cycle"):
        simplify(model)


def break_numbers(model, notes) -> None:
    for node in model.graph:
        if node.op_type == "Neg":
            new = ir.node("Abs", list(node.inputs))
            new.outputs[0].name = node.outputs[0].name
            ir.convenience.replace_nodes_and_values(
                model.graph, node, [node], [new], node.outputs, new.outputs
            )
            notes.fired += 1


def break_names(model, notes) -> None:
    model.graph.inputs[0].name = "renamed"
    notes.fired += 1


def break_graph(model, notes) -> None:
    model.graph[0].replace_input_with(0, ir.val("nowhere"))
    notes.fired += 1


def crash(model, notes) -> None:
    raise KeyError("unexpected")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (break_numbers, "left out: it changes the outputs (output `y`: "),
        (break_names, "left out: it changes the interface: the inputs were ['x']"),
        (break_graph, "left out: it broke the graph: nothing gives the value `nowhere`"),
        (crash, "left out: it failed with KeyError: 'unexpected'"),
    ],
)
def test_a_pass_that_breaks_its_promise_is_left_out(monkeypatch, bad, reason) -> None:
    monkeypatch.setattr(pipeline, "PASSES", (*pipeline.PASSES[:3], bad, *pipeline.PASSES[3:]))
    model = parse("(float[8] x) => (float[8] y) { i = Identity(x) a = Neg(i) y = Relu(a) }")
    simplified = simplify(model)
    step = step_of(simplified, bad.__name__.replace("_", "-"))
    assert step.fired == 0
    assert reasons(step)[0].startswith(reason)
    assert operators(simplified.model) == ["Neg", "Relu"], "the other passes still ran"
    assert_equal_outputs(model, simplified.model)


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("inputs", ["", "x", "w", "w, w, w"])
@pytest.mark.parametrize(
    "op_type", ["Shape", "Conv", "Reshape", "Slice", "BatchNormalization", "Dropout", "Range", "If"]
)
def test_nodes_with_the_wrong_number_of_inputs_break_no_pass(op_type, inputs, opset) -> None:
    result = "int64[n]" if op_type == "Shape" else "float[2,3]"
    model = parse(
        f"(float[2,3] x, float[2,3] w) => ({result} y) {{ a = {op_type}({inputs}) y = Abs(a) }}",
        opset=opset,
        w=weight(2, 3),
    )
    try:
        simplified = simplify(model)
    except ModelError:  # which is said of the node, before any pass relies on it
        return
    assert not [r for step in simplified.steps for r in reasons(step) if "left out" in r]


def test_a_large_weight_that_nobody_reads_does_not_stop_the_comparison() -> None:
    model = parse(
        "(float[2] x, float[9999] w, float[2] v) => (float[2] y) { y = Add(x, v) }",
        w=weight(9999),
        v=weight(2),
    )
    simplified = simplify(model)
    assert step_of(simplified, "compare-outputs").fired == 1
    assert step_of(simplified, "remove-dead-nodes").fired == 1


UNARY = ["Abs", "Neg", "Relu", "Sigmoid", "Identity", "Dropout"]
BINARY = ["Add", "Mul", "Sub", "Max"]


@st.composite
def random_models(draw: st.DrawFn) -> ir.Model:
    """A graph of up to twelve nodes over an image, with convolutions, norms and constants."""
    lines = ["v0 = Conv<pads = [1, 1, 1, 1]>(x, w)"]
    count = 1
    for _ in range(draw(st.integers(1, 11))):
        kind = draw(st.sampled_from(["unary", "binary", "norm", "conv", "constant"]))
        source = f"v{draw(st.integers(0, count - 1))}"
        if kind == "unary":
            made = f"{draw(st.sampled_from(UNARY))}({source})"
        elif kind == "binary":
            other = f"v{draw(st.integers(0, count - 1))}"
            made = f"{draw(st.sampled_from(BINARY))}({source}, {other})"
        elif kind == "norm":
            made = f"BatchNormalization({source}, g, b, m, s)"
        elif kind == "conv":
            made = f"Conv<pads = [1, 1, 1, 1]>({source}, w, b)"
        else:
            lines.append(f"k{count} = {draw(st.sampled_from(['Neg', 'Exp']))}(k)")
            made = f"{draw(st.sampled_from(BINARY))}({source}, k{count})"
        lines.append(f"v{count} = {made}")
        count += 1
    outputs = sorted({draw(st.integers(0, count - 1)), count - 1})
    declared = ", ".join(f"float[1,3,6,6] v{number}" for number in outputs)
    return parse(
        "(float[1,3,6,6] x, float[3,3,3,3] w, float[3] g, float[3] b, float[3] m, float[3] s, "
        f"float[3,1,1] k) => ({declared}) {{ {' '.join(lines)} }}",
        w=weight(3, 3, 3, 3),
        g=weight(3, seed=1),
        b=weight(3, seed=2),
        m=weight(3, seed=3),
        s=np.abs(weight(3, seed=4)) + 0.5,
        k=weight(3, 1, 1, seed=5),
    )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(random_models())
def test_random_graphs_keep_their_outputs(model) -> None:
    simplified = simplify(model)
    check_graph(simplified.model)
    left_out = [r for step in simplified.steps for r in reasons(step) if "left out" in r]
    assert not left_out, "a pass of ours changed the numbers"
    assert (
        not {"Identity", "Dropout"} & set(operators(simplified.model))
        or len(model.graph.outputs) > 1
    )
    assert_equal_outputs(model, simplified.model)
    again = simplify(simplified.model)
    assert {step.name for step in again.steps if step.fired} <= {"compare-outputs"}


def test_a_constant_node_is_held_to_what_a_weight_is() -> None:
    text = """(int8[4] x) => (float[4] y) {
        s = Constant <value_float = -1.0> () y = DequantizeLinear(x, s)
    }"""
    with pytest.raises(ModelError, match="its scale is -1"):
        simplify(parse(text))
