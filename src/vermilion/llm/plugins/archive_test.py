"""The plugin's file: the same bytes for the same operators, one clear error for what is wrong."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vermilion.errors import ArtifactError, OptionError
from vermilion.llm.plugins.archive import MANIFEST, SEAL, read_plugin, write_plugin
from vermilion.llm.plugins.identity import Identity, key_of
from vermilion.llm.plugins.programs import Programs
from vermilion.runtime.archive import write_archive

FIRST = Identity("MatMulNBits", {"K": 64, "N": 32}, 128, "bfp16", "zen4")
SECOND = Identity("MatMulNBits", {"N": 32, "K": 64}, 256, "bfp16", "zen4")
OBJECTS = [(FIRST, b"first object"), (SECOND, b"second")]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    return write_plugin(tmp_path / "p.zip", OBJECTS).path


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewrite(path: Path, files: dict[str, bytes], work: Path) -> None:
    members = []
    for number, (name, data) in enumerate(files.items()):
        (work / str(number)).write_bytes(data)
        members.append((name, work / str(number)))
    write_archive(path, members)


def test_what_is_written_is_read(plugin: Path) -> None:
    read = read_plugin(plugin)
    found = {entry.identity.rows: read.object_of(entry) for entry in read.entries}
    assert found == {128: b"first object", 256: b"second"}
    assert read.is_signed_here
    assert all(entry.is_current for entry in read.entries)
    assert [path.name for path in plugin.parent.iterdir()] == ["p.zip"]


def test_programs_are_kept_with_their_names(tmp_path: Path) -> None:
    programs = Programs("a" * 64, "bf16", "zen4", {"decoder/k/x.o": b"code", "decoder/k/t": b"t"})
    read = read_plugin(write_plugin(tmp_path / "p.zip", OBJECTS, [programs]).path)
    assert read.programs == (programs,)
    files = contents(tmp_path / "p.zip")
    files["programs/decoder/k/x.o"] = b"edoc"
    (tmp_path / "work").mkdir()
    rewrite(tmp_path / "p.zip", files, tmp_path / "work")
    with pytest.raises(ArtifactError, match="not the one that was written"):
        read_plugin(tmp_path / "p.zip")
    del files["programs/decoder/k/x.o"]
    rewrite(tmp_path / "p.zip", files, tmp_path / "work")
    with pytest.raises(ArtifactError, match="not in the plugin"):
        read_plugin(tmp_path / "p.zip")


def test_the_same_operators_are_the_same_bytes(plugin: Path, tmp_path: Path) -> None:
    again = write_plugin(tmp_path / "other" / "p.zip", reversed(OBJECTS)).path
    assert again.read_bytes() == plugin.read_bytes()


def test_a_key_is_of_the_shape_whatever_order_it_is_written_in() -> None:
    other = Identity("MatMulNBits", {"N": 32, "K": 64}, 128, "bfp16", "zen4")
    assert key_of(other) == key_of(FIRST)
    assert (
        len({key_of(FIRST), key_of(SECOND), key_of(Identity("X", {"K": 1}, 1, "bf16", "z"))}) == 3
    )


def _manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, bytes]], object]:
    def apply(files: dict[str, bytes]) -> None:
        data = json.loads(files[MANIFEST])
        change(data)
        files[MANIFEST] = json.dumps(data).encode()

    return apply


def _operator(**changes: object) -> Callable[[dict[str, bytes]], object]:
    return _manifest(lambda data: data["operators"][0].update(changes))


def _object(files: dict[str, bytes]) -> str:
    return next(name for name in files if name.endswith(".o"))


WRONG: dict[str, tuple[Callable[[dict[str, bytes]], object], str]] = {
    "an object that was changed": (
        lambda f: f.update({_object(f): b"x" * len(f[_object(f)])}),
        "not the one that was written",
    ),
    "an object that is short": (lambda f: f.update({_object(f): b"x"}), "not the one that was"),
    "an object that is not there": (lambda f: f.pop(_object(f)), "on one side only"),
    "a file that nobody listed": (lambda f: f.update({"objects/x.o": b""}), "on one side only"),
    "a file that leads out": (lambda f: f.update({"../x": b""}), "leads out"),
    "no manifest": (lambda f: f.pop(MANIFEST), "no plugin of Vermilion"),
    "no seal": (lambda f: f.pop(SEAL), "no plugin of Vermilion"),
    "no JSON": (lambda f: f.update({MANIFEST: b"{"}), "not JSON"),
    "another kind": (_manifest(lambda d: d.update(kind="x")), "no plugin of Vermilion"),
    "a later format": (_manifest(lambda d: d.update(format=2)), "format 2, this version reads 1"),
    "an unknown key": (_manifest(lambda d: d.update(evil=1)), "does not know"),
    "an unknown number": (_operator(number="fp3"), "fp3"),
    "a shape without sizes": (_operator(shape={}), "cannot be"),
    "a shape of nothing": (_operator(shape={"K": 0, "N": 1}), "cannot be"),
    "a shape of text": (_operator(shape={"K": "1", "N": 1}), "not a whole number"),
    "a key that is a path": (_operator(key="../../x"), "cannot be"),
    "an operator twice": (
        _manifest(lambda d: d["operators"].append(dict(d["operators"][0]))),
        "twice",
    ),
    "rows below zero": (_operator(rows=-1), "whole number"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_plugin_that_was_changed_is_one_error(name: str, plugin: Path, tmp_path: Path) -> None:
    change, said = WRONG[name]
    files = contents(plugin)
    change(files)
    (tmp_path / "work").mkdir()
    rewrite(plugin, files, tmp_path / "work")
    with pytest.raises(ArtifactError, match=said) as caught:
        read_plugin(plugin)
    assert "onnx_utils vaiml" in caught.value.hint
    assert plugin.name in caught.value.where


@pytest.mark.parametrize("size", [0, 10, 500, -1])
def test_a_plugin_that_is_cut_off(plugin: Path, size: int) -> None:
    plugin.write_bytes(plugin.read_bytes()[:size])
    with pytest.raises(ArtifactError, match="damaged, or no ZIP"):
        read_plugin(plugin)


def test_a_plugin_of_another_maker(tmp_path: Path) -> None:
    path = tmp_path / "vendor.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("transaction/gemm.bin", b"0" * 1000)
    with pytest.raises(ArtifactError, match="no plugin of Vermilion") as caught:
        read_plugin(path)
    assert "--with vendor" in caught.value.hint


def test_a_seal_of_another_machine_is_seen(plugin: Path, tmp_path: Path) -> None:
    files = contents(plugin)
    files[SEAL] = b"0" * 64
    (tmp_path / "work").mkdir()
    rewrite(plugin, files, tmp_path / "work")
    assert not read_plugin(plugin).is_signed_here


def test_a_plugin_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        read_plugin(tmp_path / "none.zip")
