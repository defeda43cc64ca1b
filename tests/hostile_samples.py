"""Inputs and calibration data that do not fit, or were made to do damage."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from hostile import Hostile, sound_model

_RUN = ("run", "{in}/m.onnx", "-o", "{out}/y.npz")
_QUANTIZE = ("quantize", "{in}/m.onnx", "-o", "{out}/q.onnx", "-n", "2")
_COMPILE = ("compile", "{in}/m.onnx", "--cache-dir", "{out}/cache")
_SHAPE = (1, 3, 8, 8)

Prepare = Callable[[Path], None]


def _nothing(folder: Path) -> None:
    pass


def _case(name: str, words: Sequence[str], says: str, prepare: Prepare = _nothing) -> Hostile:
    """Return a case of wrong use: a sound model, and what `prepare` puts beside it."""

    def build(folder: Path) -> Sequence[str]:
        (folder / "m.onnx").write_bytes(sound_model().SerializeToString())
        prepare(folder)
        return words

    return Hostile(name, build, says, 2)


def _input_case(name: str, array: np.ndarray, says: str, *, input_name: str = "x") -> Hostile:
    words = (*_RUN, "--input", f"{input_name}={{in}}/x.npy")
    return _case(f"input-{name}", words, says, lambda folder: np.save(folder / "x.npy", array))


def _file_case(name: str, data: bytes | Callable[[], bytes], says: str) -> Hostile:
    """Return the bytes as the `.npy` of the model's input."""

    def prepare(folder: Path) -> None:
        (folder / "x.npy").write_bytes(data if isinstance(data, bytes) else data())

    return _case(f"input-{name}", (*_RUN, "--input", "x={in}/x.npy"), says, prepare)


def _npz_case(name: str, write: Callable[[Path], None], says: str) -> Hostile:
    words = (*_RUN, "--input", "{in}/x.npz")
    return _case(f"input-{name}", words, says, lambda folder: write(folder / "x.npz"))


def _calibration_case(name: str, prepare: Prepare, says: str, *more: str) -> Hostile:
    """Return a case in which `prepare` fills the folder of calibration data."""

    def fill(folder: Path) -> None:
        (folder / "calib").mkdir()
        prepare(folder / "calib")

    return _case(f"calibration-{name}", (*_QUANTIZE, "--calib", "{in}/calib", *more), says, fill)


def _header(shape: str, kind: str = "<f4") -> bytes:
    """Return the beginning of a `.npy` file whose array is said to have this shape."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode("latin-1")


def _pickled_array() -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([{"a": 1}], dtype=object))
    return out.getvalue()


@cache
def _packed_zeros() -> bytes:
    """Return a ZIP of 1.2 MB that unpacks into 1.2 GB."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        member.write(_header("(300000000,)"))
        chunk = bytes(40_000_000)
        for _ in range(30):
            member.write(chunk)
    return out.getvalue()


def _zip_bomb(path: Path) -> None:
    path.write_bytes(_packed_zeros())


