"""`vermilion memory` on a model and a decoder."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from commands import Command, command_line
from vermilion.device_memory_test import LLAMA, chain


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    return command_line(capfd, monkeypatch, tmp_path / "cache")


def test_a_model_and_a_limit(run: Command, tmp_path: Path) -> None:
    path = tmp_path / "chain.onnx"
    onnx.save(chain(), path)
    done = run("memory", path, "--batch", "1,8", "--json")
    assert [need["batch"] for need in done.data["needs"]] == [1, 8]
    assert {need["is"] for need in done.data["needs"]} == {"modelled"}
    assert "modelled" in run("memory", path).words
    assert run("memory", path, "--limit", "0.1").code == 1
    assert run("memory", path, "--batch", "0").code == 2
    assert run("memory", path, "--length", "8").code == 2


def test_a_decoder(run: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    words = ("--length", "512,1024", "--precision", "int4")
    needs = run("memory", tmp_path, *words, "--json").data["needs"]
    assert needs[1]["cache"] == 2 * needs[0]["cache"]
