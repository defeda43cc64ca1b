"""The whole path to AMD's provider on a GPU, as far as it goes on this machine."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from commands import Command
from models import small_cnn
from vermilion.backends import backend
from vermilion.hardware.targets.find import find_target


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ir.save(small_cnn(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def reason() -> str:
    """Return why the provider cannot be used here; skips the test where it can."""
    availability = backend("migraphx").available(find_target("gfx1100"))
    if availability.usable:
        pytest.skip("this machine has a MIGraphX provider and a gfx1100")
    return availability.reason


def test_no_session_silently_on_the_cpu(
    vermilion: Command, model: Path, reason: str, tmp_path: Path
) -> None:
    done = vermilion("compile", model, "--target", "gfx1100", "--backend", "migraphx", "--json")
    assert done.code == 1
    error = done.data["error"]
    assert error["message"].startswith("`migraphx` cannot compile for gfx1100")
    assert reason[:300] in error["where"]
    assert error["hint"]
    assert not list((tmp_path / "cache").glob("*/manifest.json"))


def test_a_backend_for_other_targets(vermilion: Command, model: Path) -> None:
    done = vermilion("compile", model, "--backend", "migraphx")
    assert done.code == 2
    assert "it is one of `native`, `ort`" in done.err
    done = vermilion("compile", model, "--backend", "ort")
    assert done.code == 0


def test_provider_options_are_for_providers(vermilion: Command, model: Path) -> None:
    done = vermilion("compile", model, "--provider-option", "fp16_enable=1")
    assert done.code == 2
    assert "`native` is no provider" in done.err
    assert "--backend migraphx" in done.err
    for word, words in (("fp16_enable", "is not NAME=VALUE"), ("=1", "is not NAME=VALUE")):
        done = vermilion("compile", model, "--provider-option", word)
        assert done.code == 2
        assert words in done.err
    twice = vermilion("compile", model, "--provider-option", "a=1", "--provider-option", "a=2")
    assert "names an option twice" in twice.err
