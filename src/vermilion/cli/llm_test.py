from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import llm_folders
from commands import Command, command_line, wide_enough


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    return command_line(capfd, monkeypatch, tmp_path / "cache")


def test_ops_from_a_configuration_alone(run: Command, tmp_path: Path) -> None:
    path = llm_folders.config_file(tmp_path, **llm_folders.SMOLLM2)
    done = run("llm", "ops", path, "--json")
    assert (done.code, done.data["verb"], done.data["missing"]) == (0, "llm ops", 8)
    products = [one for one in done.data["operators"] if one["op_type"] == "MatMulNBits"]
    assert [(one["shape"]["K"], one["shape"]["N"], one["count"]) for one in products] == [
        (576, 960, 30),
        (576, 576, 30),
        (576, 1536, 60),
        (1536, 576, 30),
        (576, 49152, 1),
    ]
    decode = done.data["totals"]["decode_gops"]
    assert decode == pytest.approx(sum(o["decode"]["gops"] for o in done.data["operators"]))
    people = run("llm", "ops", path, "--graph", "dml", "--block", "128", "-l", "1024")
    assert "RotaryEmbedding heads 9 head_size 64 30" in people.words
    assert "prefill of 1,024 tokens" in people.words
    assert wide_enough(people.out)


def test_ops_of_a_shipped_model_names_who_has_them(run: Command, tmp_path: Path) -> None:
    llama = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
    }
    path = llm_folders.config_file(tmp_path, **llama)
    done = run("llm", "ops", path, "--block", "128", "--asymmetric", "--json")
    assert done.data["missing"] == 0
    assert "Llama-3.2-1B" in done.data["operators"][2]["models"]
    people = run("llm", "ops", path, "--block", "128")
    assert "0 of" in people.words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ops", "nothing"), "no such file or folder"),
        (("ops", ".", "--graph", "cuda"), "--graph cuda"),
        (("ops", ".", "--block", "48"), "blocks of 48"),
        (("config", "nothing"), "no such folder"),
        (("config", ".", "--provider", "rocm"), "no folder of onnxruntime-genai"),
        (("build", "nothing", "-o", "out"), "no such file or folder"),
        (("bench", ".", "-l", "a,b"), "no list of numbers"),
        (("generate", ".", "-p", "x", "-g", "0"), "at least one token"),
        (("generate", "."), "--prompt"),
    ],
)
def test_wrong_use_is_one_error_and_exit_code_2(
    run: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    llm_folders.config_file(tmp_path)
    done = run("llm", *words)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_config_checks_and_writes(run: Command, tmp_path: Path) -> None:
    folder = llm_folders.oga_folder(tmp_path / "oga")
    assert "nothing is wrong" in run("llm", "config", folder).words
    words = ("--provider", "migraphx", "--device-id", "1", "--fp16", "--cache-dir", "c")
    done = run("llm", "config", folder, *words, "--json")
    assert (done.code, done.data["errors"]) == (0, 0)
    options = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
    entry = {"device_id": "1", "migraphx_fp16_enable": "1", "migraphx_model_cache_dir": "c"}
    assert options["session_options"]["provider_options"] == [{"MIGraphX": entry}]
    assert [one["id"] for one in done.data["findings"]] == ["gpu.cache-shared"]


def test_config_with_an_error_fails(run: Command, tmp_path: Path) -> None:
    data = llm_folders.genai_data()
    data["search"]["max_length"] = 4096
    folder = llm_folders.oga_folder(tmp_path / "oga", data)
    done = run("llm", "config", folder)
    assert done.code == 1
    assert "fix: write 128 or less" in done.words


def test_a_dry_run_says_what_a_build_needs(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(llm_folders.gguf_bytes())
    done = run("llm", "build", file, "-o", tmp_path / "out", "--dry-run", "--json")
    assert (done.code, done.data["built"]) == (0, False)
    assert done.data["builder_options"]["hf_remote"] == "false"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.gguf"]


def test_without_onnxruntime_genai_the_line_to_install_it(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", None)
    folder = llm_folders.oga_folder(tmp_path / "oga")
    done = run("llm", "generate", folder, "-p", "x", "--engine", "onnxruntime-genai")
    assert done.code == 1
    assert "pip install 'vermilion[llm]'" in done.err
