"""Hybrid folders: what they hold, that they compute what the model does, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_llama
from tiny_llama import Tiny
from vermilion.codegen.isa import isa_of
from vermilion.errors import ArtifactError, ModelError, OptionError, UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.llm.decoder import EngineOptions
from vermilion.llm.engine import open_native_decoder
from vermilion.llm.genai_config import read_genai_config
from vermilion.llm.hybrid import HybridRequest, generate_hybrid
from vermilion.llm.hybrid_config import REPORT, hybrid_place, is_hybrid
from vermilion.llm.open_ort_decoder import open_ort_decoder
from vermilion.llm.plugins.compile_plugin import compile_plugin
from vermilion.llm.plugins.wanted import OperatorRequest, needs_of

OPERATORS = OperatorRequest("bf16", context=128)
SMALL = Tiny(bits=4)
PROMPT = np.arange(5, 25, dtype=np.int64)[None]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DD_PLUGINS_ROOT", raising=False)
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module", params=[SMALL], ids=["small"])
def ready(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Write a model and compile its plugin, once for all tests."""
    base = tmp_path_factory.mktemp("ready")
    folder = tiny_llama.write_folder(base / "model", request.param)
    compile_plugin(needs_of(folder, OPERATORS), "p", base / "dd_plugins")
    return base


def made(ready: Path, tmp_path: Path, era: Any = "stock") -> Path:
    """Make the hybrid folder `out` of what is ready."""
    shutil.copytree(ready, tmp_path, dirs_exist_ok=True)
    request = HybridRequest(tmp_path / "model", tmp_path / "out", OPERATORS, era)
    return generate_hybrid(request, lambda _: None).folder


def made_with_programs(ready: Path, tmp_path: Path) -> Path:
    """Make the hybrid folder, with the engine's own programs, which not every CPU runs."""
    isa = isa_of(find_target("cpu"))
    if not (isa.has_vnni and isa.has_bf16):
        pytest.skip("this machine has no AVX-512 VNNI and BF16")
    return made(ready, tmp_path)


def logits(folder: Path) -> list[np.ndarray]:
    """Return the logits after a prompt and after one token, by ONNX Runtime."""
    decoder = open_ort_decoder(read_genai_config(folder), threads=1)
    state = decoder.start(1, 64)
    return [state.forward(PROMPT), state.forward(np.array([[7]], np.int64))]


@pytest.mark.parametrize(
    "ready",
    [
        SMALL,
        Tiny(bits=4, split_qkv=True),
        Tiny(bits=4, hidden=96, heads=3, kv_heads=1, head_size=32),
    ],
    indirect=True,
)
def test_both_stages_compute_what_the_model_does(ready: Path, tmp_path: Path) -> None:
    out = made(ready, tmp_path)
    wanted = logits(tmp_path / "model")
    for folder in (out, out / "decode"):
        for got, exact in zip(logits(folder), wanted, strict=True):
            assert np.abs(got - exact).max() <= 1e-5 * np.abs(exact).max()


def test_what_a_hybrid_folder_holds(ready: Path, tmp_path: Path) -> None:
    out = made(ready, tmp_path)
    config = read_genai_config(out)
    assert config.type == "decoder-pipeline"
    stages = dict(config.stages())
    assert stages["prefill"]["run_on_prompt"] is True
    assert stages["decode"]["run_on_prompt"] is False
    assert config.model_files() == ("prefill.onnx", "decode/model.onnx")
    report = json.loads((out / REPORT).read_text())
    assert (report["era"], report["number"]) == ("stock", "bf16")
    assert len([row for row in report["compiled"] if row["number"] == "bf16"]) == 4
    decoded = {row["decode"] for row in report["operators"] if row["op_type"] == "MatMulNBits"}
    assert decoded == {"int4"}
    assert (out / "dd_plugins" / "operators.zip").is_file()
    assert read_genai_config(out / "decode").type == "llama"
    assert (out / "decode" / "model.onnx.data").stat().st_nlink == 1


def test_the_engine_compiles_nothing_with_the_plugins_programs(ready: Path, tmp_path: Path) -> None:
    out = made_with_programs(ready, tmp_path)
    assert is_hybrid(out)
    brought = {path.name for path in (out / "operators" / "decoder").iterdir()}
    opened = hybrid_place(out)
    assert opened.reason == ""
    cache = opened.cache
    assert EngineOptions().of_hybrid(opened) == EngineOptions(prefill="bf16", cache=cache)
    assert EngineOptions(prefill="int8").of_hybrid(opened).prefill == "int8"
    decoder = open_native_decoder(opened.config.folder, threads=1, prefill="bf16", cache=cache)
    assert {path.name for path in (cache / "decoder").iterdir()} == brought
    got = decoder.start(1, 64).forward(PROMPT)
    wanted = logits(tmp_path / "model")[0]
    cosine = (got * wanted).sum() / np.linalg.norm(got) / np.linalg.norm(wanted)
    assert cosine > 0.999


