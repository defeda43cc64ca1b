"""Profiles of real engines, in this process: what they tell of their steps, in one form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import models
from vermilion.api import compile_model
from vermilion.bench.engines import Request
from vermilion.bench.events import native_events, profile_engine
from vermilion.bench.profile import Event, Run, summed, trace
from vermilion.codegen.profile import StepTime
from vermilion.errors import UnsupportedError
from vermilion.ir.cost import model_cost
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import Notes
from vermilion.ir.samples import sample_inputs


def operations(run: Run) -> int:
    return sum(event.operations or 0 for event in run)


@pytest.fixture(scope="module")
def resnet() -> ir.Model:
    model = models.resnet18(image=64)
    infer_shapes(model, Notes())
    return model


def test_ours_tells_every_step_in_order(resnet: ir.Model, tmp_path: Path) -> None:
    artifact = compile_model(resnet, cache_dir=tmp_path).artifact
    request = Request("vermilion", "fp32", str(artifact), threads=2)
    runs = profile_engine(request, sample_inputs(resnet), 3)
    assert len(runs) == 3
    for run in runs:
        begins = [event.begin_us for event in run]
        assert begins == sorted(begins)
        assert {event.device for event in run} == {"CPU (generated code)"}
        assert operations(run) == pytest.approx(model_cost(resnet).operations, rel=0.01)
    names = {event.name for event in runs[0]}
    assert "fc/Gemm" in names
    assert not any(name.endswith((" products", " patches")) for name in names)


def test_onnx_runtime_tells_its_kernels(resnet: ir.Model, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    ir.save(resnet, path)
    runs = profile_engine(Request("ort", "fp32", str(path), 1), sample_inputs(resnet), 2)
    assert len(runs) == 2
    kinds = [event.kind for event in runs[0]]
    assert kinds.count("Conv") == 20
    assert kinds.count("Gemm") == 1
    assert {event.device for event in runs[0]} == {"CPU (ONNX Runtime)"}
    products = [n for n in model_cost(resnet).nodes if n.op_type in ("Conv", "Gemm")]
    assert operations(runs[0]) == pytest.approx(sum(n.operations for n in products), rel=0.01)
    assert list(tmp_path.iterdir()) == [path]  # the profiler's own file is gone


@pytest.mark.needs("openvino")
@pytest.mark.filterwarnings("ignore::ImportWarning")  # what its package imports still asks for six
def test_openvino_tells_its_steps(resnet: ir.Model, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    ir.save(resnet, path)
    (run,) = profile_engine(Request("openvino", "fp32", str(path), 1), sample_inputs(resnet), 1)
    assert sum(event.kind == "Convolution" for event in run) == 20
    assert run[1].begin_us == run[0].duration_us


def test_parts_of_two_backends_are_on_one_clock(tmp_path: Path) -> None:
    """The determinant in the middle is for ONNX Runtime: the generator has no rule for it."""
    net = models.Net("parts", seed=1)
    x = net.input("x", (4, 32, 32))
    weight = net.constant("w", net.normal((32, 32), 0.2))
    y = net.op("MatMul", x, weight, name="first")
    net.output(net.op("Neg", net.op("Det", y, name="det"), name="last"), "y", (4,))
    model = net.model()
    artifact = compile_model(model, cache_dir=tmp_path).artifact
    request = Request("vermilion", "fp32", str(artifact), threads=1)
    (run,) = profile_engine(request, sample_inputs(model), 1)
    assert [event.begin_us for event in run] == sorted(event.begin_us for event in run)
    devices = list(dict.fromkeys(event.device for event in run))
    assert devices == ["CPU (generated code)", "CPU (ONNX Runtime)"]
    assert {"first", "det"} <= {event.name for event in run}
    shares = {line.device: line.share for line in summed("e", "fp32", "1", [1.0], [run]).by_device}
    assert set(shares) == set(devices)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_an_engine_that_tells_nothing_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="does not say"):
        profile_engine(Request("pencil", "fp32", "m.onnx", 1), {}, 1)


def step(label: str, family: str, begin: int, ns: int, counted: int = 0) -> StepTime:
    return StepTime(label, family, counted, begin, ns)


def test_the_steps_of_a_convolution_by_winograd_have_one_name() -> None:
    steps = [
        step("pool", "pool", 0, 5),
        step("conv patches", "winograd_input", 10, 1000),
        step("conv products", "product", 2000, 3000),
        step("relu", "winograd_output", 6000, 1000, 20_000),
        step("fc products", "product", 9000, 10, 7),
    ]
    events = native_events(steps, 0)
    assert [(e.name, e.kind) for e in events] == [
        ("pool", "pool"), ("relu", "winograd"), ("relu", "winograd"), ("relu", "winograd"),
        ("fc products", "product"),
    ]  # fmt: skip
    assert [e.detail for e in events[1:4]] == ["winograd_input", "product", "winograd_output"]
    line = summed("vermilion", "fp32", "1", [1.0], [events]).by_step[0]
    assert (line.name, line.steps, line.ms) == ("relu", 3, 0.005)
    assert line.gops_per_s == pytest.approx(4.0)  # 20,000 in 5 microseconds


def test_both_steps_of_a_product_by_strassen_have_one_name() -> None:
    steps = [
        step("x sums", "map", 0, 500),
        step("fc products", "matmul", 1000, 3000),
        step("relu", "map", 5000, 1000, 16_000),
        step("add", "map", 7000, 10, 7),
    ]
    events = native_events(steps, 0)
    assert [(e.name, e.kind) for e in events] == [
        ("x sums", "map"), ("relu", "strassen"), ("relu", "strassen"), ("add", "map"),
    ]  # fmt: skip
    line = summed("vermilion", "fp32", "1", [1.0], [events]).by_step[0]
    assert (line.name, line.steps, line.gops_per_s) == ("relu", 2, pytest.approx(4.0))


def event(name: str, us: float, begin: float = 0.0, device: str = "CPU") -> Event:
    return Event(name, name.upper(), device, begin, us, None)


def test_medians_shares_and_order() -> None:
    runs = [(event("a", 1.0), event("b", 30.0)), (event("a", 9.0), event("b", 10.0))]
    runs.append((event("a", 5.0), event("b", 20.0)))
    found = summed("ort", "fp32", "1.32", [0.04, 0.02, 0.03], runs)
    assert (found.run_ms, found.runs) == (0.03, 3)
    assert found.steps_ms == pytest.approx(0.025)
    assert [(line.name, line.ms, line.share) for line in found.by_step] == [
        ("b", 0.02, 0.8),
        ("a", 0.005, 0.2),
    ]
    assert found.by_step[0].gops_per_s is None
    assert found.shown == runs[2]


def test_the_trace_is_what_perfetto_reads() -> None:
    run = (event("a", 2.0), event("b", 3.0, 2.5, "GPU"))
    found = trace({"m": [summed("ort", "fp32", "1.32", [1.0], [run])]})
    events = found["traceEvents"]
    assert isinstance(events, list)
    named = [(e["name"], e["tid"], e["args"]["name"]) for e in events if e["ph"] == "M"]
    assert named == [
        ("process_name", 0, "m: ort@fp32 1.32"), ("thread_name", 1, "CPU"),
        ("thread_name", 2, "GPU"),
    ]  # fmt: skip
    slices = [(e["name"], e["ts"], e["dur"], e["tid"]) for e in events if e["ph"] == "X"]
    assert slices == [("a", 0.0, 2.0, 1), ("b", 2.5, 3.0, 2)]


def test_inputs_of_a_run_are_not_changed(resnet: ir.Model, tmp_path: Path) -> None:
    artifact = compile_model(resnet, cache_dir=tmp_path).artifact
    inputs = sample_inputs(resnet)
    before = {name: array.copy() for name, array in inputs.items()}
    profile_engine(Request("vermilion", "fp32", str(artifact), 1), inputs, 1)
    for name, array in before.items():
        np.testing.assert_array_equal(inputs[name], array)
