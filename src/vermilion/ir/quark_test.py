from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from vermilion.errors import UnsupportedError
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.load import load_model
from vermilion.ir.quark import DOMAIN, FUNCTIONS, OPERATOR

WRITTEN = {
    "bfp_method": "to_bfp", "bit_width": 16, "block_size": 8, "rounding_mode": 2,
    "sub_block_size": 2, "sub_block_shift_bits": 1, "convert_to_bfloat_before_bfp": 0,
}  # fmt: skip


def saved(folder: Path, shape: tuple[int, ...], opset: int, **attributes: object) -> Path:
    node = onnx.helper.make_node(OPERATOR, ["x"], ["y"], domain=DOMAIN, **(WRITTEN | attributes))
    infos = [onnx.helper.make_tensor_value_info(name, 1, shape) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", infos[:1], infos[1:])
    imports = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid(DOMAIN, 1)]
    path = folder / "quark.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


def blocks(row: np.ndarray) -> np.ndarray:
    """Round a row as the format is defined: by the exponent of the largest of eight."""
    result = np.zeros(len(row))
    for start in range(0, len(row), 8):
        block = row[start : start + 8].astype(np.float64)
        largest = np.abs(block).max()
        step = 2.0 ** (np.floor(np.log2(largest)) - 6) if largest else 1.0
        result[start : start + 8] = np.clip(np.round(block / step), -127, 127) * step
    return result


@pytest.mark.parametrize("opset", [12, 17, 18, 21])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((2, 19, 3, 5), 1), ((3, 7), 0), ((3, 16), -1), ((9,), 0), ((4, 2, 16), 2), ((4, 2, 16), 0)],
)
def test_a_call_gives_what_the_format_is(
    shape: tuple[int, ...], axis: int, opset: int, tmp_path: Path
) -> None:
    model = load_model(saved(tmp_path, shape, opset, axis=axis))
    random = np.random.default_rng(0)
    x = np.ldexp(random.standard_normal(shape), random.integers(-20, 20, shape)).astype(np.float32)
    x[0] = np.round(x[0])  # zeros, ties and powers of two among them
    found = run_session(open_session(model, quiet=True), {"x": x})["y"]
    assert np.array_equal(found, np.apply_along_axis(blocks, axis, x))


def test_equal_calls_share_a_function(tmp_path: Path) -> None:
    proto = onnx.load(saved(tmp_path, (3, 8), 17, axis=1))
    again = proto.graph.node.add()
    again.CopyFrom(proto.graph.node[0])
    proto.graph.node[0].output[0] = again.input[0] = "between"
    onnx.save(proto, tmp_path / "two.onnx")
    model = load_model(tmp_path / "two.onnx")
    assert [node.domain for node in model.graph] == [FUNCTIONS] * 2
    assert len(model.functions) == 1


@pytest.mark.parametrize(
    "other",
    [{"bit_width": 13}, {"block_size": 32}, {"rounding_mode": 0}, {"bfp_method": "to_bfp_prime"}],
    ids=str,
)
def test_another_format_is_refused_as_before(other: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"{DOMAIN}::{OPERATOR}"):
        load_model(saved(tmp_path, (3, 8), 17, axis=1, **other))


def test_an_attribute_of_another_type_is_no_crash(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="nobody here knows"):
        load_model(saved(tmp_path, (3, 8), 17, axis=[1, 2]))
