"""Bundles that somebody, or a disk, has changed, and files that another tool wrote."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bundles
from vermilion.errors import ArtifactError
from vermilion.runtime.artifact import ArtifactReader, open_artifact
from vermilion.runtime.manifest import MANIFEST_FILE


def edited(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    """Change the manifest and give it the digest that it then has: an attack, not an accident."""

    def apply(folder: Path) -> None:
        bundles.edit_manifest(folder, change)

    return apply


def unsealed(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        bundles.edit_manifest(folder, change, seal=False)

    return apply


def flip(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)

    return apply


def replaced(name: str, data: bytes) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return apply


def link(folder: Path) -> None:
    data = (folder / "model.onnx").read_bytes()
    (folder.parent / "secret").write_bytes(data)
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").symlink_to(folder.parent / "secret")


def pipe(folder: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("this system has no pipes in folders")
    (folder / "model.onnx").unlink()
    os.mkfifo(folder / "model.onnx")


def link_folder(folder: Path) -> None:
    (folder / "cpu_par_0").rename(folder.parent / "moved")
    (folder / "cpu_par_0").symlink_to(folder.parent / "moved")


def member(rows: dict[str, object], at: int = 0) -> dict[str, object]:
    members = rows["members"]
    assert isinstance(members, list)
    return members[at]


def part(rows: dict[str, object], at: int = 0) -> dict[str, object]:
    parts = rows["parts"]
    assert isinstance(parts, list)
    return parts[at]


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "flipped weight": (flip("weights.bin"), "`weights.bin` is not what was written"),
    "flipped model": (flip("model.onnx"), "`model.onnx` is not what was written"),
    "flipped summary": (flip("summary.json"), "`summary.json` is not what was written"),
    "truncated weights": (
        lambda folder: (folder / "weights.bin").write_bytes(b"short"),
        "`weights.bin` has 5 bytes, the manifest says 65536",
    ),
    "missing file": (lambda f: (f / "summary.json").unlink(), "`summary.json` cannot be read"),
    "link": (link, "`model.onnx` is a link"),
    "pipe": (pipe, "`model.onnx` is not a file"),
    "linked folder": (link_folder, "`cpu_par_0/part.onnx` is a link"),
    "empty manifest": (replaced(MANIFEST_FILE, b""), "not JSON"),
    "truncated manifest": (replaced(MANIFEST_FILE, b'{"format_version": 1'), "not JSON"),
    "deep manifest": (replaced(MANIFEST_FILE, b"[" * 100_000), "not JSON"),
    "binary manifest": (replaced(MANIFEST_FILE, b"\xff\xfe"), "not JSON"),
    "huge number": (
        replaced(MANIFEST_FILE, b'{"format_version": ' + b"9" * 9999 + b"}"),
        "not JSON",
    ),
    "not a number": (replaced(MANIFEST_FILE, b'{"format_version": NaN}'), "not JSON"),
    "key twice": (
        replaced(MANIFEST_FILE, b'{"format_version": 1, "format_version": 1}'),
        "a key stands twice",
    ),
    "list": (replaced(MANIFEST_FILE, b"[]"), "is not an object"),
    "other manifest": (replaced(MANIFEST_FILE, b'{"name": "app"}'), "no `format_version`"),
    "unknown version": (edited(lambda r: r.update(format_version=99)), "format version 99"),
    "version of a wrong type": (
        edited(lambda r: r.update(format_version="1")),
        "`format_version` that is not a whole number",
    ),
    "boolean version": (edited(lambda r: r.update(format_version=True)), "not a whole number"),
    "missing key": (edited(lambda r: r.pop("target")), "has no `target`"),
    "unknown key": (edited(lambda r: r.update(extra=1)), "does not know: `extra`"),
    "wrong type": (edited(lambda r: r.update(parts={})), "`parts` that is not a list"),
    "wrong type inside": (edited(lambda r: part(r).update(gops="1")), "`gops` that is not a"),
    "infinite": (
        edited(lambda r: part(r).update(gops=float("1e400"))),
        "not JSON|not a finite number",
    ),
    "negative": (edited(lambda r: part(r).update(operators=-1)), "not a whole number"),
    "options of numbers": (edited(lambda r: r.update(options={"a": 1})), "object of strings"),
    "digest": (unsealed(lambda r: r.update(target="strix")), "digest that it states"),
    "cache digest": (edited(lambda r: r.update(cache_digest="0" * 64)), "cache digest"),
    "no sha256": (edited(lambda r: member(r).update(sha256="0")), "a sha256 that is none"),
    "path upwards": (
        edited(lambda r: member(r).update(name="../secret")),
        "`../secret` leads out of the bundle",
    ),
    "path up from inside": (
        edited(lambda r: member(r).update(name="a/../../secret")),
        "leads out of the bundle",
    ),
    "absolute path": (edited(lambda r: member(r).update(name="/etc/passwd")), "an absolute path"),
    "drive": (edited(lambda r: member(r).update(name="C:/x")), "an absolute path"),
    "backslash": (edited(lambda r: member(r).update(name="..\\x")), "a character that file names"),
    "null": (edited(lambda r: member(r).update(name="a\0b")), "a character that file names"),
    "device name": (edited(lambda r: member(r).update(name="NUL.txt")), "Windows keeps"),
    "surrogate": (edited(lambda r: member(r).update(name="\ud800")), "is not text"),
    "deep path": (edited(lambda r: member(r).update(name="a/b/c/d/e")), "lies too deep"),
    "name twice": (
        edited(lambda r: r["members"].append(dict(member(r), name="MODEL.onnx"))),  # type: ignore[attr-defined]
        "twice",
    ),
    "too many files": (
        edited(lambda r: r.update(members=[dict(member(r), name=f"f{i}") for i in range(5000)])),
        "5000 files",
    ),
    "lists itself": (
        edited(lambda r: member(r).update(name=MANIFEST_FILE)),
        "the manifest lists itself",
    ),
    "part file not listed": (
        edited(lambda r: part(r).update(files=["other"])),
        "`vaiml_par_0/other` is used and not listed",
    ),
    "part twice": (
        edited(lambda r: r["parts"].append(part(r))),  # type: ignore[attr-defined]
        "two parts are called",
    ),
    "part out of nothing": (
        edited(lambda r: part(r).update(inputs=["q"])),
        "wants `q`, which nothing makes",
    ),
    "cycle of parts": (
        edited(lambda r: part(r).update(inputs=["y"])),
        "wants `y`, which nothing makes",
    ),
    "made twice": (edited(lambda r: part(r, 1).update(outputs=["h"])), "`h` a second time"),
    "shape of words": (
        edited(lambda r: r.update(inputs=[{"name": "x", "type": "t", "shape": [1.5]}])),
        "a dimension that is none",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_changed_folder_is_refused(case: str, tmp_path: Path) -> None:
    change, words = HOSTILE[case]
    folder = tmp_path / "bundle"
    bundles.write_small(folder, tmp_path / "scratch")
    change(folder)
    with pytest.raises(ArtifactError, match=words) as error:
        open_artifact(folder)
    assert error.value.hint


@pytest.mark.parametrize(
    "made",
    ["context.json", "model.xmodel", "vaiml_par_0/0/flexmlrt-hsi.json", "key/key.rai"],
)
def test_a_vendor_cache_folder_is_named(made: str, tmp_path: Path) -> None:
    path = tmp_path / made
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"{}")
    with pytest.raises(ArtifactError, match="VitisAI") as error:
        open_artifact(path.parent if path.suffix == ".rai" else tmp_path)
    assert "vermilion compile" in error.value.hint


def test_a_vendor_rai_is_named(tmp_path: Path) -> None:
    path = tmp_path / "minilm.rai"
    path.write_bytes(b"\x00RAI" + bytes(1000))
    with pytest.raises(ArtifactError, match="VitisAI"):
        open_artifact(path)


@pytest.mark.parametrize("made", ["empty folder", "nothing", "model.onnx", "words.txt"])
def test_what_is_no_bundle_is_said_to_be_none(made: str, tmp_path: Path) -> None:
    path = tmp_path / made
    if made == "empty folder":
        path.mkdir()
    elif made != "nothing":
        path.write_bytes(b"\x08\x09words")
    with pytest.raises(ArtifactError, match=r"no compiled model|not a compiled model") as error:
        open_artifact(path)
    assert "vermilion compile" in error.value.hint


def test_without_verifying_a_flipped_byte_passes_and_a_missing_one_does_not(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "bundle"
    bundles.write_small(folder, tmp_path / "scratch")
    flip("weights.bin")(folder)
    assert isinstance(open_artifact(folder, verify=False), ArtifactReader)
    (folder / "weights.bin").write_bytes(b"")
    with pytest.raises(ArtifactError, match="0 bytes"):
        open_artifact(folder, verify=False)
