"""What ONNX Runtime's own examples do with its example models, on its names and on ours.

They load and predict, make the usual mistakes, look at metadata, bind memory and profile
(onnxruntime.ai/docs/api/python, "Gallery of examples").
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import vermilion.ort

# Float32 functions of two libraries.
CLOSE = 1e-6
NAMES = ("sigmoid.onnx", "mul_1.onnx", "logreg_iris.onnx")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path / "cache"))


def opened(rt: Any, name: str, options: Any = None) -> Any:
    path = rt.datasets.get_example(name)
    more = {"compile": "now"} if rt is vermilion.ort else {}
    return rt.InferenceSession(path, options, providers=rt.get_available_providers(), **more)


def runs_of(rt: Any, session: Any, x: np.ndarray) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of runs that examples make, right and wrong ones."""
    name, output = session.get_inputs()[0].name, session.get_outputs()[0].name
    yield [output], {name: x}
    yield None, {name: x.tolist()}
    yield None, {name: x[::-1]}
    yield None, {name: rt.OrtValue.ortvalue_from_numpy(x)}
    yield None, {name: x}, rt.RunOptions()
    yield None, {name: x.astype(np.float64)}
    yield None, {name: x[None]}
    yield None, {name: x[:1]}
    yield None, {name: x.ravel()}
    yield None, {name: x[:0]}
    yield ["misspelled"], {name: x}
    yield None, {"misspelled": x}
    yield None, {}
    yield None, {name: x, "more": x}
    yield None, {name: "text"}


def answer(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:
        return error


def assert_alike(found: Any, expected: Any) -> None:
    if isinstance(expected, Exception):
        assert isinstance(found, type(expected)), (found, expected)
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, rtol=CLOSE)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    else:
        assert found == expected


@pytest.mark.parametrize("name", NAMES)
def test_an_example_gives_what_it_gives(name: str) -> None:
    mine, theirs = opened(vermilion.ort, name), opened(onnxruntime, name)
    assert mine.is_compiled
    for method in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        assert list(map(str, getattr(mine, method)())) == list(map(str, getattr(theirs, method)()))
    shape = theirs.get_inputs()[0].shape
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    pairs = zip(runs_of(vermilion.ort, mine, x), runs_of(onnxruntime, theirs, x), strict=True)
    for ours, own in pairs:
        assert_alike(answer(mine.run, *ours), answer(theirs.run, *own))
    feed = {theirs.get_inputs()[0].name: onnxruntime.OrtValue.ortvalue_from_numpy(x)}
    values = [one.run_with_ort_values(None, feed) for one in (mine, theirs)]
    assert [one.data_type() for one in values[0]] == [one.data_type() for one in values[1]]
    assert_alike(values[0][0].numpy(), values[1][0].numpy())


def test_an_example_is_profiled_and_bound(tmp_path: Path) -> None:
    times = []
    for rt in (vermilion.ort, onnxruntime):
        options = rt.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(tmp_path / rt.__name__)
        session = opened(rt, "mul_1.onnx", options)
        x, y = np.ones((3, 2), np.float32), np.zeros((3, 2), np.float32)
        binding = session.io_binding()
        binding.bind_cpu_input("X", x)
        binding.bind_output("Y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        session.run_with_iobinding(binding)
        assert y.tolist() == [[1, 2], [3, 4], [5, 6]]
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        (node,) = [one for one in events if one["name"].endswith("_kernel_time")]
        times.append((node["args"]["op_name"], node["args"]["output_type_shape"]))
        assert [one["name"] for one in events if one["name"] == "model_run"]
    assert times[0] == times[1] == ("Mul", [{"float": [3, 2]}])
