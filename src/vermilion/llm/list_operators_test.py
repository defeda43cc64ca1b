from __future__ import annotations

from pathlib import Path

import pytest

import llm_folders
from vermilion.errors import ModelError, OptionError
from vermilion.llm.architecture import Quantization
from vermilion.llm.list_operators import Wanted, list_operators


def keys(path: Path) -> set[tuple[object, ...]]:
    kept = list_operators(path, Wanted(prompt=32)).rows
    return {(row.operator.key, row.operator.count) for row in kept if row.operator.weights}


def test_a_built_graph_needs_what_its_configuration_says(tmp_path: Path) -> None:
    folder = llm_folders.oga_folder(tmp_path / "oga")
    config = llm_folders.config_file(tmp_path, tie_word_embeddings=False)
    assert keys(folder) == keys(config)
    built = list_operators(folder, Wanted(prompt=32))
    stated = list_operators(tmp_path, Wanted(prompt=32))
    decode = [sum(row.decode.gops for row in found.rows) for found in (built, stated)]
    assert decode[0] == pytest.approx(decode[1])
    assert built.other_nodes == {"Identity": 1}
    assert (built.layers, built.context, built.read_from) == (2, 128, "model.onnx")


def test_a_gguf_header_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(llm_folders.gguf_bytes())
    found = list_operators(path, Wanted(prompt=32, quantization=Quantization(8, 64)))
    weights = {row.operator.weights for row in found.rows if row.operator.op_type == "MatMulNBits"}
    assert weights == {Quantization(8, 64)}
    assert found.read_from == "GGUF header"


def test_a_model_that_is_quantized_says_how(tmp_path: Path) -> None:
    stated = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    path = llm_folders.config_file(tmp_path, quantization_config=stated)
    found = list_operators(path, Wanted(prompt=8))
    assert Quantization(4, 128, False) in {row.operator.weights for row in found.rows}


def test_prompts_over_the_context_and_other_folders(tmp_path: Path) -> None:
    path = llm_folders.config_file(tmp_path)
    with pytest.raises(OptionError, match="over the model's context of 128"):
        list_operators(path, Wanted(prompt=129))
    with pytest.raises(OptionError, match="no such file"):
        list_operators(tmp_path / "none", Wanted())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="holds no language model"):
        list_operators(tmp_path / "empty", Wanted())
    (tmp_path / "x.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(ModelError, match="no language model"):
        list_operators(tmp_path / "x.bin", Wanted())


def test_a_graph_that_is_no_decoder(tmp_path: Path) -> None:
    import onnx

    folder = llm_folders.oga_folder(tmp_path / "oga")
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Abs(x) }'
    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    with pytest.raises(ModelError, match="no GroupQueryAttention"):
        list_operators(folder, Wanted(prompt=8))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("block_size", 48, "blocks of 48"),
        ("bits", 5, "5 bits"),
        ("K", -1, "`K`"),
        ("N", None, "`N`"),
    ],
)
def test_products_that_cannot_be(tmp_path: Path, name: str, value: int | None, said: str) -> None:
    import onnx

    folder = llm_folders.oga_folder(tmp_path / "oga")
    model = onnx.load(folder / "model.onnx")
    node = next(node for node in model.graph.node if node.op_type == "MatMulNBits")
    kept = [one for one in node.attribute if one.name != name]
    kept += [onnx.helper.make_attribute(name, value)] if value is not None else []
    del node.attribute[:]
    node.attribute.extend(kept)
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(ModelError, match=said):
        list_operators(folder, Wanted(prompt=8))
