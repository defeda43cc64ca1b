"""Models whose weights lie, or lie elsewhere, and small ones that ask for terabytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from hostile import COMPILE, Hostile, model_case, sound_model, text_model

Edit = Callable[[TensorProto], None]

_WITH_CONSTANT = """net (float[2] x) => (float[2] y) {
  [c] k = Constant <value = float[2] {1, 2}> ()
  y = Add (x, k)
}"""
_NEEDED = 4 * 3 * 3 * 3 * 4  # bytes of the sound model's weight


def _case(name: str, edit: Edit, says: str) -> Hostile:
    def make() -> onnx.ModelProto:
        model = sound_model()
        edit(model.graph.initializer[0])
        return model

    return model_case(name, make, says)


def _dims(*sizes: int) -> Edit:
    def edit(tensor: TensorProto) -> None:
        del tensor.dims[:]
        tensor.dims.extend(sizes)

    return edit


def _type(number: int) -> Edit:
    return lambda tensor: setattr(tensor, "data_type", number)


def _typed(field: str, values: Sequence[float]) -> Edit:
    def edit(tensor: TensorProto) -> None:
        tensor.ClearField("raw_data")
        getattr(tensor, field).extend(values)

    return edit


def _segmented(tensor: TensorProto) -> None:
    tensor.segment.begin, tensor.segment.end = 0, 1 << 40


def _declared_otherwise() -> onnx.ModelProto:
    model = sound_model()
    info = helper.make_tensor_value_info("w", TensorProto.FLOAT, [9, 9, 9, 9])
    model.graph.input.append(info)
    return model


def _constant_that_lies() -> onnx.ModelProto:
    model = text_model(_WITH_CONSTANT)
    tensor = model.graph.node[0].attribute[0].t
    del tensor.dims[:]
    tensor.dims.append(1 << 39)
    return model


def _external_case(
    name: str,
    facts: dict[str, str],
    says: str,
    prepare: Callable[[Path], None] = lambda folder: None,
) -> Hostile:
    """Return a case whose weight lies where `facts` say."""

    def build(folder: Path) -> Sequence[str]:
        (folder / "w.bin").write_bytes(bytes(_NEEDED))
        (folder.parent / "secret.bin").write_bytes(bytes(_NEEDED))
        prepare(folder)
        model = sound_model()
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in facts.items():
            text = value.replace("{in}", str(folder))
            tensor.external_data.add(key=key.strip(), value=text)
        (folder / "m.onnx").write_bytes(model.SerializeToString())
        return COMPILE

    return Hostile(name, build, says)


def _link(folder: Path) -> None:
    (folder / "link.bin").symlink_to(folder.parent / "secret.bin")


def _linked_folder(folder: Path) -> None:
    (folder / "linked").symlink_to(folder.parent)


def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def _external_in_node(folder: Path) -> Sequence[str]:
    model = text_model(_WITH_CONSTANT)
    tensor = model.graph.node[0].attribute[0].t
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../secret.bin")
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return COMPILE


_OUTSIDE = "points outside the model's folder"
_NO_FIT = "external data does not fit"

_POSIX_CASES: tuple[Hostile, ...] = (
    _external_case("external-link", {"location": "link.bin"}, "is a link that leads out", _link),
    _external_case(
        "external-linked-folder", {"location": "linked/secret.bin"}, "is a link", _linked_folder
    ),
    _external_case("external-pipe", {"location": "pipe"}, "is not a file", _fifo),
    _external_case("external-device", {"location": "/dev/zero"}, _OUTSIDE),
)


def _huge(name: str, nodes: str, says: str = "GB", **weights: np.ndarray) -> Hostile:
    text = f"net (float[8] x) => (float y) {{ {nodes} y = ReduceMax <keepdims = 0> (h) }}"
    return model_case(f"terabytes-{name}", lambda: text_model(text, **weights), says)


_TERA = np.array([1 << 40])
_NAMED = "node `[a-z]+`, [A-Za-z]+"

CASES: tuple[Hostile, ...] = (
    _case("weight-shape-too-large", _dims(4, 3, 3, 300), "needs 43,200 bytes and has 432"),
    _case("weight-shape-too-small", _dims(4, 3, 3, 1), "needs 144 bytes and has 432"),
    _case("weight-negative-dimension", _dims(-4, 3, -3, 3), "impossible dimensions"),
    _case("weight-overflowing-dimensions", _dims(1 << 62, 1 << 62, 4), "impossible dimensions"),
    _case("weight-dimensions-beside-0", _dims(0, 1 << 40, 1 << 40), "impossible dimensions"),
    _case("weight-dimensions-that-wrap", _dims(1 << 32, 1 << 32, 27), "impossible dimensions"),
    _case("weight-many-dimensions", _dims(*[1] * 50_000), "50,000 dimensions"),
    _case("weight-unknown-type", _type(99), "unknown data type number 99"),
    _case("weight-without-type", _type(0), "no data type"),
    _case("weight-of-strings-as-bytes", _type(TensorProto.STRING), "needs 108 values and has 0"),
    _case("weight-other-type-same-size", _type(TensorProto.INT32), "type|tensor\\(int32\\)"),
    _case("weight-too-few-values", _typed("float_data", [1.0] * 5), "needs 108 values and has 5"),
    _case("weight-in-wrong-field", _typed("int32_data", [1] * 108), "needs 108 values and has 0"),
    _case("weight-empty", _typed("float_data", []), "needs 108 values and has 0"),
    _case("weight-in-segments", _segmented, "segments"),
    model_case("weight-declared-otherwise", _declared_otherwise, "declared as"),
    model_case("constant-that-lies", _constant_that_lies, "needs 549,755,813,888 values"),
    _external_case("external-parent", {"location": "../secret.bin"}, _OUTSIDE),
    _external_case("external-parent-inside", {"location": "a/../../secret.bin"}, _OUTSIDE),
    _external_case("external-absolute", {"location": "{in}/w.bin"}, f"{_OUTSIDE}|Windows path"),
    _external_case("external-windows-drive", {"location": "C:\\w.bin"}, _OUTSIDE),
    _external_case("external-windows-parent", {"location": "..\\secret.bin"}, _OUTSIDE),
    _external_case("external-windows-share", {"location": "\\\\host\\share\\w.bin"}, _OUTSIDE),
    _external_case("external-windows-folder", {"location": "data\\w.bin"}, "Windows path"),
    _external_case("external-nul", {"location": "w.bin\0.txt"}, "impossible name"),
    _external_case("external-no-location", {"offset": "0"}, _OUTSIDE),
    _external_case("external-long-name", {"location": "n" * 100_000}, "cannot be found|missing"),
    _external_case("external-missing", {"location": "nowhere.bin"}, "is missing"),
    _external_case(
        "external-folder", {"location": "d"}, "is not a file", lambda f: (f / "d").mkdir()
    ),
    _external_case("external-too-short", {"location": "w.bin", "offset": "4"}, _NO_FIT),
    _external_case("external-offset-beyond", {"location": "w.bin", "offset": "9" * 19}, _NO_FIT),
    _external_case("external-offset-negative", {"location": "w.bin", "offset": "-4"}, "bad offset"),
    _external_case(
        "external-offset-digits", {"location": "w.bin", "offset": "9" * 9999}, "bad offset"
    ),
    _external_case("external-length-lies", {"location": "w.bin", "length": "4"}, _NO_FIT),
    _external_case(
        "external-length-no-number", {"location": "w.bin", "length": "١٢"}, "bad length"
    ),
    _external_case(
        "external-said-twice", {"location": "w.bin", "location ": "../secret.bin"}, "twice"
    ),
    Hostile("external-in-node", _external_in_node, _OUTSIDE),
    *(_POSIX_CASES if sys.platform != "win32" else ()),
    _huge("constant-of-shape", "[a] h = ConstantOfShape (n)", _NAMED, n=_TERA),
    _huge("expand", "[a] h = Expand (x, n)", _NAMED, n=np.array([1 << 38, 8])),
    _huge("tile", "[a] h = Tile (x, n)", _NAMED, n=_TERA),
    _huge("pad", "[a] h = Pad (x, n)", _NAMED, n=np.array([1 << 40, 1 << 40])),
    _huge(
        "range",
        "[a] r = Range (o, l, i) h = Cast <to = 1> (r)",
        _NAMED,
        o=np.array(0),
        l=np.array(1 << 42),
        i=np.array(1),
    ),
    _huge(
        "resize",
        "r = Reshape (x, s) [a] h = Resize (r, , f)",
        _NAMED,
        s=np.array([1, 1, 2, 4]),
        f=np.array([1, 1, 1e6, 1e6], np.float32),
    ),
    _huge(
        "gather",
        "[b] i = ConstantOfShape <value = int64[1] {0}> (n) [a] h = Gather (x, i)",
        _NAMED,
        n=_TERA,
    ),
    _huge(
        "one-hot",
        "i = Cast <to = 7> (x) [a] h = OneHot (i, d, v)",
        _NAMED,
        d=np.array(1 << 40),
        v=np.array([0, 1], np.float32),
    ),
    _huge(
        "outer-products",
        "a = Expand (x, n) b = Reshape (a, p) c = Reshape (a, q) [m] h = Mul (b, c)",
        _NAMED,
        n=np.array([1 << 18, 8]),
        p=np.array([1, 1 << 21]),
        q=np.array([1 << 21, 1]),
    ),
    # Shape inference itself would fill the memory with the elements of these.
    _huge(
        "followed-vector",
        "n = Mul (k, k) [a] v = ConstantOfShape <value = int64[1] {0}> (n) w = Add (v, v) "
        "h = Cast <to = 1> (w)",
        _NAMED,
        k=np.array([1 << 20]),
    ),
    _huge(
        "followed-reshape",
        "n = Mul (k, k) i = Cast <to = 7> (x) [a] v = Reshape (i, n) w = Add (v, v) "
        "h = Cast <to = 1> (w)",
        _NAMED,
        k=np.array([1 << 20]),
    ),
    # Neither of these can be told from shapes alone: ONNX Runtime has to be held back.
    _huge(
        "hidden-constant-of-shape",
        "m = ReduceMax <keepdims = 1> (x) c = Abs (m) d = Mul (c, z) e = Add (d, k) "
        "n = Cast <to = 7> (e) [a] h = ConstantOfShape (n)",
        _NAMED,
        z=np.array(0, np.float32),
        k=np.array(1e12, np.float32),
    ),
    _huge(
        "hidden-expand",
        "m = ReduceMax <keepdims = 1> (x) d = Mul (m, z) e = Add (d, k) n = Cast <to = 7> (e) "
        "[a] h = Tile (x, n)",
        _NAMED,
        z=np.array(0, np.float32),
        k=np.array(1e11, np.float32),
    ),
)
