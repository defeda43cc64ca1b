"""The numbers of an NPU computed on the CPU: ours beside AMD Quark's emulation and ONNX Runtime.

    python bench/npu_numbers_bench.py --quark PYTHON [--model FILE] [--runs N] [--json FILE]

PYTHON is an interpreter that has `amd-quark` and `onnxruntime`. Made with it, of one float model:
its BFP16 model, whose custom operator rounds each tensor, and its XINT8 model. Measured, with one
thread, each in a process of its own, taking turns, as processor time:

    quark bfp16      Quark's model in ONNX Runtime with Quark's operator
    ours, same       the same graph, each tensor rounded where Quark rounds it, in generated code
    ours bfp16       `compile --target strix --precision bfp16` of the float model
    ours bf16        `compile --target strix`
    ort xint8        Quark's XINT8 model in ONNX Runtime
    ours xint8       `compile --target strix` of the same file

and how many values of `ours, same` and of `ours xint8` differ from what the peer gives.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

TURNS, WARM_UP = 3, 2


def main() -> None:
    """Measure, print a table, write JSON where asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quark", required=True, help="an interpreter with amd-quark")
    parser.add_argument("--model", type=Path, help="a float model with one image input")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="npu-numbers-") as scratch:
        found = measure(asked.quark, asked.model, asked.runs, Path(scratch))
    for name, row in found["milliseconds"].items():
        print(f"{name:14} {min(row):9.2f} ms   ({', '.join(f'{ms:.2f}' for ms in row)})")
    for name, ratio in found["ratios"].items():
        print(f"{name}: {ratio:.1f} times")
    for name, share in found["differing"].items():
        print(f"{name}: {share:.4%} of the output values differ")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2), encoding="utf-8")


def measure(quark: str, model: Path | None, runs: int, folder: Path) -> dict[str, Any]:
    """Make all models, run the engines in turns; give times, ratios and differences."""
    from vermilion.rounds import in_rounds  # which Quark's environment does not need

    floats = folder / "float.onnx"
    write_float_model(model, floats)
    for preset in ("BFP16", "XINT8"):
        child(quark, "--quantize", preset, floats, folder / f"{preset}.onnx", folder=folder)
    write_same(folder / "BFP16.onnx", folder / "same.onnx")
    here = sys.executable
    engines: dict[str, tuple[str, tuple[object, ...]]] = {
        "quark bfp16": (quark, ("--run-quark", folder / "BFP16.onnx", max(2, runs // 4))),
        "ours, same": (here, ("--run-same", folder / "same.onnx", runs)),
        "ours bfp16": (here, ("--run-ours", floats, runs, "bfp16")),
        "ours bf16": (here, ("--run-ours", floats, runs, "bf16")),
        "ort xint8": (here, ("--run-ort", folder / "XINT8.onnx", runs)),
        "ours xint8": (here, ("--run-ours", folder / "XINT8.onnx", runs, "auto")),
    }
    outputs: dict[str, np.ndarray[Any, Any]] = {}

    def turn(name: str, _: int) -> float:
        interpreter, words = engines[name]
        result = folder / "result.npz"
        child(interpreter, *words, result, folder=folder)
        with np.load(result) as data:
            outputs[name] = data["output"]
            return float(data["milliseconds"])

    times = dict(zip(engines, in_rounds(list(engines), turn, TURNS), strict=True))
    best = {name: min(row) for name, row in times.items()}
    return {
        "milliseconds": times,
        "ratios": {
            "ours, same, faster than Quark's BFP16": best["quark bfp16"] / best["ours, same"],
            "ours bfp16 faster than Quark's BFP16": best["quark bfp16"] / best["ours bfp16"],
            "ours xint8 faster than ONNX Runtime": best["ort xint8"] / best["ours xint8"],
        },
        "differing": {
            f"{ours} and {theirs}": float(np.mean(outputs[ours] != outputs[theirs]))
            for ours, theirs in (("ours, same", "quark bfp16"), ("ours xint8", "ort xint8"))
        },
    }


def child(interpreter: str, *words: object, folder: Path) -> None:
    """Run this file in another process, with one thread."""
    command = [interpreter, str(Path(__file__).resolve()), *map(str, words)]
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


# Models -------------------------------------------------------------------------------------------


def write_float_model(source: Path | None, target: Path) -> None:
    """Write the float model with all its sizes bound: ResNet-50 with random weights by default."""
    import onnx_ir as ir

    from vermilion.ir.load import load_model
    from vermilion.ir.passes.bind_dimensions import bind_dimensions
    from vermilion.ir.passes.pipeline import simplify

    if source is None:
        from workloads import resnet50

        model = bind_dimensions(resnet50(), {"batch": 1})
    else:
        model = load_model(source)
        names = {str(size) for value in model.graph.inputs for size in value.shape or ()}
        model = bind_dimensions(model, {"batch": 1}) if "batch" in names else model
    ir.save(simplify(model).model, target)


def write_same(source: Path, target: Path) -> None:
    """Write Quark's graph with our operator in the place of Quark's; weights are rounded now.

    An output that Quark rounds keeps its name.
    """
    import onnx
    import onnx_ir as ir

    from vermilion.codegen.lower.block_rounding import DOMAIN, OPERATOR
    from vermilion.quantize.blocks import round_to

    model = ir.load(source)
    graph = model.graph
    graph.opset_imports[DOMAIN] = 1
    for node in list(graph):
        if node.op_type != "BFPQuantizeDequantize":
            continue
        read, made = node.inputs[0], node.outputs[0]
        assert read is not None
        axis = node.attributes["axis"].as_int()
        if read.const_value is not None:
            array = round_to(read.const_value.numpy(), "bfp16", axis)
            value = ir.Value(
                name=f"{made.name}/rounded", type=read.type, shape=read.shape,
                const_value=ir.Tensor(array, name=f"{made.name}/rounded"),
            )  # fmt: skip
            graph.register_initializer(value)
            for use in list(made.uses()):
                use.node.replace_input_with(use.idx, value)
            graph.remove(node, safe=True)
        else:
            # For shape inference an operator that changes no shape stands in.
            node.domain, node.op_type = "", "Identity"
            node.metadata_props["rounds along"] = str(axis)
            node.attributes.clear()
    inferred = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model)))
    for node in inferred.graph:
        axis_text = node.metadata_props.pop("rounds along", "")
        if axis_text:
            node.domain, node.op_type = DOMAIN, OPERATOR
            node.attributes["axis"] = ir.AttrInt64("axis", int(axis_text))
    ir.save(inferred, target)


