"""A model over 2 GB: loaded through the mapping, never copied by us."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

ROOT = Path(__file__).parent.parent
ROWS, WIDTH = 34_000_000, 16
TABLE_BYTES = 4 * ROWS * WIDTH  # 2.18 GB: more than one protobuf message may hold
MEGABYTE = 1_000_000

PEAK = """
import json, sys
from pathlib import Path
from vermilion.memory import peak_rss_mb
from vermilion.inspection import inspect_model
before = peak_rss_mb()
found = inspect_model(Path(sys.argv[1]), dims={"n": 4})
print(json.dumps({"before": before, "after": peak_rss_mb(), **found.as_json()}))
"""


def external(name: str, shape: tuple[int, ...], offset: int, size: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "m.data"), ("offset", offset), ("length", size)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a lookup in a table of 2.18 GB and a product, on a file that is nearly all hole."""
    folder = tmp_path_factory.mktemp("large")
    if sys.platform == "win32":
        pytest.skip("this system gives a hole in a file its whole size")
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"], name="look up"),
            helper.make_node("MatMul", ["rows", "w"], ["y"], name="product"),
        ],
        "large",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [
            external("table", (ROWS, WIDTH), 0, TABLE_BYTES),
            external("w", (WIDTH, 8), TABLE_BYTES, 4 * WIDTH * 8),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    with (folder / "m.data").open("wb") as file:
        file.truncate(TABLE_BYTES + 4 * WIDTH * 8)
    return folder / "m.onnx"


def child(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "VERMILION_CACHE": str(cwd / "cache"),
    }
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=cwd,
        timeout=300,
        check=False,
    )


def test_it_is_inspected_without_a_copy(large: Path, tmp_path: Path) -> None:
    done = child("-c", PEAK, large, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["weight_bytes"] == TABLE_BYTES + 4 * WIDTH * 8
    assert [row["op_type"] for row in found["op_types"]] == ["MatMul", "Gather"]
    assert found["gops"] == pytest.approx(2 * 4 * WIDTH * 8 / 1e9)
    # It ran once, on four rows of the table: the rest was never touched.
    assert {"name": "compare-outputs", "fired": 1, "refused": 0} in found["passes"]
    assert (found["after"] - found["before"]) * MEGABYTE < TABLE_BYTES / 10


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder that does not stay: what is compiled into it has no holes any more."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.slow
def test_it_is_compiled_and_runs(large: Path, workplace: Path) -> None:
    done = child("-m", "vermilion", "compile", large, "--dim", "n=4", "--json", cwd=workplace)
    assert done.returncode == 0, done.stderr
    compiled = json.loads(done.stdout)
    assert compiled["verification"]["outputs"][0]["max_abs_error"] == 0.0
    # Once, although the whole model and its part both have it.
    assert (Path(compiled["artifact"]) / "weights.bin").stat().st_size == TABLE_BYTES
    ran = child("-m", "vermilion", "run", compiled["artifact"], "--json", cwd=workplace)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["outputs"][0]["shape"] == [4, 8]
