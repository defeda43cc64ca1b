"""What is read apart is what the parser would have given, and what is odd is left to the parser."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import models
from vermilion.errors import ModelError
from vermilion.ir.external_weights import APART_BYTES, read_apart, write_model
from vermilion.ir.load import load_model

COUNT = APART_BYTES // 4


def model(*weights: TensorProto) -> onnx.ModelProto:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [COUNT])
    other = helper.make_tensor_value_info("y", TensorProto.FLOAT, [COUNT])
    node = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [value], [other], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weight(name: str = "w", seed: int = 0, count: int = COUNT) -> TensorProto:
    array = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    return numpy_helper.from_array(array, name)


def apart(data: bytes) -> tuple[bytes, dict[int, bytes]] | None:
    return read_apart(io.BytesIO(data), len(data))


def test_large_weights_leave_the_message_and_nothing_else_does() -> None:
    whole = model(weight("small", count=10), weight(), weight("other", seed=1))
    found = apart(whole.SerializeToString())
    assert found is not None
    message, weights = found
    assert set(weights) == {1, 2}
    assert len(message) < 2000
    parsed = onnx.load_from_string(message)
    for number, data in weights.items():
        assert parsed.graph.initializer[number].raw_data == b""
        parsed.graph.initializer[number].raw_data = data
    assert parsed == whole


@pytest.mark.parametrize("name", sorted(models.PACKAGE_MODELS))
def test_weights_of_real_models(name: str) -> None:
    path = models.package_model_path(name)
    loaded = load_model(path)
    for tensor in onnx.load(path).graph.initializer:
        value = loaded.graph.initializers[tensor.name]
        assert value.const_value is not None
        found = value.const_value.numpy()
        expected = numpy_helper.to_array(tensor)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", sorted(models.PACKAGE_MODELS))
@pytest.mark.parametrize("load", [load_model, ir.load])
def test_real_models_are_written_as_the_library_writes_them(
    load: Callable[[Path], ir.Model], name: str, tmp_path: Path
) -> None:
    loaded = load(models.package_model_path(name))
    ir.save(loaded, tmp_path / "theirs.onnx")
    write_model(loaded, tmp_path / "ours.onnx")
    assert (tmp_path / "ours.onnx").read_bytes() == (tmp_path / "theirs.onnx").read_bytes()


def test_a_weight_that_lies_across_memory_is_written_in_order(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model(weight()).SerializeToString())
    loaded = load_model(path)
    turned = np.arange(COUNT, dtype=np.float32).reshape(2, -1).T
    loaded.graph.initializers["w"].const_value = ir.Tensor(turned, name="w", doc_string="turned")
    loaded.graph.initializers["w"].shape = ir.Shape(turned.shape)
    write_model(loaded, path)
    (tensor,) = onnx.load(path).graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), turned)
    assert tensor.doc_string == "turned"


def field(number: int, content: bytes) -> bytes:
    """Return a field of bytes as it is written."""
    size, head = len(content), bytearray([number << 3 | 2])
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*head, size]) + content


def with_tensor(change: Callable[[bytes], bytes]) -> bytes:
    """Return a file whose one large weight was changed as it is written."""
    bare = model()
    bare.ClearField("graph")
    graph = model().graph.SerializeToString()
    tensor = change(weight().SerializeToString())
    return bare.SerializeToString() + field(7, graph + field(5, tensor))


ODD: dict[str, Callable[[bytes], bytes]] = {
    "numbers stored twice": lambda t: t + field(9, bytes(COUNT * 4)),
    "other numbers beside": lambda t: t + field(4, bytes(COUNT * 4)),
    "another type after the numbers": lambda t: t + bytes([2 << 3, TensorProto.STRING]),
    "a group": lambda t: t + bytes([1 << 3 | 3]),
    "longer than what is around it": lambda t: t + bytes([9 << 3 | 2, 0xFF, 0x7F]),
    "endless number": lambda t: t + bytes([1 << 3]) + b"\xff" * 12,
    "strings": lambda t: t.replace(bytes([2 << 3, 1]), bytes([2 << 3, 8]), 1),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_is_the_parsers(name: str) -> None:
    found = apart(with_tensor(ODD[name]))
    assert found is None or not found[1]


def test_an_ordinary_one_is_read_apart_and_a_cut_one_is_not() -> None:
    data = with_tensor(lambda t: t)
    found = apart(data)
    assert found is not None
    assert set(found[1]) == {0}
    assert all(apart(data[:end]) is None for end in (len(data) - 1, len(data) - 70_000))


def test_two_graphs_are_one_as_the_parser_sees_it() -> None:
    first, second = model(weight("v", seed=1)), model(weight())
    del second.graph.node[:], second.graph.input[:], second.graph.output[:]
    data = first.SerializeToString() + field(7, second.graph.SerializeToString())
    found = apart(data)
    assert found is not None
    parsed = onnx.load_from_string(data)
    for number, kept in found[1].items():
        assert parsed.graph.initializer[number].raw_data == kept
    assert set(found[1]) == {0, 1}


def test_a_file_of_nothing_but_fields_is_not_walked_to_its_end() -> None:
    assert apart(bytes([1 << 3, 0]) * (1 << 19)) is None


def test_a_wrong_size_is_told_as_before(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    wrong = weight()
    wrong.dims[0] = COUNT + 1
    path.write_bytes(model(wrong).SerializeToString())
    with pytest.raises(ModelError, match=f"needs {COUNT * 4 + 4:,} bytes and has {COUNT * 4:,}"):
        load_model(path)


def test_what_is_said_of_a_weight_stays_with_it(tmp_path: Path) -> None:
    told = weight()
    told.doc_string = "words"
    told.metadata_props.add(key="origin", value="layer 3")
    (tmp_path / "m.onnx").write_bytes(model(told).SerializeToString())
    found = load_model(tmp_path / "m.onnx").graph.initializers["w"].const_value
    assert found is not None
    assert found.doc_string == "words"
    assert dict(found.metadata_props) == {"origin": "layer 3"}
