"""Which models a command line names, and how they are loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from vermilion.errors import ModelError, OptionError
from vermilion.serve.catalog import Catalog, Place, Served, find_models
from vermilion.serve.refusals import NotReadyError, NotServedError


def touch(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")


def kinds(*words: str | Path) -> dict[str, dict[str, str]]:
    found = find_models([str(word) for word in words])
    return {
        name: {number: place.kind for number, place in rows.items()} for name, rows in found.items()
    }


def test_files_and_folders(tmp_path: Path) -> None:
    touch(
        tmp_path / "m.onnx",
        tmp_path / "chat" / "genai_config.json",
        tmp_path / "texts" / "tokenizer.json",
        tmp_path / "texts" / "onnx" / "model.onnx",
        tmp_path / "done" / "manifest.json",
    )
    assert kinds(tmp_path / "m.onnx") == {"m": {"1": "network"}}
    assert kinds(f"other={tmp_path / 'm.onnx'}") == {"other": {"1": "network"}}
    assert find_models([f"{tmp_path / 'm.onnx'}@onnxruntime"])["m"]["1"].target == "onnxruntime"
    assert kinds(tmp_path / "chat", tmp_path / "texts", tmp_path / "done") == {
        "chat": {"1": "language"}, "texts": {"1": "encoder"}, "done": {"1": "network"}
    }  # fmt: skip


def test_a_folder_of_models_with_versions(tmp_path: Path) -> None:
    touch(
        tmp_path / "a" / "2" / "model.onnx",
        tmp_path / "a" / "10" / "model.rai",
        tmp_path / "b.onnx",
        tmp_path / "notes.txt",
        tmp_path / "empty" / "readme",
    )
    found = find_models([str(tmp_path)])
    assert {name: list(rows) for name, rows in found.items()} == {"a": ["2", "10"], "b": ["1"]}
    assert kinds(tmp_path / "a") == {"a": {"2": "network", "10": "network"}}


def test_what_is_no_model(tmp_path: Path) -> None:
    touch(tmp_path / "a b.onnx", tmp_path / "m.onnx", tmp_path / "x" / "m.onnx", tmp_path / "t.txt")
    for words, message in (
        ([tmp_path / "none.onnx"], "no such model"),
        ([tmp_path / "t.txt"], "no model is here"),
        ([tmp_path / "a b.onnx"], "no name for a model"),
        ([tmp_path / "m.onnx", tmp_path / "x"], "two models are called `m`"),
        ([f"../up={tmp_path / 'm.onnx'}"], "no name for a model"),
    ):
        with pytest.raises(OptionError, match=message):
            find_models([str(word) for word in words])


class Opened:
    is_ready = True

    def close(self) -> None:
        self.is_ready = False


def test_loading_and_unloading() -> None:
    opened: list[str] = []

    def open_place(name: str, place: Place) -> Served:
        if place.path.name == "bad":
            raise ModelError("it is damaged")
        opened.append(name)
        return Opened()

    places = {
        name: {"1": Place("network", Path(name)), "3": Place("network", Path(name))}
        for name in ("good", "bad")
    }
    catalog = Catalog(places, open_place)
    assert catalog.is_ready()  # nothing is wanted
    catalog.expect_all()
    assert not catalog.is_ready()
    with pytest.raises(NotReadyError, match="`good` is not ready: loading"):
        catalog.served("good")
    catalog.load("good")
    catalog.load("good")
    assert opened == ["good", "good"]  # both versions, once
    assert catalog.version("good").number == "3"
    assert not catalog.is_ready()  # the other one is not loaded
    with pytest.raises(ModelError):
        catalog.load("bad")
    assert not catalog.is_ready()
    with pytest.raises(NotReadyError, match="it is damaged"):
        catalog.served("bad")
    with pytest.raises(NotServedError, match="it has 1, 3"):
        catalog.served("good", "2")
    with pytest.raises(NotServedError):
        catalog.unload("../good")
    served = catalog.served("good", "1")
    catalog.unload("good")
    assert not served.is_ready
    assert [one.state for one in catalog.versions("good")] == ["UNAVAILABLE", "UNAVAILABLE"]
