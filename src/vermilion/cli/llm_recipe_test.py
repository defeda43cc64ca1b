"""`onnx_utils`, `model_generate`, `model_benchmark`: flags, JSON, errors, the vendor's tools."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

import tiny_llama
from commands import Command, command_line, wide_enough
from tiny_llama import Tiny
from vermilion.hardware.targets.find import find_target

VAIML = ("onnx_utils", "vaiml", "--model-dir", "model", "--plugin_name", "p")
SMALL = ("--context_length", "128")
# What programs for this machine are said to be for.
HERE = find_target("cpu").name.encode()


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DD_PLUGINS_ROOT", raising=False)
    monkeypatch.delenv("DD_PLUGINS_TRACING", raising=False)
    tiny_llama.write_folder(tmp_path / "model", Tiny(bits=4))
    return command_line(capfd, monkeypatch, tmp_path / "cache")


def test_without_compile_only_the_list_is_written(run: Command) -> None:
    data = run(*VAIML, *SMALL, "--json").data
    assert (data["ran"], data["plugin"], data["compiled"]) == ("vermilion", None, 0)
    assert data["list"] == str(Path("p") / "p_all.json")
    assert sum(one["number"] == "bfp16" for one in data["entries"]) == 4
    assert not Path("transaction-plugin").exists()
    assert len(json.loads(Path("p/p_all.json").read_text())["operators"]) == data["operators"]


def test_compiling_verifying_and_finding_it_again(run: Command) -> None:
    data = run(*VAIML, *SMALL, "--compile", "--verify", "--ops_type", "bf16", "--json").data
    assert data["plugin"] == str(Path("transaction-plugin") / "p.zip")
    count = len(data["entries"])
    assert (data["compiled"], data["reused"]) == (count, 0)
    assert all(row["ok"] and 0 < row["error"] < 0.01 for row in data["verified"])
    assert len(data["verified"]) == count >= 4
    again = run(*VAIML, *SMALL, "--compile", "--ops_type", "bf16", "--json").data
    assert (again["compiled"], again["reused"]) == (0, count)
    shown = run(*VAIML, *SMALL, "--compile", "--ops_type", "bf16")
    assert wide_enough(shown.out)
    assert "0 compiled" in shown.words
    assert f"{count} were there" in shown.words


def test_the_models_folder_and_operators_may_be_plain_words(run: Command) -> None:
    words = ("onnx_utils", "vaiml", "model", "--plugin_name", "q", "--ops", "gemm", "bmm1", *SMALL)
    data = run(*words, "--json").data
    assert data["list"] == str(Path("q") / "q_gemm_bmm1.json")
    assert len(data["entries"]) >= 4
    none = run("onnx_utils", "vaiml", "model", "--plugin_name", "q", "--ops", "rope", "--json").data
    assert none["entries"] == []


def test_a_hybrid_from_the_default_folder_and_from_the_variable(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = run("model_generate", "--hybrid", "out", "model", *SMALL)
    assert missing.code == 1
    assert "operator shapes are not compiled" in missing.err
    assert "vermilion onnx_utils vaiml --model-dir model --plugin_name model" in missing.err
    run(*VAIML, *SMALL, "--compile")
    monkeypatch.setenv("DD_PLUGINS_ROOT", "transaction-plugin")
    monkeypatch.setenv("DD_PLUGINS_TRACING", "1")
    done = run("model_generate", "--hybrid", "out", "model", *SMALL, "--json")
    assert done.data["from_plugins"] >= 4
    assert done.data["plugins"] == ["p.zip"]
    assert done.err.count("128 rows, bfp16") == 4
    monkeypatch.delenv("DD_PLUGINS_TRACING")
    named = run("model_generate", "--hybrid", "--input", "model", "--output", "two", *SMALL)
    assert named.code == 0
    assert "dd_plugins:" not in named.err
    assert "4 operator shapes in bfp16, from p.zip" in named.words
    assert run("llm", "config", "two").code == 0


@pytest.mark.needs("tokenizers")
def test_the_benchmark_prints_the_vendors_sections(run: Command) -> None:
    Path("p.txt").write_text("a text of a few words ")
    words = ("model_benchmark", "-i", "model", "-f", "p.txt", "-g", "3", "-r", "2", "-w", "0")
    done = run(*words, "-l", "16, 8", "--verbose")
    assert done.code == 0, done.err
    for section in (
        "Batch size: 1, prompt tokens: 16, tokens to generate: 3",
        "Batch size: 1, prompt tokens: 8, tokens to generate: 3",
        "Prompt processing (time to first token):",
        "Token generation:",
        "Token sampling:",
        "E2E generation (entire generation loop):",
        "Peak working set size (bytes): ",
    ):
        assert section in done.out
    assert done.out.count("avg (tokens/s):") == 6
    assert "n: 2 * 16 token(s)" in done.words
    assert "n: 4 * 1 token(s)" in done.words
    assert "loading model" in done.err
    data = run(*words, "-l", "8", "--json").data
    (row,) = data["results"]
    assert (row["prompt_tokens"], row["new_tokens"]) == (8, 3)
    assert row["ttft_ms"] > 0
    assert row["decode_tokens_per_s"] > 0
    assert row["generation_us"]["n"] == 4


WRONG: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no folder": (("onnx_utils", "vaiml", "--plugin_name", "p"), 2, "one folder of a model"),
    "two folders": ((*VAIML, "other"), 2, "one folder of a model"),
    "another format": ((*VAIML, "--ops_type", "fp4"), 2, "--ops_type fp4"),
    "a name that leads out": (
        ("onnx_utils", "vaiml", "model", "--plugin_name", "../p"), 2, "cannot be the name",
    ),
    "a length over the context": ((*VAIML, "--exact_length", "999"), 2, "over the model's"),
    "Phoenix": ((*VAIML, "--target", "phoenix"), 1, "run no language models"),
    "an NPU": ((*VAIML, "--target", "strix"), 1, "compiled by the vendor's tools"),
    "an unknown chip": ((*VAIML, "--target", "zen99"), 2, "zen99"),
    "another tool": ((*VAIML, "--with", "x"), 2, "--with x"),
    "neither kind": (("model_generate", "out", "model"), 2, "either `--hybrid` or `--npu`"),
    "both kinds": (("model_generate", "--hybrid", "--npu", "out", "model"), 2, "either"),
    "one folder": (("model_generate", "--hybrid", "out"), 2, "two folders are wanted"),
    "the NPU alone": (("model_generate", "--npu", "out", "model"), 1, "the vendor's tools"),
    "Phoenix for a hybrid": (
        ("model_generate", "--hybrid", "out", "model", "--target", "phoenix"), 1, "no language",
    ),
    "another era": (("model_generate", "--hybrid", "out", "model", "--era", "1.5"), 2, "--era"),
    "lengths that are none": (("model_benchmark", "-i", "model", "-l", "12,x"), 2, "list of num"),
    "a prompt over the context": (
        ("model_benchmark", "-i", "model", "-l", "8, 256"), 2, "over the model's context of 256",
    ),
    "no model": (("model_benchmark", "-i", "none", "-l", "8"), 2, "no such folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_one_clear_error(name: str, run: Command) -> None:
    words, code, said = WRONG[name]
    done = run(*words)
    assert done.code == code
    assert done.out == ""
    assert said in " ".join(done.err.split())
    assert done.err.startswith("error:")
    assert "hint:" in done.err


@pytest.mark.parametrize(
    "change", [lambda data: data[: len(data) // 2], lambda data: data.replace(HERE, HERE[::-1], 1)]
)
def test_a_plugin_that_is_damaged_is_one_clear_error(change: object, run: Command) -> None:
    run(*VAIML, *SMALL, "--compile")
    Path("dd_plugins").mkdir()
    data = Path("transaction-plugin/p.zip").read_bytes()
    Path("dd_plugins/p.zip").write_bytes(change(data))  # type: ignore[operator]
    done = run("model_generate", "--hybrid", "out", "model", *SMALL)
    assert done.code == 1
    assert "p.zip" in done.err
    assert not Path("out").exists()


def test_the_vendors_tools_are_not_here(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path.cwd()))
    for words in (
        (*VAIML, "--with", "vendor"),
        ("model_generate", "--hybrid", "out", "model", "--with", "vendor"),
        ("model_benchmark", "-i", "model", "-l", "8", "--with", "vendor"),
    ):
        done = run(*words)
        assert done.code == 1
        assert f"the vendor's `{words[0]}` is not on the path" in done.err


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no POSIX shell")
def test_the_vendors_tools_are_given_the_command(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of the vendor's name, which writes down how it was called."""
    Path("bin").mkdir()
    for name, code in (("onnx_utils", 0), ("model_generate", 0), ("model_benchmark", 3)):
        tool = Path("bin") / name
        tool.write_text(f'#!/bin/sh\necho "called: $@"\nexit {code}\n')
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{Path.cwd() / 'bin'}{os.pathsep}{os.environ['PATH']}")
    done = run(*VAIML, "--compile", "--with", "vendor", "--json")
    assert (done.data["ran"], done.data["exit_code"]) == ("vendor", 0)
    assert Path(done.data["program"]).parent.name == "bin"
    expected = "called: vaiml --model-dir model --plugin_name p --compile --ops_type bfp16"
    assert expected in done.err
    done = run("model_generate", "--hybrid", "out", "model", "--with", "vendor")
    assert "called: --hybrid out model" in done.err
    named = ("model_generate", "--hybrid", "--input", "model", "--output", "out")
    done = run(*named, "--with", "vendor")
    assert "called: --hybrid --input model --output out" in done.err
    assert "ran" in done.out
    done = run("model_benchmark", "-i", "model", "-l", "8, 16", "-v", "--with", "vendor")
    assert done.code == 1
    assert "called: -i model -g 128 -r 5 -w 1 -l 8, 16 --verbose" in done.err
    assert "failed with 3" in done.words
