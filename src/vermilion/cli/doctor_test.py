from __future__ import annotations

import json
from pathlib import Path

from commands import Command
from vermilion.runtime.vendor_test import FILES, write

SOURCE = """
import onnxruntime as ort
session = ort.InferenceSession(
    "m.onnx",
    providers=["VitisAIExecutionProvider"],
    provider_options=[{"xclbin": "x.xclbin", "cacheDir": "c"}],
)
"""


def test_options_are_checked_and_corrected(vermilion: Command, tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(SOURCE, encoding="utf-8")
    arguments = ["doctor", "--options", path, "--device", "stx", "--release", "1.6"]
    done = vermilion(*arguments, "--json")
    assert done.code == 1
    data = json.loads(done.out)
    (found,) = data["option_sets"]
    assert data["errors"] == 1
    assert found["checked_against"] == "VitisAI provider of Ryzen AI 1.6"
    assert found["corrected"]["options"] == {"cache_dir": "c", "enable_cache_file_io_in_mem": "0"}
    shown = vermilion(*arguments)
    assert shown.code == 1
    assert "`xclbin` must not be set on strix since 1.6" in shown.out
    assert '"enable_cache_file_io_in_mem": "0",' in shown.out


def test_options_that_are_right(vermilion: Command, tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    path.write_text('{"provider": "VitisAI", "options": {"target": "X2"}}', encoding="utf-8")
    done = vermilion("doctor", "--options", path)
    assert (done.code, "nothing is wrong" in done.out) == (0, True)


def test_a_file_without_options_is_wrong_use(vermilion: Command, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("print()", encoding="utf-8")
    done = vermilion("doctor", "--options", path)
    assert done.code == 2
    assert "no options for one of AMD's providers" in done.err


def test_the_right_options_with_their_reasons(vermilion: Command) -> None:
    arguments = ["doctor", "--suggest", "--device", "stx", "--release", "1.7"]
    done = vermilion(*arguments, "--precision", "bf16")
    assert done.code == 0
    assert "no xclbin 1.7 refuses it on strix" in done.words
    assert '"target": "VAIML"' in done.out
    data = vermilion(*arguments, "--json").data
    assert data["options"]["target"] == "X2"
    assert set(data["options"]) <= set(data["reasons"])
    refused = vermilion("doctor", "--suggest", "--device", "phoenix", "--precision", "bf16")
    assert refused.code == 1
    assert "INT8 convolutional networks" in refused.err
    assert vermilion("doctor", "--suggest").code == 2


def test_a_vendors_cache_is_shown_and_not_to_be_used(vermilion: Command, tmp_path: Path) -> None:
    folder = write(tmp_path / "key", FILES)
    done = vermilion("cache", "verify", "--vendor", folder, "--json")
    assert done.code == 1
    data = json.loads(done.out)
    assert data["vendor"]["summary"]["offloaded_operators"] == 49
    assert data["reusable"] is False
    shown = vermilion("cache", "verify", "--vendor", folder)
    assert shown.code == 1
    assert "there is no VitisAI provider here" in shown.out
    assert "Standalone tosa.cast" in shown.out
