"""Placement by rule: the counters of the summary, on graphs that are built to hit each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.backends import backend
from vermilion.errors import Refusal
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import PlacementLimits, Target
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import run_pass
from vermilion.partition.place import Placement, plan, settle
from vermilion.runtime.summarize import summarize

ROWS, WIDTH = 1000, 100
VE2 = find_target("ve2")


def chain(segments: Sequence[tuple[str, int, int, int]], batch: int = ROWS) -> ir.Model:
    """Build a chain of segments: ("matmul", nodes, hidden width, Relus on the hidden) or an op.

    A matmul segment multiplies (ROWS, WIDTH) up to the hidden width and back, the rest is Relu:
    4·ROWS·WIDTH·hidden + (nodes - 2 - r)·ROWS·WIDTH + r·ROWS·hidden operations.
    """
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 17}, name="chain")
    value = ir.val("x", dtype=ir.DataType.FLOAT, shape=ir.Shape([batch, WIDTH]))
    graph.inputs.append(value)

    def weight(name: str, shape: tuple[int, int]) -> ir.Value:
        array = np.full(shape, 1.0 / shape[0], np.float32)
        initializer = ir.val(name, const_value=ir.Tensor(array, name=name))
        initializer.dtype, initializer.shape = ir.DataType.FLOAT, ir.Shape(shape)
        graph.register_initializer(initializer)
        return initializer

    def append(op_type: str, *inputs: ir.Value) -> ir.Value:
        name = f"{op_type}_{len(graph)}"
        node = ir.node(op_type, inputs, name=name)
        node.outputs[0].name = f"{name}_out"
        graph.append(node)
        return node.outputs[0]

    for index, (kind, nodes, hidden, on_hidden) in enumerate(segments):
        if kind != "matmul":
            value = append(kind, value)
            continue
        value = append("MatMul", value, weight(f"up{index}", (WIDTH, hidden)))
        for _ in range(on_hidden):
            value = append("Relu", value)
        value = append("MatMul", value, weight(f"down{index}", (hidden, WIDTH)))
        for _ in range(nodes - 2 - on_hidden):
            value = append("Relu", value)
    value.dtype, value.shape = ir.DataType.FLOAT, ir.Shape([batch, WIDTH])
    graph.outputs.append(value)
    model = ir.Model(graph, ir_version=8)
    run_pass(infer_shapes, model)
    return model


def place(model: ir.Model, target: Target, failing: Sequence[str] = ()) -> Placement:
    """Place with the modelled NPU; parts named in `failing` are taken to fail to compile."""
    decided = plan(model, target, backend("npu_model"), backend("ort"))
    failed = {
        part.name: Refusal("its region failed to compile: L1 placement failure")
        for part in decided.device_parts()
        if part.name in failing
    }
    assert set(failed) == set(failing)
    return settle(decided, failed)


def check_runs(model: ir.Model, placement: Placement) -> None:
    """Run the parts in order and compare with the whole model."""
    feed = {"x": np.linspace(-1, 1, ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)}
    expected = run_session(open_session(model), feed)
    tensors = dict(feed)
    for part in placement.parts:
        names = [str(v.name) for v in part.model.graph.inputs]
        tensors |= run_session(open_session(part.model), {n: tensors[n] for n in names})
    for name, array in expected.items():
        np.testing.assert_allclose(tensors[name], array, rtol=1e-5)


def fallbacks(placement: Placement) -> tuple[int, int, int]:
    counted = summarize(placement.parts[0].model, placement, "m", "0" * 64).fallback
    return counted.compile_error, counted.below_gops_threshold, counted.above_max_subgraphs


def test_a_supported_chain_is_one_part() -> None:
    model = chain([("matmul", 4, 100, 0)])
    placement = place(model, VE2)
    assert [p.name for p in placement.parts] == ["vaiml_par_0"]
    assert fallbacks(placement) == (0, 0, 0)
    check_runs(model, placement)


def test_an_unsupported_operator_in_the_middle_cuts_in_two() -> None:
    model = chain([("matmul", 4, 100, 0), ("Softplus", 1, 0, 0), ("matmul", 4, 100, 0)])
    placement = place(model, VE2)
    assert [(p.name, p.device) for p in placement.parts] == [
        ("vaiml_par_0", "npu"),
        ("cpu_par_0", "cpu"),
        ("vaiml_par_1", "npu"),
    ]
    summary = summarize(model, placement, "m", "0" * 64)
    assert (summary.operators, summary.supported_operators, summary.offloaded_operators) == (
        9,
        8,
        8,
    )
    assert (summary.subgraphs_supported, summary.subgraphs_offloaded) == (2, 2)
    assert fallbacks(placement) == (0, 0, 0)
    cut = next(node for node in placement.nodes if node.op_type == "Softplus")
    assert (cut.device, cut.supported) == ("cpu", False)
    assert "`Softplus` is not supported in bf16 by ve2" in cut.reason
    assert cut.hint
    check_runs(model, placement)


def test_a_part_under_a_fifth_of_the_work_stays_on_the_cpu() -> None:
    model = chain([("matmul", 4, 100, 0), ("Softplus", 1, 0, 0), ("matmul", 4, 20, 0)])
    placement = place(model, VE2)
    assert fallbacks(placement) == (0, 1, 0)
    assert [p.name for p in placement.parts] == ["vaiml_par_0", "cpu_par_0"]
    small = [node for node in placement.nodes if node.device == "cpu" and node.supported]
    assert len(small) == 4
    assert all("of the model's GOPs; ve2 takes regions from 20%" in n.reason for n in small)
    check_runs(model, placement)


def eight_parts() -> ir.Model:
    segments: list[tuple[str, int, int, int]] = []
    for index in range(8):
        segments += [("matmul", 3, 40 + index, 0), ("Softplus", 1, 0, 0)]
    return chain(segments[:-1])


def test_eight_even_parts_are_all_under_a_fifth() -> None:
    assert fallbacks(place(eight_parts(), VE2)) == (0, 8, 0)


def test_beyond_seven_parts_the_smallest_goes_to_the_cpu() -> None:
    # With the threshold of 2 % that early releases had, eight parts qualify and one is too many.
    early = replace(VE2, limits=PlacementLimits(min_gops_percent=2.0, max_parts=7))
    model = eight_parts()
    placement = place(model, early)
    assert fallbacks(placement) == (0, 0, 1)
    assert sum(p.device == "npu" for p in placement.parts) == 7
    left = [n for n in placement.nodes if "takes at most 7 regions, and 8 qualify" in n.reason]
    assert [n.name for n in left] == [n.name for n in placement.nodes[:3]]
    check_runs(model, placement)


def test_a_part_that_fails_to_compile_goes_to_the_cpu_with_the_reason() -> None:
    model = chain([("matmul", 4, 100, 0), ("Softplus", 1, 0, 0), ("matmul", 4, 100, 0)])
    placement = place(model, VE2, failing=["vaiml_par_0"])
    assert fallbacks(placement) == (1, 0, 0)
    # What failed and what was never supported run together: one crossing fewer.
    assert [p.name for p in placement.parts] == ["cpu_par_0", "vaiml_par_1"]
    assert placement.nodes[0].reason == "its region failed to compile: L1 placement failure"
    check_runs(model, placement)


PARTIAL = """\
Number of operators in the model: 49
GOPs of the model: 3.64262
Number of operators supported by VAIML: 47 (95.918%)
GOPs supported by VAIML: 3.642 (99.984%)
Number of subgraphs supported by VAIML: 3
Number of operators offloaded by VAIML: 35 (71.429%)
GOPs offloaded by VAIML: 2.500 (68.627%)
Number of subgraphs offloaded by VAIML: 2
Number of subgraphs with compilation errors (fall back to CPU): 1
Number of subgraphs below 20% GOPs threshold (fall back to CPU): 0
Number of subgraphs above max number of subgraphs allowed(7): 0 (fall back to CPU)
"""


def test_the_vendors_partial_example_comes_out_figure_by_figure() -> None:
    # Source: AMD, "Compiled Model Output": 35 operators (71.429%), 2.500 GOPs (68.627%) in two
    # subgraphs, one subgraph with a compilation error, in a model of 49 operators.
    model = chain(
        [
            ("matmul", 20, 3605, 2),
            ("Softplus", 1, 0, 0),
            ("matmul", 12, 2853, 0),
            ("Softplus", 1, 0, 0),
            ("matmul", 15, 2613, 1),
        ]
    )
    placement = place(model, VE2, failing=["vaiml_par_1"])
    text = summarize(model, placement, "partial.onnx", "0" * 64).to_text()
    assert PARTIAL in text
    assert "Subgraph vaiml_par_0 stats:" in text
    assert "Subgraph vaiml_par_1 stats:" not in text


@pytest.mark.parametrize(
    ("target", "batch", "reason"),
    [
        ("phoenix", 1, "phoenix takes a8w8, xint8; this model is fp32"),
        ("strix", "N", "strix needs fixed shapes; N is dynamic"),
    ],
)
def test_whole_models_are_refused_with_a_reason(target: str, batch: object, reason: str) -> None:
    model = chain([("matmul", 4, 10, 0)])
    model.graph.inputs[0].shape = ir.Shape([batch, WIDTH])  # type: ignore[list-item]
    placement = place(model, find_target(target))
    assert {node.reason for node in placement.nodes} == {reason}
    assert all(node.hint for node in placement.nodes)
    assert [p.name for p in placement.parts] == ["cpu_par_0"]


def test_a_cpu_target_takes_everything_as_one_part() -> None:
    decided = plan(eight_parts(), find_target("cpu"), backend("ort"), backend("ort"))
    placement = settle(decided, {})
    assert [p.name for p in placement.parts] == ["vaiml_par_0"]
    assert placement.count("below_gops_threshold") == 0
