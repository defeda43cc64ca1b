from __future__ import annotations

from pathlib import Path

import pytest

import tiny_llama
from vermilion.errors import DeviceError, OptionError, UnsupportedError
from vermilion.llm import speed_engines
from vermilion.llm.speed import SpeedRequest, compare_speed
from vermilion.llm.speed_engines import Peer, SpeedSetting, peers_for

pytestmark = pytest.mark.needs("tokenizers", "jinja2")


def nothing(_: SpeedSetting) -> speed_engines.OpenEngine:
    raise AssertionError("a peer that is not there is not opened")


def test_peers_are_named_checked_and_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = {
        "here": Peer("json", False, nothing),
        "with a file": Peer("csv", True, nothing),
        "gone": Peer("no_such_module", False, nothing),
    }
    monkeypatch.setattr(speed_engines, "PEERS", known)
    assert peers_for("installed", None) == ("here",)
    assert peers_for("installed", tmp_path / "m.gguf") == ("here", "with a file")
    assert peers_for("none", None) == ()
    assert peers_for("here, here", None) == ("here",)
    for name, words in (("gone", "not installed"), ("with a file", "--gguf")):
        with pytest.raises(UnsupportedError, match=words):
            peers_for(name, None)
    with pytest.raises(OptionError, match="--against other"):
        peers_for("other", None)


def test_a_setting_travels_as_a_message(tmp_path: Path) -> None:
    setting = SpeedSetting(tmp_path, tmp_path / "m.gguf", 2, "native", "int8", on_cpu=True)
    assert SpeedSetting.of_message(setting.as_message()) == setting


@pytest.mark.needs("onnxruntime_genai")
def test_a_peer_that_cannot_open_the_folder_is_a_row_with_its_reason(tmp_path: Path) -> None:
    """A class of tokenizers that onnxruntime-genai does not know, and we do not look at."""
    folder = tiny_llama.write_folder(tmp_path / "tiny")
    file = folder / "tokenizer_config.json"
    file.write_text(file.read_text().replace("GPT2Tokenizer", "NoSuchTokenizer"))
    setting = SpeedSetting(folder, engine="onnxruntime")
    found = compare_speed(SpeedRequest((8,), 3, repeat=1), setting, ("onnxruntime-genai",))
    ours, peer = found.engines
    assert ours.results[0].decode_tokens_per_s > 0
    assert (peer.results, "NoSuchTokenizer" in peer.failed) == ((), True)
    assert found.ratios == ()


def test_our_own_engine_has_to_open_the_folder(tmp_path: Path) -> None:
    folder = tiny_llama.write_folder(tmp_path / "tiny")
    (folder / "model.onnx.data").unlink()
    with pytest.raises(Exception, match="vermilion") as caught:
        compare_speed(SpeedRequest((8,), 3, repeat=1), SpeedSetting(folder))
    assert not isinstance(caught.value, DeviceError)
