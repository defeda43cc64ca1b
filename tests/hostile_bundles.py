"""Bundles that somebody damaged, or wrote to do damage."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

import bundles
from hostile import RUN, Hostile, text_model
from vermilion.runtime.archive import write_archive

Members = dict[str, bytes]
RUN_FOLDER = ("run", "{in}/m", "-o", "{out}/y.npz")

_PART = "vaiml_par_0/part.onnx"
_DIRECTORY_ENTRY, _LOCAL_HEADER, _END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"
_NO_BUNDLE = r"\(.*m(\.rai)?"


def _sound_folder(folder: Path) -> Path:
    """Return a bundle with nothing wrong in it, made once for all cases."""
    made = folder.parent.parent / "sound bundle"
    if not made.is_dir():
        bundles.write_small(made, folder.parent.parent / "sound scratch")
    return made


def _members(folder: Path) -> Members:
    """Return the sound bundle's files, the manifest first, as the single file wants it."""
    sound = _sound_folder(folder)
    files = [path.relative_to(sound).as_posix() for path in sound.rglob("*") if path.is_file()]
    names = ["manifest.json", *sorted(set(files) - {"manifest.json"})]
    return {name: (sound / name).read_bytes() for name in names}


def _write(folder: Path, members: Sequence[tuple[str, bytes]]) -> None:
    """Write the single file as we write it, whatever the names are."""
    sources = folder.parent / "sources"
    sources.mkdir()
    listed = []
    for number, (name, data) in enumerate(members):
        (sources / str(number)).write_bytes(data)
        listed.append((name, sources / str(number)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns of a name that it has already
        write_archive(folder / "m.rai", listed)


def _archive_case(
    name: str, change: Callable[[Members], Sequence[tuple[str, bytes]]], says: str
) -> Hostile:
    """Return a case whose single file holds what `change` makes of the sound one's members."""

    def build(folder: Path) -> Sequence[str]:
        _write(folder, change(_members(folder)))
        return RUN

    return Hostile(f"bundle-{name}", build, says)


def _with(name: str, data: bytes = b"evil") -> Callable[[Members], Sequence[tuple[str, bytes]]]:
    return lambda members: [*members.items(), (name, data)]


def _bytes_case(name: str, change: Callable[[bytes], bytes], says: str) -> Hostile:
    """Return a case whose single file is what `change` makes of the sound one's bytes."""

    def build(folder: Path) -> Sequence[str]:
        _write(folder, list(_members(folder).items()))
        path = folder / "m.rai"
        path.write_bytes(change(path.read_bytes()))
        return RUN

    return Hostile(f"bundle-{name}", build, says)


def _patched(signature: bytes, offset: int, form: str, value: int) -> Callable[[bytes], bytes]:
    """Overwrite a field of the last header that has this signature."""

    def change(data: bytes) -> bytes:
        at = data.rindex(signature) + offset
        packed = struct.pack(form, value)
        return data[:at] + packed + data[at + len(packed) :]

    return change


def _compressed(folder: Path) -> Sequence[str]:
    with zipfile.ZipFile(folder / "m.rai", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in _members(folder).items():
            archive.writestr(name, data)
        archive.writestr("bomb", bytes(50_000_000))
    return RUN


def _million_entries(folder: Path) -> Sequence[str]:
    entry = struct.pack(
        "<IBBHHHHHIIIHHHHHII", 0x02014B50, 20, 3, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0
    )
    name = b"manifest.json"
    local = struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0) + name
    count = 1_000_000
    directory = (entry + b"a") * count
    end64 = struct.pack(
        "<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, len(directory), len(local)
    )
    locator = struct.pack("<IIQI", 0x07064B50, 0, len(local) + len(directory), 1)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    (folder / "m.rai").write_bytes(local + directory + end64 + locator + end)
    return RUN


def _flipped(name: str) -> Callable[[Members], Sequence[tuple[str, bytes]]]:
    def change(members: Members) -> Sequence[tuple[str, bytes]]:
        data = bytearray(members[name])
        data[len(data) // 2] ^= 1
        return list({**members, name: bytes(data)}.items())

    return change


def _manifest_case(
    name: str, change: Callable[[dict[str, Any]], object], says: str, *, seal: bool = False
) -> Hostile:
    """Return a case whose manifest is what `change` does to it, or gives; `seal` makes it fit."""

    def with_manifest(members: Members) -> Sequence[tuple[str, bytes]]:
        manifest = json.loads(members["manifest.json"])
        data = change(manifest)
        if not isinstance(data, bytes):
            data = _sealed(manifest) if seal else json.dumps(manifest).encode()
        return list({**members, "manifest.json": data}.items())

    return _archive_case(f"manifest-{name}", with_manifest, says)


def _sealed(manifest: Mapping[str, Any]) -> bytes:
    """Return the manifest with the digest that it should have, as somebody with intent would."""
    rest = {key: value for key, value in manifest.items() if key not in ("digest", "seal")}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return json.dumps({**manifest, "digest": hashlib.sha256(text.encode()).hexdigest()}).encode()


def _part_case(
    name: str, change: Callable[[onnx.ModelProto], onnx.ModelProto | None], says: str
) -> Hostile:
    """Return a case with another `part.onnx`, sealed so that every digest fits."""

    def with_part(members: Members) -> Sequence[tuple[str, bytes]]:
        part = onnx.ModelProto.FromString(members[_PART])
        data = (change(part) or part).SerializeToString()
        manifest = json.loads(members["manifest.json"])
        for row in manifest["members"]:
            if row["name"] == _PART:
                row.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
        return list({**members, _PART: data, "manifest.json": _sealed(manifest)}.items())

    return _archive_case(f"part-{name}", with_part, says)


def _external(**facts: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        entries = {entry.key: entry for entry in model.graph.initializer[0].external_data}
        for key, value in facts.items():
            entries[key].value = value

    return change


def _external_in_constant(model: onnx.ModelProto) -> None:
    node = model.graph.node.add(op_type="Constant", output=["unread"])
    attribute = node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    attribute.t.data_type = onnx.TensorProto.FLOAT
    attribute.t.dims.append(1)
    attribute.t.data_location = onnx.TensorProto.EXTERNAL
    attribute.t.external_data.add(key="location", value="/etc/passwd")


def _other_shape(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = 1 << 40


def _terabytes(model: onnx.ModelProto) -> onnx.ModelProto:
    return text_model(
        """first (float[n, 64] x) => (float[n, 128] h) {
          s = Constant <value = int64[2] {1000000000, 128}> ()
          h = ConstantOfShape (s)
        }"""
    )


def _folder_case(name: str, change: Callable[[Path], None], says: str) -> Hostile:
    def build(folder: Path) -> Sequence[str]:
        shutil.copytree(_sound_folder(folder), folder / "m")
        change(folder / "m")
        return RUN_FOLDER

    return Hostile(f"folder-{name}", build, says)


def _linked_member(bundle: Path) -> None:
    moved = bundle.parent / "model.onnx"
    (bundle / "model.onnx").rename(moved)
    (bundle / "model.onnx").symlink_to(moved)


def _member_is_folder(bundle: Path) -> None:
    (bundle / "model.onnx").unlink()
    (bundle / "model.onnx").mkdir()


def _vendor_folder(folder: Path) -> Sequence[str]:
    inner = folder / "m" / "vaiml_par_0" / "0"
    inner.mkdir(parents=True)
    (folder / "m" / "context.json").write_text("{}")
    (inner / "x.xmodel").write_bytes(b"x")
    return RUN_FOLDER


def _vendor_archive(folder: Path) -> Sequence[str]:
    with zipfile.ZipFile(folder / "m.rai", "w") as archive:
        archive.writestr("context.json", "{}")
        archive.writestr("vaiml_par_0/0/x.xmodel", "x")
    return RUN


def _vendor_file(folder: Path) -> Sequence[str]:
    (folder / "m.rai").write_bytes(b"\x7fELF" + bytes(100))
    return RUN


_MEMBERS = (
    "manifest.json",
    "model.onnx",
    "weights.bin",
    _PART,
    "cpu_par_0/part.onnx",
    "summary.json",
)
_DEEP = b'{"a":' + b"[" * 200_000
_HUGE = b"9" * 6000
_LINK_MODE = 0o120777

_POSIX_CASES = (_folder_case("member-is-link", _linked_member, "is a link"),)

CASES: tuple[Hostile, ...] = (
    Hostile("bundle-missing", lambda folder: RUN, "no such|there is no compiled model", 2),
    _archive_case("traversal", _with("../evil"), "leads out of the bundle"),
    _archive_case("traversal-inside", _with("a/../../evil"), "leads out of the bundle"),
    _archive_case("absolute", _with("/etc/evil"), "is an absolute path"),
    _archive_case("drive", _with("C:/evil"), "is an absolute path"),
    _archive_case("backslash", _with("..\\evil"), "character that file names must not have"),
    _archive_case("device-name", _with("con.txt"), "Windows keeps for itself"),
    _archive_case("escape-codes", _with("\x1b[2Jevil"), r"`\\x1b\[2Jevil` has a character"),
    _archive_case("duplicate", _with("model.onnx"), "stands in the bundle twice"),
    _archive_case("duplicate-by-case", _with("MODEL.onnx"), "stands in the bundle twice"),
    _archive_case("not-listed", _with("extra.bin"), "not in its manifest"),
    _archive_case(
        "without-model",
        lambda m: [(n, d) for n, d in m.items() if n != "model.onnx"],
        "`model.onnx` is missing",
    ),
    _archive_case(
        "without-manifest",
        lambda m: [(n, d) for n, d in m.items() if n != "manifest.json"],
        "ZIP that does not begin with `manifest.json`",
    ),
    _archive_case("nothing-inside", lambda members: [], "not a (Vermilion bundle|compiled model)"),
    *(
        _archive_case(f"flipped-{name.replace('/', '-')}", _flipped(name), _NO_BUNDLE)
        for name in _MEMBERS
    ),
    Hostile("bundle-compressed", _compressed, "is compressed"),
    Hostile("bundle-million-entries", _million_entries, "at most 4096 files"),
    _bytes_case("link-entry", _patched(_DIRECTORY_ENTRY, 40, "<H", _LINK_MODE), "is a link"),
    _bytes_case("encrypted-entry", _patched(_DIRECTORY_ENTRY, 8, "<H", 1), "encrypted"),
    _bytes_case("overlapping", _patched(_DIRECTORY_ENTRY, 42, "<I", 0), "overlaps"),
    _bytes_case(
        "entry-size-lies", _patched(_DIRECTORY_ENTRY, 24, "<I", 1 << 30), "compressed|longer"
    ),
    _bytes_case("header-disagrees", _patched(_LOCAL_HEADER, 22, "<I", 7), "disagrees"),
    _bytes_case("directory-elsewhere", _patched(_END, 16, "<I", 0), "directory is not where"),
    _bytes_case("entry-count-lies", _patched(_END, 10, "<H", 3), "several volumes"),
    _bytes_case(
        "zip64-missing",
        _patched(_END, 16, "<I", 0xFFFFFFFF),
        "64-bit end is missing|directory is not where",
    ),
    _bytes_case(
        "zip64-entry", _patched(_DIRECTORY_ENTRY, 42, "<I", 0xFFFFFFFF), "sizes that are damaged"
    ),
    _bytes_case("bytes-after", lambda data: data + b"x", "end is not where"),
    _bytes_case(
        "bytes-before", lambda data: b"MZ" + data, "not a (Vermilion bundle|compiled model)"
    ),
    *(
        _bytes_case(
            f"cut-to-{part}-percent",
            lambda data, part=part: data[: len(data) * part // 100],
            "end is not where",
        )
        for part in (20, 60, 95)
    ),
    _bytes_case("cut-to-ten-bytes", lambda data: data[:10], "too short|not a Vermilion bundle"),
    _manifest_case("extra-key", lambda m: m.update(evil=1), "does not know: `evil`", seal=True),
    _manifest_case("missing-key", lambda m: m.pop("target"), "has no `target`"),
    _manifest_case("digest-of-other", lambda m: m.update(target="strix"), "digest"),
    _manifest_case("wrong-type", lambda m: m.update(parts="none"), "not a list", seal=True),
    _manifest_case(
        "list-of-numbers", lambda m: m.update(members=[1]), "is not an object", seal=True
    ),
    _manifest_case(
        "negative-size", lambda m: m["members"][0].update(size=-1), "zero or more", seal=True
    ),
    _manifest_case(
        "size-lies", lambda m: m["members"][0].update(size=1 << 50), "the manifest says", seal=True
    ),
    _manifest_case(
        "huge-number", lambda m: m["parts"][0].update(gops=10**400), "too large|finite", seal=True
    ),
    _manifest_case("too-many-digits", lambda m: b'{"format_version": ' + _HUGE + b"}", "not JSON"),
    _manifest_case("infinity", lambda m: b'{"format_version": Infinity}', "not a JSON number"),
    _manifest_case(
        "infinity-by-exponent",
        lambda m: json.dumps(m).replace('"gops": ', '"gops": 1e999, "g": ', 1).encode(),
        "finite",
    ),
    _manifest_case("deep-nesting", lambda m: _DEEP, "not JSON"),
    _manifest_case("key-twice", lambda m: b'{"digest": "", "digest": ""}', "twice in one object"),
    _manifest_case("not-utf-8", lambda m: b'{"\xff": 1}', "not JSON"),
    _manifest_case("too-long", lambda m: b" " * (17 << 20), "the manifest has"),
    _manifest_case("not-an-object", lambda m: b"[]", "is not an object"),
    _manifest_case(
        "other-version", lambda m: m.update(format_version=99), "format version 99", seal=True
    ),
    _manifest_case("unknown-target", lambda m: m.update(target="evil"), "evil", seal=True),
    _manifest_case(
        "unknown-backend", lambda m: m["parts"][0].update(backend="evil"), "evil", seal=True
    ),
    _manifest_case(
        "part-name-leads-out", lambda m: m["parts"][0].update(name="../x"), r"`\.\./x", seal=True
    ),
    _manifest_case(
        "part-input-from-nowhere",
        lambda m: m["parts"][0].update(inputs=["no"]),
        "`no`, which nothing makes",
        seal=True,
    ),
    _manifest_case(
        "output-from-nowhere", lambda m: m["outputs"][0].update(name="no"), "`no`", seal=True
    ),
    replace(
        _manifest_case(
            "other-input-type",
            lambda m: m["inputs"][0].update(type="tensor(int8)"),
            "the model wants int8",
            seal=True,
        ),
        exit_code=2,
    ),
    _part_case("weight-outside", _external(location="../../secret.bin"), "not in `weights.bin`"),
    _part_case("weight-beyond-the-end", _external(offset=str(1 << 40)), "after the end"),
    _part_case("weight-offset-no-number", _external(offset="-64"), "that is none"),
    _part_case("weight-of-other-shape", _other_shape, "does not fit its shape"),
    _part_case("constant-outside", _external_in_constant, "lies outside the model"),
    _part_case("asks-for-terabytes", _terabytes, "memory|alloc"),
    _folder_case(
        "member-missing",
        lambda bundle: (bundle / "weights.bin").unlink(),
        "`weights.bin` cannot be read",
    ),
    _folder_case("member-is-folder", _member_is_folder, "`model.onnx`"),
    _folder_case(
        "member-cut", lambda bundle: (bundle / "weights.bin").write_bytes(b"x"), "the manifest says"
    ),
    _folder_case(
        "without-manifest", lambda bundle: (bundle / "manifest.json").unlink(), "no `manifest.json`"
    ),
    _folder_case(
        "manifest-is-folder",
        lambda b: ((b / "manifest.json").unlink(), (b / "manifest.json").mkdir()),
        "manifest.json",
    ),
    Hostile("vendor-cache-folder", _vendor_folder, "AMD's VitisAI provider"),
    Hostile("vendor-bundle", _vendor_archive, "AMD's VitisAI provider"),
    Hostile("vendor-bundle-other-kind", _vendor_file, "AMD's VitisAI provider"),
    *(_POSIX_CASES if sys.platform != "win32" else ()),
)
