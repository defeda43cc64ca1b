"""What the door lets in. What it keeps out is in `tests/hostile_*.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import hostile
import models
from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.ir.load import load_model

# Operators that ONNX itself calls previews; no runtime has them.
PREVIEWS = "ai.onnx.preview"


def written(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_a_sound_model_is_let_in(tmp_path: Path) -> None:
    model = load_model(written(hostile.sound_model(), tmp_path))
    assert [node.op_type for node in model.graph] == ["Conv", "Relu"]


@pytest.mark.parametrize("name", sorted(models.PACKAGE_MODELS))
def test_real_models_are_let_in(name: str) -> None:
    path = models.package_model_path(name)
    assert len(load_model(path).graph) == len(onnx.load(path).graph.node)


def test_every_model_that_onnx_ships_is_let_in() -> None:
    root = Path(onnx.__file__).parent / "backend" / "test" / "data"
    paths = sorted(root.rglob("*.onnx"))
    assert len(paths) > 100
    refused = {path: reason for path in paths if (reason := why_refused(path))}
    assert all(PREVIEWS in reason for reason in refused.values()), refused


def why_refused(path: Path) -> str:
    try:
        load_model(path)
    except UnsupportedError as error:
        return error.message
    return ""


def test_weights_beside_the_model_are_mapped(tmp_path: Path) -> None:
    model = hostile.sound_model()
    (tmp_path / "data").mkdir()
    onnx.save(
        model,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="data/w.bin",
        size_threshold=0,
    )
    tensor = load_model(tmp_path / "m.onnx").graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    np.testing.assert_array_equal(tensor.numpy(), np.ones((4, 3, 3, 3), np.float32))


def test_bytes_and_what_onnx_made_of_them_are_the_same_model_and_stay_as_they_are() -> None:
    proto = hostile.sound_model()
    data = proto.SerializeToString()
    for source in (proto, data):
        model = load_model(source)
        assert [node.op_type for node in model.graph] == ["Conv", "Relu"]
        model.graph.initializers["w"].const_value = None
    assert proto.SerializeToString() == data


def test_bytes_are_checked_as_a_file_is(tmp_path: Path) -> None:
    whole = hostile.sound_model().SerializeToString()
    for data, words in {
        b"": "no bytes",
        b"GGUF and more": "a GGUF language model",
        whole[:-20]: "not an ONNX model, or it is cut short",
    }.items():
        with pytest.raises(ModelError, match=words) as caught:
            load_model(data)
        assert caught.value.where == "(in memory)"
    untyped = hostile.sound_model()
    untyped.graph.input[0].type.tensor_type.elem_type = 99
    with pytest.raises(ModelError, match="unknown data type number 99"):
        load_model(untyped)


def test_what_is_in_memory_has_its_weights_there(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    onnx.save(hostile.sound_model(), file, save_as_external_data=True, size_threshold=0)
    with pytest.raises(OptionError, match="weight `w` is in a file of its own") as caught:
        load_model(file.read_bytes())
    assert "give the path" in caught.value.hint
    assert load_model(onnx.load(file)).graph.initializers["w"].const_value is not None


def test_a_path_may_lead_through_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    written(hostile.sound_model(), real)
    try:
        (tmp_path / "link").symlink_to(real, target_is_directory=True)
    except OSError:
        pytest.skip("this system lets nobody make links")
    assert load_model(tmp_path / "link" / "m.onnx").graph


def test_nodes_need_not_be_sorted(tmp_path: Path) -> None:
    model = hostile.sound_model()
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    assert len(load_model(written(model, tmp_path)).graph) == 2


def test_an_input_may_have_a_default_of_its_name(tmp_path: Path) -> None:
    model = hostile.sound_model()
    info = helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [4, 3, 3, 3])
    model.graph.input.append(info)
    loaded = load_model(written(model, tmp_path))
    assert [value.name for value in loaded.graph.inputs] == ["x", "w"]


def test_the_same_opset_under_both_its_names_is_one(tmp_path: Path) -> None:
    model = hostile.sound_model()
    model.opset_import.append(helper.make_opsetid("ai.onnx", 17))
    assert load_model(written(model, tmp_path)).graph


def test_operators_older_than_onnx_are_left_to_the_runtime(tmp_path: Path) -> None:
    model = hostile.text_model(
        "net (float[1, 3, 4, 4] x) => (float[1, 3, 4, 4] y) { y = Relu (x) }"
    )
    model.graph.node[0].op_type = "ImageScaler"
    assert load_model(written(model, tmp_path)).graph


def test_errors_name_file_node_and_way_out(tmp_path: Path) -> None:
    model = hostile.sound_model()
    model.graph.node[0].attribute.append(helper.make_attribute("strides", "two"))
    path = written(model, tmp_path)
    with pytest.raises(ModelError, match="`strides` is STRING, and has to be INTS") as caught:
        load_model(path)
    assert caught.value.where == f"{path}, node `c`, Conv"
    assert caught.value.hint


def test_a_model_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    for path in (tmp_path / "none.onnx", tmp_path, tmp_path / "nul\0.onnx"):
        with pytest.raises(OptionError):
            load_model(path)