def test_programs_from_elsewhere_are_left_out(ready: Path, tmp_path: Path) -> None:
    out = made_with_programs(ready, tmp_path)
    whole = json.loads((out / REPORT).read_text())

    def reason(**changes: object) -> str:
        (out / REPORT).write_text(json.dumps({**whole, **changes}))
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        return hybrid_place(out).reason

    assert "compiled elsewhere" in reason(seal="0" * 64)
    assert "compiled elsewhere" in reason(programs={"../../evil": "0" * 64})
    assert "no programs" in reason(programs={})
    assert "is damaged" in reason(programs={"x": 1})
    assert reason() == ""
    name = next(iter(whole["programs"]))
    (out / "operators" / name).write_bytes(b"other code")
    assert "is not what was written" in reason()
    (out / "operators" / name).unlink()
    assert "cannot be read" in reason()


def test_a_folder_of_another_version(ready: Path, tmp_path: Path) -> None:
    out = made(ready, tmp_path)
    report = json.loads((out / REPORT).read_text())
    (out / REPORT).write_text(json.dumps({**report, "format": 9}))
    with pytest.raises(ModelError, match="format 9, this version reads 1"):
        hybrid_place(out)
    (out / REPORT).write_text(json.dumps({**report, "number": "fp3"}))
    with pytest.raises(ModelError, match="prompts in 'fp3'"):
        hybrid_place(out)


@pytest.mark.needs("onnxruntime_genai")
@pytest.mark.parametrize("era", ["stock", "1.7"])
def test_the_stock_runtime_opens_it(era: str, ready: Path, tmp_path: Path) -> None:
    import onnxruntime_genai as genai

    genai.disable_telemetry_events()
    out = made(ready, tmp_path, era=era)
    texts = []
    for folder in (tmp_path / "model", out):
        config = genai.Config(str(folder))
        config.clear_providers()
        model = genai.Model(config)
        params = genai.GeneratorParams(model)
        params.set_search_options(max_length=40, do_sample=False)
        generator = genai.Generator(model, params)
        generator.append_tokens(PROMPT[0].astype(np.int32))
        while not generator.is_done():
            generator.generate_next_token()
        texts.append(generator.get_sequence(0).tolist())
    assert texts[0] == texts[1]


def test_operators_that_are_missing_are_listed_with_the_command(tmp_path: Path) -> None:
    folder = tiny_llama.write_folder(tmp_path / "model", Tiny(bits=4))
    request = HybridRequest(folder, tmp_path / "out", OPERATORS)
    with pytest.raises(ArtifactError, match="operator shapes are not compiled") as caught:
        generate_hybrid(request, lambda _: None)
    assert "MatMulNBits K 64 N 96" in caught.value.message
    command = f"onnx_utils vaiml --model-dir {folder} --plugin_name model --compile"
    assert f"{command} --ops_type bf16 --context_length 128" in caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.parametrize("era", ["1.6", "1.7"])
def test_keys_of_the_vendors_releases(era: str, ready: Path, tmp_path: Path) -> None:
    out = made(ready, tmp_path, era=era)
    data = json.loads((out / "genai_config.json").read_text())
    session = data["model"]["decoder"]["session_options"]
    entries = {"RyzenAI"} if era == "1.7" else set()
    assert {name for entry in session["provider_options"] for name in entry} == entries
    assert ("config_entries" in session) == (era == "1.6")
    assert "external_data_file" not in json.dumps(data)
    stock = json.loads((out / "genai_config.stock.json").read_text())
    assert stock["model"]["decoder"]["session_options"]["provider_options"] == []
    # A folder of a release is no source: its weights would be packed for it.
    (tmp_path / "model" / "genai_config.json").write_text(json.dumps(_flat(data)))
    with pytest.raises(ModelError, match=r"made by the vendor's tools for Ryzen AI 1\.[67]"):
        generate_hybrid(
            HybridRequest(tmp_path / "model", tmp_path / "two", OPERATORS), lambda _: None
        )


def _flat(data: dict[str, Any]) -> dict[str, Any]:
    decoder = {**data["model"]["decoder"], "filename": "model.onnx"}
    del decoder["pipeline"]
    return {**data, "model": {**data["model"], "type": "llama", "decoder": decoder}}


def test_sources_and_places_that_do_not_do(ready: Path, tmp_path: Path) -> None:
    out = made(ready, tmp_path)
    model = tmp_path / "model"
    with pytest.raises(ModelError, match="a hybrid model"):
        generate_hybrid(HybridRequest(out, tmp_path / "two", OPERATORS), lambda _: None)
    with pytest.raises(OptionError, match="there already"):
        generate_hybrid(HybridRequest(model, out, OPERATORS), lambda _: None)
    with pytest.raises(OptionError, match="does not exist"):
        generate_hybrid(HybridRequest(model, tmp_path / "no" / "x", OPERATORS), lambda _: None)
    with pytest.raises(OptionError, match="--era 2"):
        HybridRequest(model, tmp_path / "two", OPERATORS, "2")  # type: ignore[arg-type]
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}")
    with pytest.raises(OptionError, match="no folder of onnxruntime-genai"):
        generate_hybrid(HybridRequest(tmp_path / "hf", tmp_path / "two", OPERATORS), lambda _: None)


def test_a_head_for_the_last_token_gives_no_other_logits(ready: Path, tmp_path: Path) -> None:
    out = made(ready, tmp_path)
    state = open_ort_decoder(read_genai_config(out), threads=1).start(1, 64)
    with pytest.raises(UnsupportedError, match="built for the last one alone"):
        state.forward(PROMPT, every_position=True)
