from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from vermilion.errors import OptionError
from vermilion.hardware.options.gpu import AMDGPU, MIGRAPHX, ROCM
from vermilion.hardware.options.lint import corrected_text, lint_all
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
    reading = read_options(write(tmp_path, "app.py", PYTHON))
    (found,) = reading.option_sets
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
    assert reading.setting == Setting()
    assert not reading.unread


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
    reading = read_options(write(tmp_path, "x.py", text))
    found = reading.option_sets
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
    first, second = read_options(write(tmp_path, "app.cpp", text)).option_sets
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
    (found,) = read_options(write(tmp_path, "o.json", json.dumps(data))).option_sets
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
    reading = read_options(write(tmp_path, "o.json", json.dumps(data)))
    (found,) = reading.option_sets
    assert reading.setting == Setting("1.6", "strix")
    assert found.config == config
    (alone,) = read_options(tmp_path / "v.json").option_sets
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
        "b = str(b)\nx.InferenceSession('m', providers=[(b, {})])",
        f"x.InferenceSession('m', providers=[('ROCMExecutionProvider', {{'k': {'-' * 3000}1}})])",
    ],
)
def test_what_never_ends_is_a_clear_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(OptionError):
        read_options(write(tmp_path, "o.py", text))


BAD = '"migraphx_save_compiled_model": "1"'
EP = '"MIGraphXExecutionProvider"'
SESSION = "s = ort.InferenceSession('m', "
FORMS = {
    "dict(...)": f"{SESSION}providers=[({EP}, dict(migraphx_save_compiled_model='1'))])",
    "dict of pairs": f"{SESSION}providers=[({EP}, dict([('migraphx_save_compiled_model', '1')]))])",
    "a function": f"def options(): return {{{BAD}}}\n{SESSION}providers=[({EP}, options())])",
    "a function's argument": f"def f(o):\n    {SESSION}providers=[({EP}, o)])\nf({{{BAD}}})",
    "a lambda": f"o = lambda: {{{BAD}}}\n{SESSION}providers=[({EP}, o())])",
    "a | b": f"a = {{}}\n{SESSION}providers=[({EP}, a | {{{BAD}}})])",
    "|=": f"a = {{}}\na |= {{{BAD}}}\n{SESSION}providers=[({EP}, a)])",
    "{**a}": f"a = {{{BAD}}}\n{SESSION}providers=[({EP}, {{**a}})])",
    "update": "o = {}\no.update(migraphx_save_compiled_model='1')\n"
    f"{SESSION}providers=[({EP}, o)])",
    "setdefault": f"o = {{}}\no.setdefault({BAD.replace(':', ',')})\n"
    f"{SESSION}providers=[({EP}, o)])",
    "a nested item": f"c = {{'o': {{{BAD}}}}}\n{SESSION}providers=[({EP}, c['o'])])",
    "a comprehension": "k = ['migraphx_save_compiled_model']\n"
    f"{SESSION}providers=[({EP}, {{x: '1' for x in k}})])",
    "an f-string": "n = 'save_compiled_model'\n"
    f"{SESSION}providers=[({EP}, {{f'migraphx_{{n}}': '1'}})])",
    "set_providers": f"s = ort.InferenceSession('m')\ns.set_providers([{EP}], [{{{BAD}}}])",
    "by position": f"s = ort.InferenceSession('m', None, [{EP}], [{{{BAD}}}])",
    "append": f"e = []\ne.append(({EP}, {{{BAD}}}))\n{SESSION}providers=e)",
    "+=": f"e = []\ne += [({EP}, {{{BAD}}})]\n{SESSION}providers=e)",
    "a starred list": f"e = [({EP}, {{{BAD}}})]\n{SESSION}providers=[*e, 'CPUExecutionProvider'])",
    "devices": "so = ort.SessionOptions()\n"
    f"d = [d for d in ort.get_ep_devices() if d.ep_name == {EP}]\n"
    f"so.add_provider_for_devices(d, {{{BAD}}})",
    "devices written out": f"so.add_provider_for_devices([d for d in x if d.ep_name == {EP}], "
    f"{{{BAD}}})",
    "devices in a loop": "for d in ort.get_ep_devices():\n"
    f"    if d.ep_name == {EP}:\n        so.add_provider_for_devices([d], {{{BAD}}})",
    "**keywords": f"k = dict(providers=[({EP}, {{{BAD}}})])\ns = ort.InferenceSession('m', **k)",
    "an attribute": "class Net:\n    def __init__(self):\n"
    f"        self.e = [({EP}, {{{BAD}}})]\n    def go(self):\n        {SESSION}providers=self.e)",
    "a class's constant": f"class C:\n    E = [({EP}, {{{BAD}}})]\n{SESSION}providers=C.E)",
    "either ... or": f"o = {{{BAD}}} if x else {{}}\n{SESSION}providers=[({EP}, o)])",
    "one branch": f"o = {{}}\nif x:\n    o = {{{BAD}}}\n{SESSION}providers=[({EP}, o)])",
    "a case": f"match x:\n    case 1:\n        o = {{{BAD}}}\n    case _:\n        o = {{}}\n"
    f"{SESSION}providers=[({EP}, o)])",
    "a loop": f"for e in [({EP}, {{{BAD}}}), 'CPUExecutionProvider']:\n    {SESSION}providers=[e])",
    "another name": "from onnxruntime import InferenceSession as S\n"
    f"S('m', providers=[({EP}, {{{BAD}}})])",
    "partial": f"S = partial(ort.InferenceSession, providers=[({EP}, {{{BAD}}})])\nS('m')",
    "Optimum": f"ORTModelForX.from_pretrained('m', provider={EP}, provider_options={{{BAD}}})",
    "a JSON file": f"import json\n{SESSION}providers=[({EP}, json.load(open('o.json')))])",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_python(tmp_path: Path, form: str) -> None:
    write(tmp_path, "o.json", f"{{{BAD}}}")
    reading = read_options(write(tmp_path, "x.py", FORMS[form] + "\n"))
    options = [one.options for one in reading.option_sets if one.provider == MIGRAPHX]
    assert {"migraphx_save_compiled_model": "1"} in options
    assert not reading.unread


@pytest.mark.parametrize(
    "text",
    [
        f"{SESSION}providers=[({EP}, load_options())])",
        f"{SESSION}providers=providers_of(args))",
        f"{SESSION}providers=[({EP}, {{**defaults}})])",
        "s = ort.InferenceSession('m', **settings)",
        "a = {**a}\nx.InferenceSession('m', providers=[('VitisAIExecutionProvider', a)])",
        f"o = {{}}\no.update(extra)\n{SESSION}providers=[({EP}, o)])",
        "so.add_provider_for_devices(chosen, options)",
        f"{SESSION}providers=[os.environ['EP']])",
    ],
)
def test_what_only_a_run_would_tell_is_said(tmp_path: Path, text: str) -> None:
    assert read_options(write(tmp_path, "x.py", text)).unread


def test_structures_and_parallel_arrays_of_cpp(tmp_path: Path) -> None:
    text = r"""
    OrtMIGraphXProviderOptions m{};  // options["ignored"] = "1";
    m.device_id = 1; m.migraphx_fp16_enable = true; m.migraphx_model_cache_dir = path;
    so.AppendExecutionProvider_MIGraphX(m);
    const char* keys[] = {"device_id", "cache_dir"}; const char* values[] = {"0", "c"};
    so.AppendExecutionProvider("VitisAI", keys, values, 2);
    so.AppendExecutionProvider("MIGraphX", made_elsewhere);
    """
    reading = read_options(write(tmp_path, "app.cpp", text))
    first, second, _ = reading.option_sets
    assert first.options == {
        "device_id": "1", "migraphx_fp16_enable": "1", "migraphx_model_cache_dir": "‹path›",
    }  # fmt: skip
    assert second.options == {"device_id": "0", "cache_dir": "c"}
    assert [one.where.rpartition(":")[2] for one in reading.unread] == ["7"]


def test_a_configuration_of_olive(tmp_path: Path) -> None:
    config = {
        "systems": {"here": {"type": "LocalSystem", "accelerators": [
            {"device": "gpu", "execution_providers": ["ROCMExecutionProvider"]}]}},
        "passes": {"q": {"type": "OnnxQuantization", "data": "x"}},
    }  # fmt: skip
    (found,) = read_options(write(tmp_path, "o.json", json.dumps(config))).option_sets
    assert found.provider == ROCM


BY_NPU = """
import os
import onnxruntime as ort

folder = os.environ["RYZEN_AI_INSTALLATION_PATH"]
match npu():
    case "PHX/HPT":
        binary = os.path.join(folder, "voe-4.0-win_amd64", "xclbins", "phoenix", "4x4.xclbin")
        options = [{"target": "X1", "xlnx_enable_py3_round": "0", "xclbin": binary}]
    case "STX" | "KRK":
        options = [{OTHER}]
names = ["VitisAIExecutionProvider", "CPUExecutionProvider"]
session = ort.InferenceSession("m", providers=names, provider_options=options)
"""


@pytest.mark.parametrize("device", ["phoenix", "strix", "krackan"])
def test_each_branch_is_judged_for_the_npu_that_it_fits(device: str, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(BY_NPU.replace("OTHER", ""))
    sets = read_options(file).option_sets
    assert len(sets) == 2
    linted = lint_all(sets, Setting("1.7", device))
    assert [one.errors for one in linted] == [0, 0]
    assert device in {one.setting.device for one in linted}
    file.write_text(BY_NPU.replace("OTHER", '"target": "X9"'))
    sets = read_options(file).option_sets
    assert any(one.errors for one in lint_all(sets, Setting("1.7", device)))


def test_corrected_python_puts_the_folder_in(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(
        "import onnxruntime as ort\n"
        'ort.InferenceSession("m", providers=[("VitisAIExecutionProvider", {"target": "X1"})])\n'
    )
    (one,) = lint_all(read_options(file).option_sets, Setting("1.7", "phoenix"))
    text = corrected_text(one, as_json=False)
    scope: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patch:
        folder = "%RYZEN_AI_INSTALLATION_PATH%"
        patch.setattr(os.path, "expandvars", lambda words: words.replace(folder, "D:"))
        exec(text, scope)  # it is whole: nothing is to be added to it
    (options, _) = scope["provider_options"]  # type: ignore[misc]
    assert options["xclbin"] == r"D:\voe-4.0-win_amd64\xclbins\phoenix\4x4.xclbin"
