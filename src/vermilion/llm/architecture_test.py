from __future__ import annotations

from pathlib import Path

import pytest

import llm_folders
from vermilion.errors import ModelError, UnsupportedError, VermilionError
from vermilion.llm.architecture import Quantization, architecture_of_config, architecture_of_gguf
from vermilion.llm.gguf import read_gguf


def test_a_configuration_and_a_gguf_of_one_model_agree(tmp_path: Path) -> None:
    from_json, stated = architecture_of_config(llm_folders.config_file(tmp_path))
    file = tmp_path / "model.gguf"
    file.write_bytes(llm_folders.gguf_bytes())
    assert architecture_of_gguf(read_gguf(file)) == from_json
    assert stated is None
    assert from_json.head_size == 16


def test_an_own_head_makes_a_gguf_untied(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    tensors = (("token_embd.weight", (64, 320)), ("output.weight", (64, 320)))
    file.write_bytes(llm_folders.gguf_bytes(tensors=tensors))
    assert not architecture_of_gguf(read_gguf(file)).has_tied_embeddings


def test_parameters_of_smollm2(tmp_path: Path) -> None:
    path = llm_folders.config_file(tmp_path, **llm_folders.SMOLLM2)
    # As huggingface.co/HuggingFaceTB/SmolLM2-135M counts its safetensors.
    assert architecture_of_config(path)[0].parameters == 134_515_008


@pytest.mark.parametrize(
    "missing", ["hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size"]
)
def test_a_missing_key_is_named(tmp_path: Path, missing: str) -> None:
    path = llm_folders.config_file(tmp_path, **{missing: None})
    with pytest.raises(ModelError, match=f"`{missing}` is missing"):
        architecture_of_config(path)


@pytest.mark.parametrize("value", [0, -1, 1 << 40, "64", 2.5, True])
def test_a_measure_that_is_none(tmp_path: Path, value: object) -> None:
    path = llm_folders.config_file(tmp_path, hidden_size=value)
    with pytest.raises(ModelError, match="not a whole number above zero"):
        architecture_of_config(path)


def test_what_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="`gpt2`"):
        architecture_of_config(llm_folders.config_file(tmp_path, model_type="gpt2"))
    with pytest.raises(UnsupportedError, match="experts"):
        architecture_of_config(llm_folders.config_file(tmp_path, num_local_experts=8))
    with pytest.raises(ModelError, match="cannot share"):
        architecture_of_config(llm_folders.config_file(tmp_path, num_key_value_heads=3))
    with pytest.raises(ModelError, match="no `model_type`"):
        architecture_of_config(llm_folders.config_file(tmp_path, model_type=None))


STATED = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, False),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, True),
    "quark": (
        {
            "quant_method": "quark",
            "global_quant_config": {
                "weight": {"dtype": "uint4", "group_size": 128, "symmetric": False}
            },
        },
        False,
    ),
}


@pytest.mark.parametrize("method", STATED)
def test_weights_that_are_quantized_already(tmp_path: Path, method: str) -> None:
    config, symmetric = STATED[method]
    path = llm_folders.config_file(tmp_path, quantization_config=config)
    assert architecture_of_config(path)[1] == Quantization(4, 128, symmetric)


def test_the_text_part_of_a_model_of_many_kinds(tmp_path: Path) -> None:
    text = {**llm_folders.TINY, "model_type": "gemma3_text", "head_dim": 32}
    path = llm_folders.config_file(tmp_path, model_type="gemma3", text_config=text)
    found, _ = architecture_of_config(path)
    assert (found.family, found.head_size) == ("gemma3_text", 32)


def test_a_strange_value_anywhere_is_one_clear_error(tmp_path: Path) -> None:
    keys = (*llm_folders.TINY, "head_dim", "text_config", "quantization_config", "num_experts")
    refused = 0
    for key in keys:
        for strange in (True, -1, 0, 1 << 70, 2.5, "x", [], [1, 2], [[]], {}, {"bits": []}):
            path = llm_folders.config_file(tmp_path, **{key: strange})
            try:
                architecture_of_config(path)
            except VermilionError:
                refused += 1
    assert refused > 60
