from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from models import small_cnn
from vermilion import quantization
from vermilion.errors import ModelError, OptionError
from vermilion.ir.load import load_model
from vermilion.ir.numbers import number_format
from vermilion.quantization import quantize_file, save_model


def feeds(count: int) -> Iterator[dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    for _ in range(count):
        yield {"input": random.standard_normal((1, 3, 16, 16), dtype=np.float32)}


def test_from_a_file_and_a_folder_of_samples_to_a_file(tmp_path: Path) -> None:
    ir.save(small_cnn(bn=True, batch="n"), tmp_path / "m.onnx")
    (tmp_path / "samples").mkdir()
    for at, feed in enumerate(feeds(3)):
        np.save(tmp_path / "samples" / f"{at}.npy", feed["input"])
    found = quantize_file(
        tmp_path / "m.onnx",
        tmp_path / "made" / "q.onnx",
        calib=tmp_path / "samples",
        dims={"n": 1},
    )
    assert found.output == tmp_path / "made" / "q.onnx"
    model = load_model(found.output)
    assert number_format(model) == "xint8"
    assert model.graph.inputs[0].shape == ir.Shape([1, 3, 16, 16])
    data = found.as_json()
    assert (data["scheme"], data["samples"]) == ("xint8", 3)
    assert found.seconds > 0
    assert found.peak_rss_mb > 20
    outputs, layers = data["outputs"], data["layers"]
    assert isinstance(outputs, list)
    assert isinstance(layers, list)
    assert outputs[0]["name"] == "output"
    assert outputs[0]["sqnr_db"] > 15
    assert {"name", "op_type", "sqnr_db"} == set(layers[0])
    assert sorted(entry.name for entry in found.output.parent.iterdir()) == ["q.onnx"]


def test_an_iterable_gives_samples_and_no_more_are_taken_than_asked_for(tmp_path: Path) -> None:
    source = feeds(5)
    found = quantize_file(small_cnn(), tmp_path / "q.onnx", calib=source, samples=2)
    assert found.quantized.samples == 2
    assert len(list(source)) == 3


def test_excluded_nodes_stay_in_float(tmp_path: Path) -> None:
    whole = quantize_file(small_cnn(), tmp_path / "q.onnx", calib=feeds(1))
    part = quantize_file(
        small_cnn(), tmp_path / "p.onnx", calib=feeds(1), exclude=["conv1*", "fc*"]
    )
    count = [
        sum(node.op_type == "QuantizeLinear" for node in load_model(file.output).graph)
        for file in (whole, part)
    ]
    assert count[1] < count[0]


def test_the_name_must_end_in_onnx(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"does not end in \.onnx"):
        quantize_file(small_cnn(), tmp_path / "q.bin", calib=feeds(1))


def test_the_float_model_is_not_replaced(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    ir.save(small_cnn(), model)
    before = model.read_bytes()
    with pytest.raises(OptionError, match="would replace the model"):
        quantize_file(model, tmp_path / "." / "m.onnx", calib="random")
    assert model.read_bytes() == before


@pytest.mark.parametrize("calib", ["none", "empty"])
def test_samples_that_are_not_there(calib: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError):
        quantize_file(small_cnn(), tmp_path / "q.onnx", calib=tmp_path / calib)
    assert not (tmp_path / "q.onnx").exists()


def test_a_model_that_does_not_read_back_replaces_nothing(tmp_path: Path) -> None:
    place = tmp_path / "m.onnx"
    save_model(small_cnn(), place)
    before = place.read_bytes()
    broken = small_cnn()
    broken.graph[1].name = broken.graph[0].name
    broken.graph[2].replace_input_with(0, ir.Value(name="nowhere"))
    with pytest.raises(ModelError):
        save_model(broken, place)
    assert place.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.onnx"]


def stored(folder: Path) -> tuple[str, np.ndarray]:
    """Return the name of the file of weights, and the first of them as it is read."""
    (data,) = folder.glob("m.onnx.*.data")
    proto = onnx.load(folder / "m.onnx", load_external_data=False)
    entries = [entry for tensor in proto.graph.initializer for entry in tensor.external_data]
    assert {entry.value for entry in entries if entry.key == "location"} == {data.name}
    tensor = load_model(folder / "m.onnx").graph.initializers["conv1.weight"].const_value
    assert tensor is not None
    return data.name, np.array(tensor.numpy())


def negated() -> ir.Model:
    model = small_cnn()
    value = model.graph.initializers["conv1.weight"]
    assert value.const_value is not None
    value.const_value = ir.Tensor(-value.const_value.numpy(), name=value.name)
    return model


def test_weights_beyond_one_file_go_beside_it_and_are_replaced_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantization, "_LARGEST_INLINE_BYTES", 1000)
    place = tmp_path / "m.onnx"
    save_model(small_cnn(), place)
    name, weight = stored(tmp_path)
    expected = small_cnn().graph.initializers["conv1.weight"].const_value
    assert expected is not None
    np.testing.assert_array_equal(weight, expected.numpy())

    broken = negated()
    broken.graph[2].replace_input_with(0, ir.Value(name="nowhere"))
    with pytest.raises(ModelError):
        save_model(broken, place)
    kept_name, kept = stored(tmp_path)
    assert kept_name == name
    np.testing.assert_array_equal(kept, weight)

    save_model(negated(), place)
    new_name, changed = stored(tmp_path)
    assert new_name != name
    np.testing.assert_array_equal(changed, -weight)
    assert len(list(tmp_path.iterdir())) == 2
