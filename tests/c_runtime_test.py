"""Compiled models in C: the bits of `Session`, for every kind of program, thread and process."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

import c_library
import models
import vermilion
from quantized_graphs import Graph
from vermilion.api import compile_model
from vermilion.backends.native_files import FORMAT
from vermilion.clib.build import SOURCE
from vermilion.clib.library import library
from vermilion.codegen.table import CLOSING, CONTEXT_LINE_BYTES, FINISHED, ROW_WORDS
from vermilion.hardware.cpu import detect_cpu
from vermilion.runtime.manifest import FORMAT_VERSION, _content_digest
from vermilion.runtime.session import Session
from vermilion.store.digest import CHUNK_BYTES, digest_of
from vermilion.store.signature import key_file
from vermilion_runtime import (
    ArtifactError,
    DataError,
    DeviceError,
    OptionError,
    OtherSizesError,
    TrustError,
)
from vermilion_runtime import Session as CSession
from vermilion_runtime import UnsupportedError as CUnsupportedError
from vermilion_runtime.library import library_file, load

pytestmark = pytest.mark.needs("c compiler")
Array = NDArray[Any]
HEADER = '<ir_version: 9, opset_import: ["" : 17]>\n'

LOOKUP = """g (int64[N,S] i, float[N,S,24] x) => (float[N,S,24] y, bool[N,S,24] b)
 <float[40,24] table> { e = Gather(table, i)  y = Add(e, x)  b = Greater(e, x) }"""
ATTENTION = """g (float[N,S,48] x, float[N,1,1,S] m) => (float[N,S,48] z)
 <int64[4] s = {0, 0, 4, 12}, int64[3] t = {0, 0, 48}, float[48,48] w> {
 k = MatMul(x, w)  y = Reshape(k, s)  q = Transpose<perm=[0,2,1,3]>(y)
 p = Transpose<perm=[0,2,3,1]>(y)  a = MatMul(q, p)  d = Add(a, m)  e = Softmax<axis=-1>(d)
 f = MatMul(e, q)  h = Transpose<perm=[0,2,1,3]>(f)  z = Reshape(h, t) }"""
PICTURES = """g (float[N,3,H,W] x) => (float[N,24,A,B] z)
 <float[24,3,3,3] a, float[24] b, float[24,24,3,3] d> {
 p = Conv<pads=[1,1,1,1], strides=[2,2]>(x, a, b)  q = Relu(p)  s = Conv<pads=[1,1,1,1]>(q, d)
 z = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(s) }"""
WHOLE_NUMBERS = """g (int64[4,6] a, int32[6] b, int64[6] c) => (int64[4,6] x, float[4,6] y) {
 d = Cast<to=7>(b)  x = Div(a, c)  e = Mul(a, d)  y = Cast<to=1>(e) }"""


def from_text(text: str) -> onnx.ModelProto:
    """Parse a model; weights that are declared without values get random ones."""
    random = np.random.default_rng(5)
    proto = onnx.parser.parse_model(HEADER + text)
    known = {one.name for one in proto.graph.initializer}
    for one in proto.graph.value_info:
        if one.name not in known:
            shape = [size.dim_value for size in one.type.tensor_type.shape.dim]
            array = random.standard_normal(shape, np.float32) * np.float32(0.1)
            proto.graph.initializer.append(numpy_helper.from_array(array, one.name))
    return proto


def quantized() -> Any:
    """Return an int8 network: a convolution and a product, as quantizers write them."""
    random, graph = np.random.default_rng(6), Graph()
    zero = np.array(3, np.uint8)
    x = graph.pair("x", 0.05, zero)
    w = graph.dequantized(random.integers(-90, 90, (16, 8, 3, 3), np.int8), 0.01)
    y = graph.pair(graph.op("Relu", graph.op("Conv", x, w, pads=[1, 1, 1, 1])), 0.1, zero)
    graph.op("GlobalAveragePool", y, name="y")
    return graph.model({"x": np.zeros((2, 8, 12, 12), np.float32)}, {"y": onnx.TensorProto.FLOAT})


@dataclass(frozen=True)
class Case:
    """A model, and the sizes that it is run at."""

    name: str
    make: Any
    feeds: tuple[Mapping[str, Array], ...]
    precision: str = "auto"


def _numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _lookup(n: int, s: int) -> dict[str, Array]:
    indices = np.random.default_rng(n + s).integers(-40, 40, (n, s))
    return {"i": indices, "x": _numbers(n, s, 24)}


def _attention(n: int, s: int) -> dict[str, Array]:
    return {"x": _numbers(n, s, 48), "m": np.zeros((n, 1, 1, s), np.float32)}


_WHOLE: dict[str, Array] = {
    "a": np.arange(-12, 12, dtype=np.int64).reshape(4, 6),
    "b": np.arange(1, 7, dtype=np.int32),
    "c": np.array([1, -2, 3, 5, 7, -1], np.int64),
}
CASES = (
    Case("cnn", models.small_cnn, ({"input": _numbers(1, 3, 16, 16)},)),
    Case("cnn-bf16", models.small_cnn, ({"input": _numbers(1, 3, 16, 16)},), "bf16"),
    Case("cnn-batch-4", lambda: models.small_cnn(batch=4), ({"input": _numbers(4, 3, 16, 16)},)),
    Case(
        "cnn-any-batch",
        lambda: models.small_cnn(batch="N"),
        tuple({"input": _numbers(n, 3, 16, 16)} for n in (3, 1, 5)),
    ),
    # Enough work for several workers.
    Case("large", lambda: models.small_cnn(image=160), ({"input": _numbers(1, 3, 160, 160)},)),
    Case("branches", models.branching_cnn, ({"input": _numbers(1, 4, 16, 16)},)),
    Case("mobilenet", models.mobilenet, ({"input": _numbers(1, 3, 32, 32)},)),
    Case("int8", quantized, ({"x": _numbers(2, 8, 12, 12)},)),
    Case("lookup", lambda: from_text(LOOKUP), (_lookup(2, 5), _lookup(1, 9), _lookup(2, 5))),
    Case("attention", lambda: from_text(ATTENTION), (_attention(1, 7), _attention(2, 33))),
    Case("pictures-bf16", lambda: from_text(PICTURES), ({"x": _numbers(1, 3, 16, 24)},), "bf16"),
    Case(
        "pictures",
        lambda: from_text(PICTURES),
        tuple({"x": _numbers(1, 3, h, w)} for h, w in ((16, 24), (40, 8), (16, 24))),
    ),
    Case("whole-numbers", lambda: from_text(WHOLE_NUMBERS), (_WHOLE,)),
)


@pytest.fixture(scope="module", autouse=True)
def _library() -> Iterator[None]:
    before = os.environ.get("VERMILION_LIBRARY")
    os.environ["VERMILION_LIBRARY"] = str(library())
    yield
    if before is None:
        del os.environ["VERMILION_LIBRARY"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what compiles a case, once, to a file."""
    folder = tmp_path_factory.mktemp("models")

    def made(name: str) -> Path:
        file: Path = folder / f"{name}.rai"
        if not file.is_file():
            (case,) = [one for one in CASES if one.name == name]
            compile_model(
                case.make(), precision=case.precision, cache_dir=folder / name, output=file
            )
        return file

    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_library_gives_the_bits_of_the_session(case: Case, compiled: Any) -> None:
    model = compiled(case.name)
    with Session(model) as session, CSession(model) as ours, CSession(model, threads=3) as more:
        assert [(one.name, one.type, one.shape) for one in ours.get_inputs()] == [
            (one.name, one.type, one.shape) for one in session.get_inputs()
        ]
        for feeds in case.feeds:
            wanted = session.run(None, dict(feeds))
            assert c_library.same_bits(ours.run(None, feeds), wanted)
            assert c_library.same_bits(more.run(None, feeds), wanted)
            last = session.get_outputs()[-1].name
            assert c_library.same_bits(ours.run([last], feeds), wanted[-1:])