# Children -----------------------------------------------------------------------------------------


def image(shape: list[int]) -> np.ndarray[Any, Any]:
    """Return the input of every engine."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def timed(run: Any, runs: int, result: str) -> None:
    """Time `run`, which gives one output; write the least processor time and the output."""
    for _ in range(WARM_UP if runs > WARM_UP else 1):
        output = run()
    best = float("inf")
    for _ in range(runs):
        begin = time.process_time()
        output = run()
        best = min(best, time.process_time() - begin)
    np.savez(result, milliseconds=best * 1e3, output=output)


def quantize_with_quark(preset: str, source: str, target: str) -> None:
    """Write Quark's model of a preset, calibrated on noise: times do not depend on it."""
    import onnx
    from onnxruntime.quantization.calibrate import CalibrationDataReader
    from quark.onnx import ModelQuantizer
    from quark.onnx.quantization.config import Config, get_default_config

    value = onnx.load(source).graph.input[0]
    shape = [size.dim_value for size in value.type.tensor_type.shape.dim]

    class Noise(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = 1

        def get_next(self) -> dict[str, Any] | None:
            self.left -= 1
            return {value.name: image(shape)} if self.left >= 0 else None

    config = Config(global_quant_config=get_default_config(preset))
    ModelQuantizer(config).quantize_model(source, target, Noise())


def run_ort(path: str, runs: int, result: str, *, with_quark: bool) -> None:
    """Run a model in ONNX Runtime, with Quark's operators where asked."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if with_quark:
        from quark.onnx import get_library_path

        options.register_custom_ops_library(get_library_path())
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    value = session.get_inputs()[0]
    feed = {value.name: image(value.shape)}
    timed(lambda: session.run(None, feed)[0], runs, result)


def run_ours(path: str, runs: int, precision: str, result: str) -> None:
    """Run a model as it is compiled for the modelled NPU."""
    from vermilion.api import compile_model

    compiled = compile_model(path, target="strix", precision=precision, cache_dir="cache")
    session = compiled.session(threads=1)
    assert all("native code" in place for place in session.runs_on if "strix" in place)
    value = session.get_inputs()[0]
    feed = {value.name: image([int(size) for size in value.shape])}
    timed(lambda: session.run(None, feed)[0], runs, result)


def run_same(path: str, runs: int, result: str) -> None:
    """Run a graph that has our rounding operator in it, in float32 otherwise."""
    import onnx_ir as ir

    from vermilion.backends.base import CompileOptions, Part
    from vermilion.backends.native import NativeBackend
    from vermilion.hardware.targets.find import find_target

    model, here = ir.load(path), find_target("cpu")
    options = CompileOptions(precision="fp32", winograd=False, threads=1)
    part = Part("same", "cpu", "native", model, (), 0.0)
    backend, folder = NativeBackend(), Path("same")
    program = backend.compile(part, here, options, folder)

    class Files:
        def read(self, name: str) -> memoryview:
            return memoryview((folder / name).read_bytes())

        def weights(self) -> dict[str, Any]:
            return {}

    loaded = backend.load(program, Files(), here, options)
    value = model.graph.inputs[0]
    assert value.shape is not None
    feed = {str(value.name): image([int(size) for size in value.shape])}  # type: ignore[arg-type]
    timed(lambda: next(iter(loaded.run(feed).values())), runs, result)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--quantize", preset, source, target]:
            quantize_with_quark(preset, source, target)
        case ["--run-quark", path, runs, result]:
            run_ort(path, int(runs), result, with_quark=True)
        case ["--run-ort", path, runs, result]:
            run_ort(path, int(runs), result, with_quark=False)
        case ["--run-ours", path, runs, precision, result]:
            run_ours(path, int(runs), precision, result)
        case ["--run-same", path, runs, result]:
            run_same(path, int(runs), result)
        case _:
            main()
