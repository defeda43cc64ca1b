"""Files that people hand over are read within bounds, and written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vermilion.errors import DeviceError, ModelError, OptionError, is_full
from vermilion.files import (
    MAX_BYTES,
    aside_of,
    check_not_source,
    check_writable,
    hint_of,
    not_there,
    read_object,
    resolved,
    shown,
    write_file,
    writing,
)


def test_an_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"a": [1, "x"]}')
    assert read_object(tmp_path / "a.json") == {"a": [1, "x"]}


@pytest.mark.parametrize("data", [b"[" * 100_000, b"\xff", b"", b"[1]", b"3", b'{"a": 1'])
def test_what_is_no_object(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(ModelError, match=r"JSON.*a\.json"):
        read_object(tmp_path / "a.json")
    with pytest.raises(OptionError, match="hint: do it otherwise"):
        read_object(tmp_path / "a.json", OptionError, hint="do it otherwise")


def test_what_is_too_large_or_not_there(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ModelError, match="more than 8 MiB"):
        read_object(tmp_path / "a.json")
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        read_object(tmp_path / "b.json")


def test_values_in_messages() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    assert shown(deep) == "[[]]" or shown(deep) == "a list"
    assert shown([1, "x", None, True]) == "[1, 'x', null, true]"
    assert shown(10**400) == "a number of 401 digits"
    assert shown({"a": deep}) == "an object of 1"
    assert len(shown("x" * 100)) < 45


@contextmanager
def files_up_to(size_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes: a disk that is full."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_midway(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    for before in (None, "as it was"):
        if before is not None:
            place.write_text(before)
        with files_up_to(1000), pytest.raises(DeviceError, match=r"cannot be written.*a\.json"):
            write_file(place, "x" * 5000)
        found = [file.name for file in tmp_path.iterdir()]
        assert found == ([] if before is None else ["a.json"])
    assert place.read_text() == "as it was"


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    place, link = tmp_path / "deep" / "a.txt", tmp_path / "link"
    write_file(place, "one\n")
    place.chmod(0o640)
    link.symlink_to(place)
    write_file(link, b"two\n")
    assert link.is_symlink()
    assert place.read_bytes() == b"two\n"
    assert place.stat().st_mode & 0o777 == 0o640
    assert [file.name for file in place.parent.iterdir()] == ["a.txt"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path, tmp_path / "file" / "a.txt"):
        for attempt in (check_writable, lambda place: write_file(place, "")):
            with pytest.raises(DeviceError, match="cannot be written"):
                attempt(place)
    check_writable(tmp_path / "new.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "make room"),
        (OSError("384 requested and 0 written"), "make room"),
        (PermissionError(errno.EACCES, "Permission denied"), "may write to"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "check the path"),
        (OSError(errno.EIO, "Input/output error"), "can be written to and has room"),
    ],
    ids=str,
)
def test_what_cannot_be_written_is_told_with_its_place(error: OSError, hint: str) -> None:
    assert hint in hint_of(error)
    assert is_full(error) == (hint == "make room")
    told = pytest.raises(DeviceError, match=f"the model cannot be written: .*o.rai.*\n.*{hint}")
    with told, writing(Path("o.rai"), "the model"):
        raise error


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "resnet.onnx").touch()
    gone = FileNotFoundError(errno.ENOENT, "No such file or directory")
    near = not_there(tmp_path / "resnt.onnx", gone)
    assert (near.message, near.where) == ("no such model", str(tmp_path / "resnt.onnx"))
    assert near.hint == f"did you mean `{tmp_path / 'resnet.onnx'}`?"
    assert not_there(tmp_path / "none" / "m.onnx", gone).hint == "check the path"
    (tmp_path / "link.onnx").symlink_to("moved.onnx")
    assert "a file that is not there, `moved.onnx`" in str(not_there(tmp_path / "link.onnx", gone))
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert "cannot be read: Permission denied" in str(not_there(tmp_path / "a.onnx", denied))


def test_an_output_is_not_its_own_source(tmp_path: Path) -> None:
    model, link = tmp_path / "m.onnx", tmp_path / "link.onnx"
    model.touch()
    link.symlink_to(model)
    check_not_source(tmp_path / "q.onnx", model)
    check_not_source(model, b"a model in memory")
    for output in (model, link, tmp_path / "x" / ".." / "m.onnx"):
        with pytest.raises(OptionError, match="would replace the model"):
            check_not_source(output, str(model))


def test_links_in_a_circle_are_no_fault(tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    assert resolved(circle) == tmp_path.resolve() / "circle"
    check_not_source(tmp_path / "m.onnx", circle)
    write_file(circle, "text")
    assert circle.read_text(encoding="utf-8") == "text"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    write_file(Path(f"/dev/fd/{writer}"), "words")
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert stream.read() == "words"


def test_what_is_left_aside_goes(tmp_path: Path) -> None:
    place = tmp_path / "made"
    with aside_of(place, ".part") as aside:
        assert (aside.parent, aside.suffix) == (tmp_path, ".part")
        aside.mkdir()
        (aside / "file").write_text("half")
    assert list(tmp_path.iterdir()) == []
    with aside_of(place) as aside:
        aside.write_text("all")
        aside.replace(place)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert place.read_text() == "all"


def test_a_place_whose_name_is_as_long_as_names_can_be(tmp_path: Path) -> None:
    for name in ("a" * 251 + ".npz", "\N{CROSS MARK}" * 83 + ".npz"):
        write_file(tmp_path / name, "x")
        assert (tmp_path / name).read_text() == "x"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.npz"
    os.mkfifo(pipe)
    with pytest.raises(DeviceError, match="no file"), writing(pipe), aside_of(pipe) as aside:
        aside.replace(pipe)
    assert pipe.is_fifo()
