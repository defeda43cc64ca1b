from __future__ import annotations

import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import bundles
from vermilion.errors import ArtifactError
from vermilion.runtime.archive import map_archive, write_archive
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.write import pack

END_BYTES = 22


@pytest.fixture
def rai(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    bundles.write_small(folder, tmp_path / "scratch")
    pack(folder, tmp_path / "bundle.rai")
    return tmp_path / "bundle.rai"


def archive_of(path: Path, files: dict[str, bytes]) -> Path:
    source = path.parent / "source"
    source.mkdir(exist_ok=True)
    members = []
    for number, (name, data) in enumerate(files.items()):
        (source / str(number)).write_bytes(data)
        members.append((name, source / str(number)))
    write_archive(path, members)
    return path


def test_what_is_written_is_read_and_aligned(tmp_path: Path) -> None:
    files = {"a": b"", "b/c.bin": bytes(range(256)) * 99, "ü": b"x", "d" * 150: b"yy"}
    path = archive_of(tmp_path / "a.rai", files)
    found = map_archive(path)
    assert {name: bytes(view) for name, view in found.items()} == files
    for view in found.values():
        if len(view):
            assert np.frombuffer(view, np.uint8).ctypes.data % 64 == 0


def test_other_tools_can_read_it(rai: Path) -> None:
    with zipfile.ZipFile(rai) as archive:
        assert archive.testzip() is None
        assert "manifest.json" in archive.namelist()


def test_files_of_over_four_gigabytes(tmp_path: Path) -> None:
    # A sparse file: it takes no room on the disk where holes are kept.
    size = (1 << 32) + 5
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(size)
    path = tmp_path / "a.rai"
    _write_sparse(path, {"big": size, "small": 3})
    found = map_archive(path)
    assert len(found["big"]) == size
    assert bytes(found["small"]) == bytes(3)


def _write_sparse(path: Path, sizes: dict[str, int]) -> None:
    """Write what `write_archive` writes for files of zeros, leaving holes for their bytes."""
    entries = []
    with path.open("wb") as file:
        for name, size in sizes.items():
            raw, start = name.encode(), file.tell()
            padding = -(start + 30 + len(raw) + 4 + 20) % 64
            extra = struct.pack("<HH", 0xD935, padding) + bytes(padding)
            wide = struct.pack("<HHQQ", 1, 16, size, size)
            head = (0x04034B50, 45, 0, 0, 0, 33, 0, 0xFFFFFFFF, 0xFFFFFFFF, len(raw))
            file.write(struct.pack("<IHHHHHIIIHH", *head, len(extra) + 20) + raw + extra + wide)
            file.seek(size, 1)
            entries.append((raw, size, start))
        directory = file.tell()
        for raw, size, start in entries:
            wide = struct.pack("<HHQQQ", 1, 24, size, size, start)
            head = (0x02014B50, 45, 3, 45, 0, 0, 0, 33, 0, 0xFFFFFFFF, 0xFFFFFFFF, len(raw))
            rest = (len(wide), 0, 0, 0, 0o100644 << 16, 0xFFFFFFFF)
            file.write(struct.pack("<IBBHHHHHIIIHHHHHII", *head, *rest) + raw + wide)
        end, count = file.tell(), len(entries)
        length = end - directory
        file.write(
            struct.pack(
                "<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, length, directory
            )
        )
        file.write(struct.pack("<IIQI", 0x07064B50, 0, end, 1))
        file.write(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, length, 2**32 - 1, 0))


