"""Which models a command line names, and how they are loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from vermilion.errors import ModelError, OptionError
from vermilion.serve.catalog import Catalog, Place, Served, check_dims, find_models
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
    is_ready = is_open = True
    reason = ""

    def close(self, *, now: bool = False) -> None:
        self.is_ready = self.is_open = False


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


def test_the_state_is_what_the_model_says_now() -> None:
    opened = Opened()
    catalog = Catalog({"m": {"1": Place("network", Path("m"))}}, lambda name, place: opened)
    version = catalog.version("m")
    catalog.load("m")
    assert (version.state, version.reason, catalog.is_ready()) == ("READY", "", True)
    opened.is_ready, opened.reason = False, "its process ended, and is started again"
    assert (version.state, version.reason) == ("LOADING", opened.reason)
    assert not catalog.is_ready()
    assert catalog.served("m") is opened  # requests wait meanwhile
    opened.is_open, opened.reason = False, "its processes end"
    assert (version.state, version.reason) == ("UNAVAILABLE", "its processes end")
    assert not catalog.is_ready()
    with pytest.raises(NotReadyError, match="its processes end"):
        catalog.served("m")
    catalog.unload("m")
    assert (version.state, version.reason) == ("UNAVAILABLE", "")
    assert catalog.is_ready()  # nobody wants it


def test_a_fault_while_loading_is_no_loading_without_end() -> None:
    def open_place(name: str, place: Place) -> Served:
        raise ZeroDivisionError

    catalog = Catalog({"m": {"1": Place("network", Path("m"))}}, open_place)
    catalog.expect_all()
    with pytest.raises(ZeroDivisionError):
        catalog.load("m")
    version = catalog.version("m")
    assert (version.state, version.reason) == (
        "UNAVAILABLE", "a fault of the server: ZeroDivisionError"
    )  # fmt: skip


def test_places_and_sizes_for_models_that_take_none(tmp_path: Path) -> None:
    touch(
        tmp_path / "m.gguf",
        tmp_path / "oga" / "genai_config.json",
        tmp_path / "hf" / "config.json",
        tmp_path / "hf" / "model.safetensors",
        tmp_path / "done.rai",
        tmp_path / "folder" / "manifest.json",
        tmp_path / "several" / "1" / "model.rai",
        tmp_path / "net.onnx",
    )
    for name in ("m.gguf", "oga", "hf"):
        with pytest.raises(OptionError, match="CPU, not on `hip`") as raised:
            find_models([f"{tmp_path / name}@hip"])
        assert (raised.value.exit_code, raised.value.hint) == (2, "leave `@hip` out")
    for name in ("done.rai", "folder", "several"):
        with pytest.raises(OptionError, match="is compiled"):
            find_models([f"{tmp_path / name}@zen4"])
    for name, words in (("m.gguf", "a language model"), ("done.rai", "compiled")):
        places = find_models([str(tmp_path / name), str(tmp_path / "net.onnx")])
        check_dims(places, {})
        with pytest.raises(OptionError, match=f"`--dim batch` is for ONNX files, .* is {words}"):
            check_dims(places, {"batch": 4})
    check_dims(find_models([f"{tmp_path / 'net.onnx'}@zen4"]), {"batch": 4})
