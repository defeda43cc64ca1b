"""The page about trust tells the truth; its keys go to a folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import platformdirs
import pytest

import models
from commands import command_line
from pages import ROOT, steps

pytestmark = pytest.mark.needs("cryptography")


def test_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *_, **__: str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    ir.save(models.small_cnn(), tmp_path / "model.onnx")
    vermilion = command_line(capfd, monkeypatch, tmp_path / "cache")
    page = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    taken = list(steps(page, tmp_path))
    assert len(taken) == 6
    for step in taken:
        done = vermilion(*step.words)
        assert done.code == step.code, f"{step.shown}\n{done.out}\n{done.err}"
