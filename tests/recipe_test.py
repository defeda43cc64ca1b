"""The page on the vendor's recipe, command by command, on a small model."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import tiny_llama
from commands import Command, Done, command_line
from tiny_llama import Tiny

PAGE = Path(__file__).parent.parent / "docs" / "llm-recipe.md"
BUILD = "llm build"


def commands() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DD_PLUGINS_ROOT", raising=False)
    return command_line(capfd, monkeypatch, tmp_path / "cache")


LENGTHS = (128, 256, 512, 1024, 2048)


def carry_out(
    run: Command, *, skip: str = "", source: Path | None = None, lengths: Sequence[int] = LENGTHS
) -> dict[str, Done]:
    """Carry out the page, and return what each command of ours printed, by its first two words.

    `source` is read in place of the page's GGUF file, prompts of `lengths` are measured in place of
    the page's.
    """
    measured = {", ".join(map(str, LENGTHS)): ", ".join(map(str, lengths))}
    Path("amd_genai_prompt.txt").write_text("The weather was fine, and so they went for a walk. ")
    done: dict[str, Done] = {}
    for program, *words in commands():
        name = " ".join(words[:2])
        if program == "mkdir":
            Path(words[0]).mkdir()
        elif program == "cp":
            shutil.copy(words[0], words[1])
        elif name != skip:
            assert program == "vermilion", f"a command that no test can run: {program}"
            words = [str(source) if source and w.endswith(".gguf") else w for w in words]
            words = [measured.get(w, w) for w in words]
            done[name] = run(*words)
            assert done[name].code == 0, done[name].err
    return done


def check(done: dict[str, Done], lengths: Sequence[int] = LENGTHS) -> None:
    assert "operators," in done["onnx_utils vaiml"].words
    assert "WRONG" not in done["onnx_utils vaiml"].out
    assert "right: MatMulNBits" in done["onnx_utils vaiml"].words
    assert "operator shapes in bfp16, from smollm2.zip" in done["model_generate --hybrid"].words
    measured = done["model_benchmark -i"].out
    for length in lengths:
        assert f"prompt tokens: {length}, tokens to generate: 128" in measured
        assert f"5 * {length} token(s)" in measured
    for section in ("Prompt processing (time to first token):", "Token generation:"):
        assert measured.count(section) == len(lengths)


@pytest.mark.needs("tokenizers", "jinja2")
def test_the_page_on_a_small_model(run: Command) -> None:
    tiny = Tiny(layers=1, bits=4, split_qkv=True, context=4096)
    tiny_llama.write_folder(Path("smollm2-dml"), tiny)
    check(carry_out(run, skip=BUILD))