def _zip_that_lies(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", _header("(1000000000000,)") + bytes(64))


def _pickled_in_zip(path: Path) -> None:
    np.savez(path, x=np.array([{"a": 1}], dtype=object))


def _flipped_zip(path: Path) -> None:
    np.savez_compressed(path, x=np.arange(192, dtype=np.float32).reshape(_SHAPE))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def _arrays(*arrays: np.ndarray) -> Prepare:
    def prepare(folder: Path) -> None:
        for number, array in enumerate(arrays):
            np.save(folder / f"{number}.npy", array)

    return prepare


def _named(name: str, data: bytes) -> Prepare:
    def prepare(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return prepare


def _picture_bomb() -> bytes:
    """Return a PNG that says it has 3.6 billion pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1_000_000))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


def _one_bad_of_two(folder: Path) -> None:
    good = np.ones(_SHAPE, np.float32)
    bad = good.copy()
    bad[0, 0, 0, 0] = np.nan
    _arrays(good, bad)(folder)


_GOOD = np.ones(_SHAPE, np.float32)

CASES: tuple[Hostile, ...] = (
    _input_case("wrong-name", _GOOD, "no input `y`", input_name="y"),
    _input_case("wrong-type", _GOOD.astype(np.float64), "float64"),
    _input_case("wrong-shape", np.ones((1, 3, 9, 8), np.float32), "1×3×9×8"),
    _input_case("wrong-rank", np.ones(3, np.float32), "shape 3"),
    _input_case("text", np.array(["a"] * 3), "<U1"),
    _case("input-missing-file", (*_RUN, "--input", "x={in}/no.npy"), "no such file"),
    _case("input-not-a-pair", (*_RUN, "--input", "x"), r"neither NAME=FILE\.npy nor"),
    _case(
        "input-folder",
        (*_RUN, "--input", "x={in}/x.npy"),
        "this is a folder",
        lambda f: (f / "x.npy").mkdir(),
    ),
    _file_case("pickled", _pickled_array(), "pickled"),
    _file_case("plain-pickle", pickle.dumps([1]), "a Python pickle"),
    _file_case("empty-file", b"", "cannot be read|pickled"),
    _file_case("random-bytes", bytes(range(256)), "pickled|cannot be read"),
    _file_case("header-only", _header("(1, 3, 8, 8)"), "cannot be read"),
    _file_case(
        "shape-lies", _header("(1000000000000,)") + bytes(64), "cannot be read|too large|more than"
    ),
    _file_case(
        "shape-overflows", _header("(9000000000000000000, 9)") + bytes(64), "cannot be read"
    ),
    _file_case("shape-negative", _header("(-4,)") + bytes(64), "cannot be read"),
    _file_case("header-is-code", _header("__import__('os').system('x')"), "cannot be read"),
    _file_case("header-deep", _header("(" * 5000), "cannot be read"),
    _npz_case("zip-bomb", _zip_bomb, "cannot be read|more than|GB"),
    _npz_case("zip-shape-lies", _zip_that_lies, "cannot be read|more than|GB"),
    _npz_case("zip-pickled", _pickled_in_zip, "pickled"),
    _npz_case("zip-flipped", _flipped_zip, "cannot be read"),
    _npz_case(
        "zip-cut", lambda path: path.write_bytes(b"PK\x03\x04" + bytes(40)), "cannot be read"
    ),
    _calibration_case("empty-folder", _nothing, "no calibration data"),
    replace(
        _calibration_case(
            "not-a-number", _arrays(np.full(_SHAPE, np.nan, np.float32)), "NaN|not a number|infin"
        ),
        exit_code=1,
    ),
    replace(
        _calibration_case(
            "infinite", _arrays(np.full(_SHAPE, np.inf, np.float32)), "NaN|not a number|infin"
        ),
        exit_code=1,
    ),
    replace(
        _calibration_case("one-not-a-number", _one_bad_of_two, "NaN|not a number|infin"),
        exit_code=1,
    ),
    _calibration_case("wrong-shape", _arrays(np.ones((1, 4, 8, 8), np.float32)), "expected"),
    _calibration_case("wrong-type", _arrays(np.full(_SHAPE, "a")), "."),
    _calibration_case("no-samples", _arrays(np.ones((0, 3, 8, 8), np.float32)), "."),
    _calibration_case("text-as-picture", _named("a.png", b"hello"), "not an image"),
    _calibration_case(
        "picture-bomb", lambda f: (f / "a.png").write_bytes(_picture_bomb()), "picture"
    ),
    _calibration_case("pickle", _named("a.npy", pickle.dumps([1])), "pickle"),
    _calibration_case(
        "shape-lies",
        _named("a.npy", _header("(1000000000000, 3, 8, 8)") + bytes(64)),
        "cannot be read",
    ),
    _calibration_case("zip-shape-lies", lambda f: _zip_that_lies(f / "a.npz"), "cannot be read"),
    _calibration_case("zip-bomb", lambda f: _zip_bomb(f / "a.npz"), "cannot be read|more than|GB"),
    _case("calibration-missing", (*_QUANTIZE, "--calib", "{in}/no"), "does not exist"),
    _case("calibration-none", (*_QUANTIZE, "--calib", "random", "-n", "0"), "at least 1"),
    _calibration_case("mean-of-two", _arrays(_GOOD), "`mean`", "--mean", "1,2"),
    _case("option-unknown-target", (*_COMPILE, "--target", "zen99"), "unknown target `zen99`"),
    _case("option-unknown-dimension", (*_COMPILE, "--dim", "nope=1"), "nope"),
    _case("option-dimension-zero", (*_COMPILE, "--dim", "n=0"), "is not a shape"),
    _case("option-dimension-overflows", (*_COMPILE, "--dim", f"x=1x3x8x{'9' * 30}"), "."),
    _case("option-key-leads-out", (*_COMPILE, "--cache-key", "../../evil"), "the cache key"),
    _case("option-output-of-other-kind", (*_COMPILE, "-o", "{out}/m.zip"), "does not end in .rai"),
    _case("option-gate-nonsense", (*_COMPILE, "--min-offload", "lots"), "lots"),
    _case("option-unknown", (*_COMPILE, "--evil"), "--evil"),
)