def test_several_workers_sleep_while_nobody_calls(compiled: Any) -> None:
    feeds = {"input": _numbers(1, 3, 160, 160)}
    with CSession(compiled("large"), threads=3) as session:
        assert session.threads == 3
        for _ in range(5):
            session.run(None, feeds)
        time.sleep(0.3)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.1


def test_a_folder_bytes_and_one_part_open_as_a_file_does(compiled: Any) -> None:
    model, feeds = compiled("lookup"), dict(_lookup(2, 5))
    wanted = c_library.wanted(model, feeds)
    (folder,) = [p for p in (model.parent / "lookup").iterdir() if (p / "manifest.json").is_file()]
    for source in (folder, model.read_bytes()):
        with CSession(source) as session:
            assert c_library.same_bits(session.run(None, feeds), wanted)
    with Session(model) as session:
        (part,) = [one.name for one in session.manifest.parts]
    with CSession(model, part=part) as session:
        assert [one.name for one in session.get_inputs()] == ["i", "x"]
        assert session.get_inputs()[1].shape[2] == 24
        assert c_library.same_bits(session.run(None, feeds), wanted)
    with pytest.raises(OptionError, match="no part `nope`"):
        CSession(model, part="nope")


def test_what_a_run_is_given_is_checked(compiled: Any) -> None:
    with CSession(compiled("lookup")) as session:
        right = _lookup(2, 5)
        with pytest.raises(OptionError, match="input `x` is missing"):
            session.run(None, {"i": right["i"]})
        with pytest.raises(OptionError, match="is float64, the model wants float32"):
            session.run(None, {**right, "x": right["x"].astype(np.float64)})
        with pytest.raises(OptionError, match="`x` has shape 2x5x23, the model wants -1x-1x24"):
            session.run(None, {**right, "x": _numbers(2, 5, 23)})
        with pytest.raises(OtherSizesError, match="`x` has the shape 2x6x24; it must be 2x5x24"):
            session.run(None, {**right, "x": _numbers(2, 6, 24)})
        with pytest.raises(
            DataError, match=r"idx=40 must be within the inclusive range \[-40,39\]"
        ):
            session.run(None, {**right, "i": np.full((2, 5), 40)})
        assert session.run(None, right)[0].shape == (2, 5, 24)
        session.close()
        with pytest.raises(OptionError, match="closed"):
            session.run(None, right)
    with CSession(compiled("whole-numbers")) as session:
        with pytest.raises(DataError, match="Integer division by zero"):
            session.run(None, {**_WHOLE, "c": np.array([1, 0, 3, 5, 7, -1])})
        assert session.run(None, _WHOLE)[0].dtype == np.int64


