from __future__ import annotations

import gc
import time
import weakref
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import models
from vermilion.api import compile_model
from vermilion.backends.base import CompileOptions, Program
from vermilion.backends.native import NativeBackend
from vermilion.backends.native_run import NativeExecutable
from vermilion.codegen.profile import StepTimer
from vermilion.hardware.targets.find import find_target
from vermilion.ir.cost import model_cost
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import Notes
from vermilion.ir.samples import sample_inputs
from vermilion.runtime.artifact import open_artifact


def opened(model: ir.Model, folder: Path, threads: int) -> NativeExecutable:
    compiled = compile_model(model, cache_dir=folder)
    reader = open_artifact(compiled.artifact)
    (part,) = reader.manifest.parts
    target = find_target(reader.manifest.target)
    files, options = reader.part(part.name), CompileOptions(threads=threads)
    return NativeBackend().load(Program(part.files), files, target, options)


@pytest.mark.parametrize("threads", [1, 2])
def test_steps_one_by_one_compute_the_same(tmp_path: Path, threads: int) -> None:
    model = models.resnet18(image=64)
    part = opened(model, tmp_path, threads)
    inputs, timer = sample_inputs(model), part.step_timer()
    expected = part.run(inputs)
    begin = time.perf_counter_ns()
    found = part.run_timed(inputs, timer)
    end = time.perf_counter_ns()
    np.testing.assert_array_equal(found["output"], expected["output"])

    steps = timer.times
    assert {"fc/Gemm", "maxpool"} <= {step.label for step in steps}
    begins = [step.begin_ns for step in steps]
    assert begins == sorted(begins)
    assert begin < begins[0]
    assert begins[-1] + steps[-1].duration_ns < end
    timer.close()
    np.testing.assert_array_equal(part.run(inputs)["output"], expected["output"])


def test_workers_that_are_late_never_mix_two_steps(tmp_path: Path) -> None:
    """More workers than cores, and steps of few and of many units in turn."""
    model = models.mobilenet(image=64)
    part = opened(model, tmp_path, 1)
    inputs = sample_inputs(model)
    expected = part.run(inputs)["output"]
    timer = StepTimer(part._program, part._calls, workers=5)
    for _ in range(10):
        np.testing.assert_array_equal(part.run_timed(inputs, timer)["output"], expected)
    timer.close()


def test_a_timer_outlives_its_part(tmp_path: Path) -> None:
    """Its workers wait in the part's machine code, which must not go before they do."""
    model = models.small_cnn()
    part = opened(model, tmp_path, 1)
    inputs = sample_inputs(model)
    timer = StepTimer(part._program, part._calls, workers=3)
    part.run_timed(inputs, timer)
    code = [weakref.ref(library) for library in part._program.keep[0]]
    del part
    gc.collect()
    time.sleep(0.05)
    assert all(one() is not None for one in code)
    del timer
    until = time.monotonic() + 20
    while any(one() is not None for one in code) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert all(one() is None for one in code)


def test_the_operations_of_all_steps_are_those_of_the_model(tmp_path: Path) -> None:
    model = models.resnet18(image=64)
    part = opened(model, tmp_path, 1)
    timer = part.step_timer()
    part.run_timed(sample_inputs(model), timer)
    infer_shapes(model, Notes())
    counted = sum(step.operations for step in timer.times)
    assert counted == pytest.approx(model_cost(model).operations, rel=0.01)
    assert all(step.family and step.duration_ns >= 0 for step in timer.times)


def test_most_of_the_time_is_where_most_of_the_work_is(tmp_path: Path) -> None:
    model = models.resnet18(image=112)
    part = opened(model, tmp_path, 1)
    inputs, timer = sample_inputs(model), part.step_timer()
    runs = []
    for _ in range(5):
        part.run_timed(inputs, timer)
        runs.append(timer.times)
    least = [min(step.duration_ns for step in steps) for steps in zip(*runs, strict=True)]
    # The products of Winograd's algorithm count with what comes of them.
    heavy = [step.operations > 1e7 or step.label.endswith(" products") for step in runs[0]]
    of_heavy = sum(ns for ns, is_heavy in zip(least, heavy, strict=True) if is_heavy)
    assert of_heavy > 0.7 * sum(least)
