from __future__ import annotations

import json
from pathlib import Path

import pytest

from vermilion.errors import OptionError
from vermilion.hardware.options.gpu import AMDGPU, MIGRAPHX, ROCM
from vermilion.hardware.options.option import Setting
from vermilion.hardware.options.read import read_options
from vermilion.hardware.options.vitisai import PROVIDER

PYTHON = """
import os
import onnxruntime as ort

os.environ["XLNX_ENABLE_CACHE"] = "0"
install = os.environ["RYZEN_AI_INSTALLATION_PATH"]
cache = "cache"
options = {"cacheDir": cache, "cacheKey": f"{name}_x", "opt_level": 3}
options["target"] = "X2"
EPS = ["VitisAIExecutionProvider"]
session = ort.InferenceSession("m.onnx", providers=EPS, provider_options=[options])
"""


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_python_is_followed_to_the_dictionary(tmp_path: Path) -> None:
    (found,), setting = read_options(write(tmp_path, "app.py", PYTHON))
    assert found.provider == PROVIDER
    assert found.options == {
        "cacheDir": "cache",
        "cacheKey": "‹f'{name}_x'›",
        "opt_level": "3",
        "target": "X2",
    }
    assert found.not_text == {"opt_level": "int"}
    assert found.environment == {"XLNX_ENABLE_CACHE": "0"}
    assert found.providers == (PROVIDER,)
    assert found.where.endswith("app.py:11")
    assert setting == Setting()


def test_python_pairs_and_index_assignments(tmp_path: Path) -> None:
    text = """
import onnxruntime as ort
opts = [{}, {}]
opts[0]["device_id"] = "1"
a = ort.InferenceSession("m", providers=[("ROCMExecutionProvider", {"gpu_mem_limit": 1 << 30}),
                                         "CPUExecutionProvider"])
b = ort.InferenceSession("m", providers=["MIGraphXExecutionProvider"], provider_options=opts)
so = ort.SessionOptions()
so.add_provider("MIGraphXExecutionProvider", dict_made_elsewhere)
"""
    found, _ = read_options(write(tmp_path, "x.py", text))
    by_line = {options.where.rpartition(":")[2]: options for options in found}
    assert by_line["5"].provider == ROCM
    assert by_line["5"].options == {"gpu_mem_limit": "‹1 << 30›"}
    assert by_line["7"].options == {"device_id": "1"}
    assert by_line["9"].provider == MIGRAPHX
    assert by_line["9"].options == {}


def test_cpp(tmp_path: Path) -> None:
    text = r"""
    options["cache_dir"] = "C:\\temp";
    options["target"] = "X1";
    session_options.AppendExecutionProvider_VitisAI(options);
    std::unordered_map<std::string, std::string> gpu{{"device_id", "0"}, {"fp16_enable", "1"}};
    session_options.AppendExecutionProvider("MIGraphX", gpu);
    """
    first, second = read_options(write(tmp_path, "app.cpp", text))[0]
    assert (first.provider, first.options) == (PROVIDER, {"cache_dir": r"C:\temp", "target": "X1"})
    assert second.provider == MIGRAPHX
    assert second.options == {"device_id": "0", "fp16_enable": "1"}


JSON_FORMS = {
    "one object": ({"provider": "VitisAI", "options": {"target": "X1"}}, PROVIDER),
    "bare": ({"target": "X1"}, PROVIDER),
    "by name": ({"VitisAIExecutionProvider": {"target": "X1"}}, PROVIDER),
    "pairs": ([["VitisAIExecutionProvider", {"target": "X1"}]], PROVIDER),
    "name and options": ([{"name": "VitisAI", "options": {"target": "X1"}}], PROVIDER),
    "genai_config": (
        {
            "model": {
                "decoder": {"session_options": {"provider_options": [{"AMDGPU": {"target": "X1"}}]}}
            }
        },
        AMDGPU,
    ),
}


@pytest.mark.parametrize("form", JSON_FORMS)
def test_every_form_of_json(tmp_path: Path, form: str) -> None:
    data, provider = JSON_FORMS[form]
    (found,), _ = read_options(write(tmp_path, "o.json", json.dumps(data)))
    assert (found.provider, found.options) == (provider, {"target": "X1"})


def test_json_may_say_what_it_is_for_and_the_file_it_names_is_read(tmp_path: Path) -> None:
    config = {"passes": [{"name": "vaiml_partition", "vaiml_config": {}}]}
    write(tmp_path, "v.json", json.dumps(config))
    data = {
        "provider": "VitisAI",
        "release": "1.6",
        "device": "strix",
        "options": {"config_file": "v.json"},
    }
    (found,), setting = read_options(write(tmp_path, "o.json", json.dumps(data)))
    assert setting == Setting("1.6", "strix")
    assert found.config == config
    (alone,), _ = read_options(tmp_path / "v.json")
    assert alone.config == config


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("o.json", "{", "no JSON"),
        ("o.json", "[" * 100_000, "no JSON"),
        ("o.py", "def (", "no Python"),
        ("o.py", "x = 1\0", "no Python"),
        ("o.py", "x = 1", "no options"),
        ("o.json", '{"CPUExecutionProvider": {}}', "no options"),
        ("o.cpp", "int main() {}", "no options"),
    ],
)
def test_what_is_no_options_file(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        read_options(write(tmp_path, name, text))


@pytest.mark.parametrize(
    "text",
    [
        "a = {**a}\nx.InferenceSession('m', providers=[('VitisAIExecutionProvider', a)])",
        "b = str(b)\nx.InferenceSession('m', providers=[(b, {})])",
        f"x.InferenceSession('m', providers=[('ROCMExecutionProvider', {{'k': {'-' * 3000}1}})])",
    ],
)
def test_what_never_ends_is_a_clear_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(OptionError):
        read_options(write(tmp_path, "o.py", text))