@pytest.mark.parametrize("mode", ["run", "memory", "pool", "threads", "fork", "reload"])
@pytest.mark.parametrize("name", ["lookup", "large"])
def test_a_c_program(mode: str, name: str, compiled: Any, tmp_path: Path) -> None:
    (case,) = [one for one in CASES if one.name == name]
    feeds = dict(case.feeds[0])
    many = 1000 if name == "lookup" else 200
    count = {"pool": 50, "threads": many, "fork": 300, "reload": 200}.get(mode, 1)
    ended = c_library.check(mode, compiled(name), feeds, tmp_path, count=count)
    assert ended.code == 0, ended.err + ended.out
    wanted = c_library.wanted(compiled(name), feeds)
    assert c_library.same_bits(c_library.written(tmp_path, wanted), wanted)


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="this system has no valgrind")
def test_no_byte_is_touched_that_is_not_its_own(tmp_path: Path) -> None:
    # valgrind has no AVX-512, and knows the processor as one without.
    model = tmp_path / "m.rai"
    compile_model(from_text(LOOKUP), target="x86-64-v3", cache_dir=tmp_path / "c", output=model)
    words = (
        "valgrind",
        "-q",
        "--error-exitcode=9",
        "--leak-check=full",
        "--vex-guest-max-insns=25",
    )
    ended = c_library.check("pool", model, _lookup(2, 5), tmp_path, count=2, before=words)
    assert ended.code == 0, ended.err