@pytest.mark.parametrize("limit", [100, 3000])
def test_between_two_and_four_gigabytes(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From its limit of 2 GiB on, `zipfile` writes 64-bit records whose 32-bit twins still hold
    # true values. A lower limit gives the same records without 2 GiB on the disk.
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", limit)
    files = {"a": b"1" * 2000, "b": b"2" * 90, "c": b"3" * 2000}
    monkeypatch.setattr("vermilion.runtime.archive._ZIP64_FROM_BYTES", limit)
    path = archive_of(tmp_path / "a.rai", files)
    assert b"PK\x06\x06" in path.read_bytes()
    assert {name: bytes(view) for name, view in map_archive(path).items()} == files
    data = bytearray(path.read_bytes())
    path.write_bytes(with_end(6, 7)(data))
    with pytest.raises(ArtifactError, match="two ends disagree"):
        map_archive(path)


# --- tricks ---------------------------------------------------------------------------------------


def end_of(data: bytearray) -> list[int]:
    return list(struct.unpack_from("<IHHHHIIH", data, len(data) - END_BYTES))


def with_end(at: int, value: int) -> Callable[[bytearray], bytearray]:
    def apply(data: bytearray) -> bytearray:
        fields = end_of(data)
        fields[at] = value
        struct.pack_into("<IHHHHIIH", data, len(data) - END_BYTES, *fields)
        return data

    return apply


def with_entry(offset: int, pattern: str, *values: int) -> Callable[[bytearray], bytearray]:
    """Change fields of the directory's first entry."""

    def apply(data: bytearray) -> bytearray:
        struct.pack_into(pattern, data, end_of(data)[6] + offset, *values)
        return data

    return apply


def with_local(offset: int, pattern: str, *values: int) -> Callable[[bytearray], bytearray]:
    """Change fields of the first file's own header."""

    def apply(data: bytearray) -> bytearray:
        struct.pack_into(pattern, data, offset, *values)
        return data

    return apply


def overlapping(data: bytearray) -> bytearray:
    """Let the second entry of the directory point at the first file."""
    first = end_of(data)[6]
    lengths = struct.unpack_from("<HHH", data, first + 28)
    struct.pack_into("<I", data, first + 46 + sum(lengths) + 42, 0)
    return data


def bytes_between(data: bytearray) -> bytearray:
    """Put bytes that belong to no file before the directory."""
    at = end_of(data)[6]
    return with_end(6, at + 64)(data[:at] + bytearray(64) + data[at:])


TRICKS: dict[str, tuple[Callable[[bytearray], bytearray], str]] = {
    "truncated": (lambda d: d[: len(d) // 2], "end is not where it must be"),
    "ends early": (lambda d: d[:-1], "end is not where it must be"),
    "only the start": (lambda d: d[:10], "not a Vermilion bundle"),
    "bytes behind": (lambda d: d + b"MZ", "end is not where it must be"),
    "bytes before": (lambda d: bytearray(b"MZ") + d, "not a Vermilion bundle"),
    "comment": (with_end(7, 5), "end is not where it must be"),
    "more files than there are": (with_end(4, 9), "several volumes"),
    "all counts too high": (
        lambda d: with_end(3, 4000)(with_end(4, 4000)(d)),
        "fewer files than it says",
    ),
    "all counts too low": (lambda d: with_end(3, 1)(with_end(4, 1)(d)), "another length"),
    "no files": (lambda d: with_end(3, 0)(with_end(4, 0)(d)), "another length"),
    "65535 files": (lambda d: with_end(3, 65535)(with_end(4, 65535)(d)), "65535 files"),
    "60000 files": (lambda d: with_end(3, 60000)(with_end(4, 60000)(d)), "60000 files"),
    "several volumes": (with_end(1, 1), "several volumes"),
    "directory elsewhere": (with_end(6, 0), "directory is not where"),
    "huge directory": (with_end(5, 2**31), "at most 4096 files"),
    "64-bit lie": (with_end(6, 2**32 - 1), "directory is not where"),
    "compressed": (with_entry(10, "<H", 8), "is compressed"),
    "sizes disagree": (with_entry(20, "<I", 1), "is compressed"),
    "longer than its header": (with_entry(20, "<II", 2**31, 2**31), "disagrees with the directory"),
    "longer than the archive": (
        lambda d: with_entry(20, "<II", 2**31, 2**31)(with_local(18, "<II", 2**31, 2**31)(d)),
        "longer than the archive",
    ),
    "shorter than it is": (with_entry(20, "<II", 1, 1), "disagrees with the directory"),
    "encrypted": (with_entry(8, "<H", 1), "is encrypted"),
    "sizes after the data": (with_entry(8, "<H", 8), "is encrypted or has no sizes"),
    "link": (with_entry(38, "<I", 0o120777 << 16), "is a link"),
    "device": (with_entry(38, "<I", 0o060777 << 16), "is a link or another thing"),
    "entry comment": (with_entry(32, "<H", 5), "directory is damaged"),
    "name of great length": (with_entry(28, "<H", 60000), "directory is damaged"),
    "entry without signature": (with_entry(0, "<I", 0), "directory is damaged"),
    "starts elsewhere": (with_entry(42, "<I", 7), "overlaps another file, or there is a hole"),
    "starts outside": (with_entry(42, "<I", 2**31), "there is a hole"),
    "64-bit entry": (with_entry(42, "<I", 2**32 - 1), "sizes that are damaged"),
    "overlap": (overlapping, "overlaps another file"),
    "bytes between": (bytes_between, "bytes that belong to no file"),
    "other name inside": (with_local(30, "<B", ord("M")), "does not begin with `manifest"),
    "other name in the directory": (with_entry(46, "<B", ord("M")), "disagrees with the directory"),
    "local compressed": (with_local(8, "<H", 8), "disagrees with the directory"),
    "local size": (with_local(22, "<I", 1), "disagrees with the directory"),
    "local without signature": (with_local(0, "<I", 0x14034B50), "bundle|disagrees"),
    "local extra": (with_local(28, "<H", 65535), "not aligned|disagrees"),
    "name with dots": (
        lambda d: d.replace(b"summary.json", b"../ummary.js"),
        "leads out of the bundle",
    ),
    "absolute name": (lambda d: d.replace(b"summary.json", b"/ummary.json"), "absolute path"),
    "name that is no text": (lambda d: d.replace(b"summary.json", b"\xffummary.json"), "not text"),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_tricky_archive_is_refused(trick: str, rai: Path) -> None:
    change, words = TRICKS[trick]
    rai.write_bytes(change(bytearray(rai.read_bytes())))
    with pytest.raises(ArtifactError, match=words) as error:
        open_artifact(rai)
    assert error.value.hint


@pytest.mark.parametrize("name", ["virus.py", "Model.onnx"])
def test_an_archive_with_more_in_it_is_refused(name: str, rai: Path, tmp_path: Path) -> None:
    files = {name: bytes(view) for name, view in map_archive(rai).items()}
    made = archive_of(tmp_path / "made.rai", {**files, name: files["model.onnx"]})
    with pytest.raises(ArtifactError, match=r"not in its manifest|twice"):
        open_artifact(made)


@pytest.mark.parametrize(
    ("name", "method", "words"),
    [
        ("manifest.json", zipfile.ZIP_DEFLATED, "is compressed"),
        ("manifest.json", zipfile.ZIP_STORED, "not aligned"),
        ("model.onnx", zipfile.ZIP_STORED, "a ZIP that does not begin with `manifest.json`"),
        ("vaiml_par_0/0/partition-info.json", zipfile.ZIP_DEFLATED, "VitisAI"),
        ("key/context.json", zipfile.ZIP_STORED, "VitisAI"),
    ],
)
def test_an_archive_that_another_tool_wrote_is_named(
    name: str, method: int, words: str, tmp_path: Path
) -> None:
    made = tmp_path / "made.rai"
    with zipfile.ZipFile(made, "w", method) as archive:
        archive.writestr(name, b"{}" * 99)
    with pytest.raises(ArtifactError, match=words):
        open_artifact(made)


def test_every_flipped_byte_of_an_archive_is_found_or_harmless(rai: Path, tmp_path: Path) -> None:
    data = rai.read_bytes()
    good = open_artifact(rai)
    expected = {member.name: bytes(good.read(member.name)) for member in good.manifest.members}
    damaged = tmp_path / "damaged.rai"
    random = np.random.default_rng(0)
    weights_at = data.index(bundles.small_weights()["w1"].tobytes()[:64])
    outside = [at for at in range(len(data)) if not weights_at <= at < weights_at + 65536]
    for at in [*random.choice(outside, 400, replace=False), weights_at + 77]:
        changed = bytearray(data)
        changed[at] ^= 1 << int(random.integers(8))
        damaged.write_bytes(changed)
        try:
            reader = open_artifact(damaged)
        except ArtifactError:
            continue
        # Dates, versions and padding say nothing: the content must be what it was.
        assert {name: bytes(reader.read(name)) for name in expected} == expected


@pytest.mark.skipif(sys.platform == "win32", reason="this system counts no process's memory")
@pytest.mark.parametrize("kind", ["million entries", "bomb"])
def test_memory_stays_small(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.rai"
    if kind == "bomb":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("manifest.json", bytes(1 << 28))
    else:
        _write_million_entries(path)
    script = (
        "import sys, resource\n"
        "from vermilion.runtime.bundle import open_bundle\n"
        "from vermilion.errors import ArtifactError\n"
        "from pathlib import Path\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    open_bundle(Path(sys.argv[1]), verify=True)\n"
        "except ArtifactError as error:\n"
        "    print(error.message)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    message, grown_kb = done.stdout.strip().splitlines()
    assert "compressed" in message or "1000000 files" in message
    assert int(grown_kb) < 20_000


def _write_million_entries(path: Path) -> None:
    count = 1_000_000
    entry = struct.pack(
        "<IBBHHHHHIIIHHHHHII", 0x02014B50, 45, 3, 45, 0, 0, 0, 33, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0
    )
    local = (
        struct.pack("<IHHHHHIIIHH", 0x04034B50, 45, 0, 0, 0, 33, 0, 0, 0, 13, 0) + b"manifest.json"
    )
    directory = (entry + b"a") * count
    end = len(local) + len(directory)
    path.write_bytes(
        local
        + directory
        + struct.pack(
            "<IQHHIIQQQQ",
            0x06064B50,
            44,
            45,
            45,
            0,
            0,
            count,
            count,
            len(directory),
            len(local),
        )
        + struct.pack("<IIQI", 0x07064B50, 0, end, 1)
        + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
    )
