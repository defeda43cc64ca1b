"""Files that are no ONNX model: foreign, cut short, or made to fill the memory of whoever reads."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import struct
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from hostile import COMPILE, RUN, Hostile, field, file_case, sound_model, varint

WHOLE = sound_model().SerializeToString()
FIRST_FIELD = b"\x08\x08"  # ir_version: 8
OPSET = field(8, b"\x10\x11")  # opset_import: version 17
NODE, INPUT, GRAPH = 1, 1, 7  # NodeProto in GraphProto, its input, GraphProto in ModelProto


class _Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch pwned",)


def _zip(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("m.onnx")
        info.size = len(WHOLE)
        archive.addfile(info, io.BytesIO(WHOLE))
    return out.getvalue()


def _npy() -> bytes:
    out = io.BytesIO()
    np.save(out, np.zeros(3))
    return out.getvalue()


def _graph(payload: bytes) -> bytes:
    return FIRST_FIELD + field(GRAPH, payload) + OPSET


def _nested_bodies(depth: int) -> bytes:
    # Each level: a node whose attribute holds a graph.
    graph = b""
    for _ in range(depth):
        graph = field(NODE, field(5, field(1, b"b") + field(6, graph) + b"\xa0\x01\x05"))
    return _graph(graph + field(12, field(1, b"y")))


def _nested_types(depth: int) -> bytes:
    kind = b""
    for _ in range(depth):
        kind = field(4, field(1, kind))  # sequence_type { elem_type }
    return _graph(field(NODE, b"") + field(11, field(1, b"x") + field(2, kind)))


def _folder(folder: Path) -> Sequence[str]:
    (folder / "m.onnx").mkdir()
    return COMPILE


def _nothing(folder: Path) -> Sequence[str]:
    return COMPILE


def _device(folder: Path) -> Sequence[str]:
    return [word.replace("{in}/m.onnx", "/dev/zero") for word in COMPILE]


def _onnx_as_bundle(folder: Path) -> Sequence[str]:
    (folder / "m.rai").write_bytes(WHOLE)
    return RUN


def _tensorflow_graph() -> bytes:
    # GraphDef: nodes in field 1, versions in field 4.
    return field(1, field(1, b"x") + field(2, b"Placeholder")) + field(4, b"\x08\x15")


_BOMB = r"unfolds into more than 512 MiB"
_CUT = r"not an ONNX model, or it is cut short or nested too deep"
_NO_GRAPH = r"it has no graph or no IR version"

CASES: tuple[Hostile, ...] = (
    Hostile("no-file", _nothing, "no such model", 2),
    Hostile("folder", _folder, "this is a folder", 2),
    Hostile("device-file", _device, "not a regular file|no such model", 2),
    file_case("empty", b"", "the file is empty"),
    file_case("one-byte", b"\x08", f"{_CUT}|{_NO_GRAPH}"),
    file_case("header-only", FIRST_FIELD, _NO_GRAPH),
    *(
        file_case(f"cut-after-{percent}-percent", WHOLE[: len(WHOLE) * percent // 100], _CUT)
        for percent in (10, 50, 90)
    ),
    file_case("cut-by-one-byte", WHOLE[:-1], f"{_CUT}|imports no operator set|opset 0"),
    file_case("zeros", bytes(4096), f"{_CUT}|{_NO_GRAPH}"),
    *(
        file_case(
            f"random-bytes-{seed}", random.Random(seed).randbytes(5000), f"{_CUT}|{_NO_GRAPH}"
        )
        for seed in range(4)
    ),
    file_case("pickle", pickle.dumps(_Bomb()), "a Python pickle"),
    file_case("pickle-protocol-2", pickle.dumps(_Bomb(), protocol=2), "a Python pickle"),
    file_case("pickle-protocol-0", pickle.dumps(_Bomb(), protocol=0), f"{_CUT}|{_NO_GRAPH}"),
    file_case("torch-zip", _zip(**{"archive/data.pkl": pickle.dumps(_Bomb())}), "a ZIP archive"),
    file_case("empty-zip", _zip(), "a ZIP archive"),
    file_case("safetensors", struct.pack("<Q", 2) + b'{"a":{}}', "a safetensors file"),
    file_case("gguf", b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 1 << 62), "a GGUF"),
    file_case("tflite", b"\x1c\0\0\0TFL3" + bytes(64), "TensorFlow Lite"),
    file_case("ort-format", b"\x24\0\0\0ORTM" + bytes(64), r"`\.ort` model"),
    file_case("hdf5", b"\x89HDF\r\n\x1a\n" + bytes(64), "Keras or HDF5"),
    file_case("npy", _npy(), "a NumPy array"),
    file_case("gzip", gzip.compress(WHOLE), "a gzip archive"),
    file_case("tar", _tar(), "a tar archive"),
    file_case("xml", b'<?xml version="1.0"?><net/>', "an XML file"),
    file_case("html", b"\n\n <!doctype HTML><html>404</html>", "a web page"),
    file_case("git-lfs", b"version https://git-lfs.github.com/spec/v1\noid x\n", "Git LFS pointer"),
    file_case("json", b'{"error": "not found"}', "a JSON file"),
    file_case("elf", b"\x7fELF\x02\x01\x01" + bytes(64), "a program or library"),
    file_case("windows-program", b"MZ\x90\0" + bytes(64), "a Windows program"),
    file_case("picture", b"\x89PNG\r\n\x1a\n" + bytes(64), "an image"),
    file_case("tensorflow-graph", _tensorflow_graph(), _NO_GRAPH),
    file_case(
        "bundle-as-model", _zip(**{"manifest.json": b"{}"}), "compiled bundle", file_name="m.rai"
    ),
    Hostile("model-as-bundle", _onnx_as_bundle, "not a (Vermilion bundle|compiled model)"),
    file_case("bomb-of-nodes", lambda: _graph(field(NODE, b"") * 3_000_000), _BOMB),
    file_case("bomb-of-weights", lambda: _graph(field(5, b"") * 3_000_000), _BOMB),
    file_case("bomb-of-names", lambda: _graph(field(NODE, field(INPUT, b"a") * 4_000_000)), _BOMB),
    file_case(
        "bomb-of-numbers",
        lambda: _graph(
            field(NODE, field(5, field(1, b"k") + b"\xa0\x01\x07" + field(8, bytes(60_000_000))))
        ),
        _BOMB,
    ),
    file_case("nested-bodies", lambda: _nested_bodies(25), f"{_CUT}|nested more than"),
    file_case("nested-bodies-deeper", lambda: _nested_bodies(2000), _CUT),
    file_case("nested-types", lambda: _nested_types(3000), _CUT),
    file_case("length-past-the-end", FIRST_FIELD + b"\x3a" + varint(1 << 62), _CUT),
    file_case("endless-number", b"\x08" + b"\xff" * 100, _CUT),
    file_case(
        "name-not-utf-8",
        WHOLE.replace(b"Relu", b"Re\xff\xfe"),
        "`op_type` of a NodeProto is not UTF-8",
    ),
)

assert WHOLE.count(b"Relu") == 1
assert onnx.ModelProto.FromString(WHOLE)