def test_the_program_runs_where_there_is_nothing_else(compiled: Any, tmp_path: Path) -> None:
    """An empty root: the C library of the system, ours, the program, the model, its input."""
    if os.geteuid() != 0:
        pytest.skip("this system lets root alone change the root folder")
    root = tmp_path / "root"
    listed = subprocess.run(
        ["ldd", str(c_library.check_program())], capture_output=True, text=True, check=True
    )
    needed = [word for word in listed.stdout.split() if word.startswith("/")]
    assert {Path(one).name.split(".")[0].split("-")[0] for one in needed} <= {
        "libvermilion", "libc", "libpthread", "ld"
    }  # fmt: skip
    for file in [*needed, str(c_library.check_program())]:
        place = root / file.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    shutil.copy(compiled("lookup"), root / "m.rai")
    feeds = _lookup(2, 5)
    words = []
    for number, array in enumerate(feeds.values()):
        (root / f"in{number}.bin").write_bytes(array.tobytes())
        words.append(f"in{number}.bin:{'x'.join(map(str, array.shape))}")
    command = [str(c_library.check_program()), "run", "m.rai", "1", *words]
    text = (
        f"import os; os.chroot({str(root)!r}); os.chdir('/'); os.execv({command[0]!r}, {command})"
    )
    clean = {"VERMILION_TRUST": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", text], env=clean, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    wanted = c_library.wanted(compiled("lookup"), feeds)
    assert c_library.same_bits(c_library.written(root, wanted), wanted)


def test_code_from_elsewhere_wants_to_be_trusted(
    compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert key_file().is_file()
    model = compiled("lookup")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(TrustError, match="not made by this user") as caught:
        CSession(model)
    assert "VERMILION_TRUST=1" in caught.value.hint
    CSession(model, trust_code=True).close()
    monkeypatch.setenv("VERMILION_TRUST", "1")
    CSession(model).close()


def test_features_that_are_hidden_are_not_there(
    compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = load(str(library_file())).vermilion_cpu_features
    assert set(asked().decode().split()) == detect_cpu().features
    hidden = sorted(detect_cpu().features)[-1]
    monkeypatch.setenv("VERMILION_HIDE_FEATURES", f"nothing,{hidden}")
    assert hidden not in asked().decode().split()
    monkeypatch.setenv("VERMILION_HIDE_FEATURES", "avx2")
    with pytest.raises(DeviceError, match="this processor has no avx2"):
        CSession(compiled("lookup"))


def test_a_part_in_another_runtime_is_named(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        HEADER + "g (float[4,4] x) => (float y) { a = Relu(x)  y = Det(a) }"
    )
    model = tmp_path / "m.rai"
    compile_model(proto, cache_dir=tmp_path / "c", output=model)
    with Session(model) as session:
        others = [part.name for part in session.manifest.parts if part.backend != "native"]
    with pytest.raises(CUnsupportedError, match=f"part `{others[0]}` runs in another runtime"):
        CSession(model)


def test_damaged_files_end_in_a_status(compiled: Any, tmp_path: Path) -> None:
    """A thousand files, each damaged in another place: each has a clear status, and no signal."""
    sound, random = compiled("lookup").read_bytes(), np.random.default_rng(1)
    errors: list[ArtifactError] = []
    for number in range(1000):
        data = bytearray(sound)
        kind = number % 4
        at = int(random.integers(len(data)))
        if kind == 0:
            data[at] ^= 1 << int(random.integers(8))
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at : at + 8] = struct.pack("<Q", int(random.integers(2**63)))
        else:
            data[at:at] = bytes(random.integers(0, 256, int(random.integers(1, 64)), np.uint8))
        if bytes(data) == sound or not data:
            continue
        try:
            CSession(bytes(data)).close()
        except ArtifactError as error:
            errors.append(error)
        else:
            # Of what is not in use, the model as it came, nothing was read.
            assert kind in (0, 2)
    assert all(error.hint and error.where for error in errors)
    assert len(errors) > 800
    assert len({error.message for error in errors}) > 8


def test_damaged_tables_end_in_a_status(compiled: Any, tmp_path: Path) -> None:
    """Files that say they are whole: the digests are right, the tables are not."""
    (source,) = [
        p
        for p in (compiled("lookup").parent / "lookup").iterdir()
        if (p / "manifest.json").is_file()
    ]
    random, seen = np.random.default_rng(2), 0
    manifest = json.loads((source / "manifest.json").read_text())
    part = manifest["parts"][0]["name"]
    text = (source / part / "kernels.json").read_bytes()
    target = tmp_path / "m"
    shutil.copytree(source, target)
    for _ in range(200):
        data = bytearray(text)
        at = int(random.integers(len(data)))
        data[at : at + 1] = bytes([random.choice(list(b'0123456789-[]{},"a'))])
        (target / part / "kernels.json").write_bytes(data)
        for member in manifest["members"]:
            if member["name"] == f"{part}/kernels.json":
                member["size"], member["sha256"] = len(data), digest_of(bytes(data))
        manifest["digest"] = _content_digest(manifest)
        (target / "manifest.json").write_text(json.dumps(manifest))
        try:
            with CSession(target, trust_code=True) as session:
                session.get_inputs()
        except (ArtifactError, CUnsupportedError, OtherSizesError):
            seen += 1
    assert seen > 60


def test_numbers_that_are_in_both_languages_are_the_same() -> None:
    text = re.sub(" +", " ", "".join(path.read_text() for path in sorted(SOURCE.iterdir())))
    for name, number in {
        "VM_TABLE_FORMAT": FORMAT,
        "VM_FORMAT_VERSION": FORMAT_VERSION,
        "VM_ROW_WORDS": ROW_WORDS,
        "VM_CLOSING": CLOSING // 8,
        "VM_LINE_WORDS": CONTEXT_LINE_BYTES // 8,
    }.items():
        assert f"#define {name} {number}" in text
    assert CONTEXT_LINE_BYTES == FINISHED
    assert CHUNK_BYTES == 8 * 1024 * 1024


def test_the_library_is_this_version() -> None:
    found = load(str(library_file()))
    assert found.vermilion_version().decode() == vermilion.__version__
    assert found.vermilion_usable_cores() >= 1


@pytest.mark.parametrize("length", [1, 595, 596, 597, 598])  # what is long is cut in the middle
@pytest.mark.parametrize(
    "part", [b"\xc3\xbc\xe2\x82\xac", b"\xf0\x9f\x98\x80", b"\xfa\xed\xa0\x80", b"\x1b["]
)
def test_what_a_status_says_is_text_whatever_a_name_holds(part: bytes, length: int) -> None:
    own, model = load(str(library_file())), ctypes.c_void_p()
    path = b"/no/" + b"a" * length + part * 200
    status = own.vermilion_open(path, None, ctypes.byref(model))
    said = own.vermilion_status_where(status).decode()  # and no byte that is not of UTF-8
    own.vermilion_status_free(status)
    assert said.startswith("/no/a")
    assert said.isprintable()
