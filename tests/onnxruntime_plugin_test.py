"""Compiled models inside ONNX Runtime: the bits of our session, by the plugin on its threads."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import models
from plugin_sessions import opened, placed, plugin_options, text_model, with_attributes
from vermilion.api import Compiled, compile_model
from vermilion.errors import OptionError
from vermilion.quantization import quantize_file
from vermilion.runtime import ep_context

pytestmark = pytest.mark.needs("c compiler")
OURS = "VermilionExecutionProvider"
RANDOM = np.random.default_rng(0)
Feed = Mapping[str, np.ndarray]


@pytest.fixture(scope="module", autouse=True)
def unregister() -> Iterator[None]:
    """Leave the process as it was: a registered provider is seen by every later test."""
    yield
    gc.collect()
    if any(one.ep_name == OURS for one in ort.get_ep_devices()):
        ort.unregister_execution_provider_library("vermilion")


def child_environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that imports the helpers of these tests."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def dense(rows: object = "batch") -> ir.Model:
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
    net (float[{rows}, 64] x) => (float[{rows}, 10] y) {{
      h = MatMul (x, w)
      r = Relu (h)
      y = MatMul (r, v)
    }}"""
    return text_model(text, {"w": drawn(64, 128), "v": drawn(128, 10)})


def mixed() -> ir.Model:
    """Return two native parts with an operator between them that ONNX Runtime computes."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
    net (float[4, 64] x) => (float[4, 32] y, float[4, 64] d) {
      h = MatMul (x, w)
      r = Relu (h)
      d = ReverseSequence <batch_axis = 0, time_axis = 1> (r, lengths)
      s = Add (r, d)
      y = MatMul (s, v)
    }"""
    weights = {"w": drawn(64, 64), "v": drawn(64, 32), "lengths": np.array([64, 3, 7, 1], np.int64)}
    return text_model(text, weights)


def quantized(folder: Path) -> Path:
    ir.save(models.small_cnn(), folder / "float.onnx")
    done = quantize_file(folder / "float.onnx", folder / "int8.onnx", scheme="a8w8", calib="random")
    return done.output


CASES: Mapping[str, tuple[object, Mapping[str, object], tuple[Feed, ...]]] = {
    "cnn": (models.small_cnn, {}, ({"input": drawn(1, 3, 16, 16)},)),
    "cnn in bf16": (models.small_cnn, {"precision": "bf16"}, ({"input": drawn(1, 3, 16, 16)},)),
    "several outputs": (models.branching_cnn, {}, ({"input": drawn(1, 4, 16, 16)},)),
    "mobilenet": (models.mobilenet, {}, ({"input": drawn(1, 3, 32, 32)},)),
    "transformer": (
        models.transformer_block,
        {},
        ({"hidden": drawn(1, 16, 64), "mask": drawn(1, 1, 1, 16)},),
    ),
    "transformer in bf16": (
        models.transformer_block,
        {"precision": "bf16"},
        ({"hidden": drawn(1, 16, 64), "mask": drawn(1, 1, 1, 16)},),
    ),
    "open batch": (dense, {}, tuple({"x": drawn(rows, 64)} for rows in (1, 7, 32, 7))),
    "open batch of pictures": (
        lambda: models.small_cnn(batch="n"),
        {},
        tuple({"input": drawn(rows, 3, 16, 16)} for rows in (1, 3)),
    ),
    "mixed": (mixed, {}, ({"x": drawn(4, 64)},)),
}


def context(model: object, folder: Path, *, embed: bool = False, **options: object) -> Compiled:
    return compile_model(
        model,  # type: ignore[arg-type]
        cache_dir=folder / "cache",
        ep_context=folder / "net_ctx.onnx",
        ep_context_embed=embed,
        **options,  # type: ignore[arg-type]
    )


def same_bits(compiled: Compiled, session: ort.InferenceSession, feed: Feed) -> None:
    with compiled.session() as own:
        wanted = own.run(None, feed)
    got = session.run(None, dict(feed))
    assert len(got) == len(wanted)
    for ours, theirs in zip(wanted, got, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_our_session(name: str, tmp_path: Path) -> None:
    make, options, feeds = CASES[name]
    compiled = context(make(), tmp_path, **options)  # type: ignore[operator]
    session = opened(tmp_path / "net_ctx.onnx")
    native = [part for part in compiled.session().manifest.parts if part.backend == "native"]
    assert placed(session)[OURS] == ["EPContext"] * len(native)
    for feed in feeds:
        same_bits(compiled, session, feed)
    assert (tmp_path / "net_ctx.rai").stat().st_size > 1000


def test_integers_are_the_same(tmp_path: Path) -> None:
    compiled = context(quantized(tmp_path), tmp_path)
    session = opened(tmp_path / "net_ctx.onnx")
    assert placed(session)[OURS] == ["EPContext"]
    same_bits(compiled, session, {"input": drawn(1, 3, 16, 16)})


def test_the_rest_stays_onnx_and_onnx_runtime_runs_it(tmp_path: Path) -> None:
    compiled = context(mixed(), tmp_path)
    session = opened(tmp_path / "net_ctx.onnx")
    where = placed(session)
    assert where[OURS] == ["EPContext"] * 2
    assert where["CPUExecutionProvider"] == ["ReverseSequence"]
    assert compiled.ep_context is not None
    assert compiled.ep_context.parts == 2
    proto = onnx.load(str(tmp_path / "net_ctx.onnx"))
    assert {one.name for one in proto.graph.initializer} == {"lengths"}  # the others are packed
    onnx.checker.check_model(proto)


def test_a_model_from_memory_carries_its_code(tmp_path: Path) -> None:
    compiled = context(mixed(), tmp_path, embed=True)
    assert not (tmp_path / "net_ctx.rai").exists()
    same_bits(compiled, opened((tmp_path / "net_ctx.onnx").read_bytes()), {"x": drawn(4, 64)})


def test_a_model_from_memory_finds_what_lies_beside_its_file(tmp_path: Path) -> None:
    compiled = context(dense(), tmp_path)
    data = (tmp_path / "net_ctx.onnx").read_bytes()
    with pytest.raises(Exception, match=r"came from memory.*\n?hint: .*--ep-context-embed"):
        opened(data)
    options = plugin_options()
    options.add_session_config_entry("ep.context_file_path", str(tmp_path / "net_ctx.onnx"))
    same_bits(compiled, ort.InferenceSession(data, sess_options=options), {"x": drawn(3, 64)})


def test_sessions_and_threads_side_by_side(tmp_path: Path) -> None:
    compiled = context(dense(), tmp_path)
    sessions = [opened(tmp_path / "net_ctx.onnx", threads=str(n)) for n in (1, 2, 5)]
    feeds = [{"x": drawn(rows, 64)} for rows in (1, 2, 9)]
    with compiled.session() as own:
        wanted = [own.run(None, feed)[0] for feed in feeds]
    wrong: list[str] = []

    def work(number: int) -> None:
        for turn in range(1000):
            at = (number + turn) % 3
            got = sessions[number % 3].run(None, feeds[at])[0]
            if got.tobytes() != wanted[at].tobytes():
                wrong.append(f"thread {number}, turn {turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_outputs_that_nobody_reads_and_bound_memory(tmp_path: Path) -> None:
    compiled = context(models.branching_cnn(), tmp_path)
    session = opened(tmp_path / "net_ctx.onnx")
    feed = {"input": drawn(1, 4, 16, 16)}
    with compiled.session() as own:
        features, mask = own.run(None, feed)
    assert session.run(["mask"], feed)[0].tobytes() == mask.tobytes()
    binding = session.io_binding()
    place = np.zeros_like(features)
    binding.bind_cpu_input("input", feed["input"])
    value = ort.OrtValue.ortvalue_from_numpy(place)
    binding.bind_ortvalue_output("features", value)
    session.run_with_iobinding(binding)
    assert value.numpy().tobytes() == features.tobytes()


def test_weights_of_other_nodes_may_come_from_outside(tmp_path: Path) -> None:
    compiled = context(mixed(), tmp_path)
    proto = onnx.load(str(tmp_path / "net_ctx.onnx"))
    (lengths,) = proto.graph.initializer
    value = onnx.numpy_helper.to_array(lengths)
    lengths.data_location = onnx.TensorProto.EXTERNAL
    lengths.ClearField("raw_data")
    lengths.ClearField("int64_data")
    lengths.external_data.add(key="location", value="elsewhere.bin")
    onnx.save(proto, str(tmp_path / "outside.onnx"))
    options = plugin_options()
    held = ort.OrtValue.ortvalue_from_numpy(value)
    options.add_external_initializers(["lengths"], [held])
    session = ort.InferenceSession(str(tmp_path / "outside.onnx"), sess_options=options)
    same_bits(compiled, session, {"x": drawn(4, 64)})


WRONG = {
    "no part": ({"partition_name": None}, "has no `partition_name`"),
    "another part": ({"partition_name": "vaiml_par_7"}, "vaiml_par_7"),
    "no file": ({"ep_cache_context": None}, "names no file"),
    "a file that is not there": ({"ep_cache_context": "other.rai"}, "other.rai"),
    "a way out": ({"ep_cache_context": "../net_ctx.rai"}, "leads out"),
    "a way out in the middle": ({"ep_cache_context": "a/../../net_ctx.rai"}, "leads out"),
    "an absolute path": ({"ep_cache_context": "/etc/passwd"}, "leads out"),
    "a long name": ({"ep_cache_context": "x" * 5000}, "too long"),
    "a zero byte": ({"ep_cache_context": b"net_ctx.rai\0x"}, "names no file"),
    "another mode": ({"embed_mode": 2}, "neither 0 nor 1"),
    "bytes that are none": ({"embed_mode": 1}, "hint:"),
    "no bytes": ({"embed_mode": 1, "ep_cache_context": None}, "is empty"),
}


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("net")
    context(dense(), folder)
    return folder / "net_ctx.onnx"


@pytest.mark.parametrize("name", WRONG)
def test_a_node_that_is_wrong_is_refused_with_the_reason(name: str, net: Path) -> None:
    changes, reason = WRONG[name]
    with pytest.raises(Exception, match=reason) as caught:
        opened(with_attributes(net, net.with_name("wrong.onnx"), changes))
    assert "VermilionExecutionProvider" in str(caught.value)
    assert "hint:" in str(caught.value)


def test_a_node_of_another_provider_is_not_taken(net: Path) -> None:
    other = with_attributes(net, net.with_name("other.onnx"), {"source": "QNNExecutionProvider"})
    with pytest.raises(Exception, match="EPContext"):
        opened(other)


def test_wrong_sizes_and_options_are_statuses(net: Path) -> None:
    with pytest.raises(Exception, match=r"number of threads"):
        opened(net, threads="many")
    session = opened(net)
    proto = onnx.load(str(net))
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "any"
    proto.graph.ClearField("value_info")
    onnx.save(proto, str(net.with_name("free.onnx")))
    free = opened(net.with_name("free.onnx"))
    with pytest.raises(Exception, match=r"\[2, 63\]|63"):
        free.run(None, {"x": drawn(2, 63)})
    assert free.run(None, {"x": drawn(2, 64)})[0].shape == (2, 10)
    assert session.run(None, {"x": drawn(2, 64)})[0].shape == (2, 10)


DAMAGE = """
import random, sys
from pathlib import Path
import onnxruntime as ort
from plugin_sessions import opened

folder, count = Path(sys.argv[1]), int(sys.argv[2])
import numpy as np
random.seed(5)
whole = (folder / "net_ctx.rai").read_bytes()
(folder / "net_ctx.rai").unlink()
feed = {"x": np.ones((3, 64), np.float32)}
refused = ran = 0
for number in range(count):
    data = bytearray(whole)
    kind = number % 4
    if kind == 0:
        del data[random.randrange(len(data)):]
    elif kind == 1:
        for _ in range(random.choice((1, 8, 200))):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    elif kind == 2:
        at = random.randrange(len(data)); data[at:at + random.randrange(1, 4096)] = b""
    else:
        at = random.randrange(len(data)); data[at:at] = random.randbytes(random.randrange(1, 999))
    (folder / "net_ctx.rai").write_bytes(data)
    try:
        opened(folder / "net_ctx.onnx").run(None, feed)
        ran += 1  # only bytes that nothing is made of were changed
    except Exception as error:
        assert "VermilionExecutionProvider" in str(error) and "hint:" in str(error), error
        refused += 1
print(refused, ran)
"""


@pytest.mark.parametrize("count", [120, pytest.param(1000, marks=pytest.mark.long)])
def test_damaged_contexts_are_statuses_and_never_a_crash(count: int, tmp_path: Path) -> None:
    context(dense(), tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", DAMAGE, str(tmp_path), str(count)],
        capture_output=True,
        text=True,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    refused, ran = map(int, done.stdout.split())
    assert refused + ran == count
    assert ran <= count // 10


AGAIN = """
import sys
from pathlib import Path
import numpy as np
import onnxruntime as ort
import psutil
from plugin_sessions import opened

sizes = []
for turn in range(int(sys.argv[2])):
    session = opened(Path(sys.argv[1]))
    session.run(None, {"x": np.ones((3, 64), np.float32)})
    del session
    ort.unregister_execution_provider_library("vermilion")
    sizes.append(psutil.Process().memory_info().rss)
print(sizes[-1] - sizes[9])
"""


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.long)])
def test_the_library_is_taken_and_let_go_without_growing(count: int, net: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AGAIN, str(net), str(count)],
        capture_output=True,
        text=True,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) < 4 << 20


# Of RFC 8032's first test.
KEY = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
ELSEWHERE = """
import os, sys
from pathlib import Path
import numpy as np
from plugin_sessions import opened

def said(**environment):
    os.environ.update(environment)
    try:
        opened(Path(sys.argv[1])).run(None, {"x": np.ones((3, 64), np.float32)})
    except Exception as error:
        return str(error).replace(chr(10), " ")
    finally:
        for name in environment:
            del os.environ[name]
    return "it ran"

keys = Path(os.environ["XDG_DATA_HOME"], "vermilion", "trusted_keys")
keys.parent.mkdir(parents=True)
print(said())
print(said(VERMILION_TRUST="1"))
for text in sys.argv[2:]:
    keys.write_text(text)
    print(said())
"""


@pytest.mark.needs("cryptography")
@pytest.mark.parametrize("embed", [False, True])
def test_code_from_elsewhere_runs_where_a_trusted_key_signed_it(
    embed: bool, tmp_path: Path
) -> None:
    from vermilion.store.ed25519 import make_key

    key = make_key(tmp_path / "key.pem").public
    context(dense(), tmp_path, embed=embed, sign=tmp_path / "key.pem")
    other = "0" * 64
    texts = [f"{other} other\n", f"# ours\n\n{other} other\n{key} builders\n", f"{key} a\nwhat\n"]
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path / "net_ctx.onnx"), *texts],
        capture_output=True,
        text=True,
        env=child_environment(XDG_DATA_HOME=str(tmp_path / "data"), VERMILION_TRUST=""),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    nobody, told, another, ours, damaged = done.stdout.splitlines()
    for refused in (nobody, another, damaged):
        assert f"signed by the key {key}, which is not trusted here" in refused
        assert "vermilion trust add" in refused
    assert told == ours == "it ran"


def test_what_was_changed_since_it_was_signed_is_refused(net: Path, tmp_path: Path) -> None:
    """Digests fit; this user's seal is not there, the signature is of other bytes, or no line."""
    from vermilion.runtime.archive import map_archive, write_archive

    members = {name: bytes(data) for name, data in map_archive(net.with_suffix(".rai")).items()}
    for line, reason in (
        (b"", "was not made by this user"),
        (b"ed25519 " + KEY.encode() + b" " + b"0" * 128 + b"\n", "does not fit"),
        (b"x" * 202, "is damaged"),
    ):
        files = dict(members)
        files["manifest.json"] = files["manifest.json"].replace(b'"seal": "', b'"seal": "0')
        if line:
            first = {"manifest.json": files.pop("manifest.json"), "manifest.sig": line}
            files = {**first, **files}
        folder = tmp_path / reason.replace(" ", "-")
        folder.mkdir()
        for number, data in enumerate(files.values()):
            (folder / str(number)).write_bytes(data)
        write_archive(
            folder / "net_ctx.rai", [(name, folder / str(n)) for n, name in enumerate(files)]
        )
        (folder / "net_ctx.onnx").write_bytes(net.read_bytes())
        with pytest.raises(Exception, match=reason):
            opened(folder / "net_ctx.onnx")


def test_a_model_without_a_native_part_is_ordinary_onnx_and_that_is_said(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    net (float[4, 8] x, int64[4] n) => (float[4, 8] y) {
      y = ReverseSequence <batch_axis = 0, time_axis = 1> (x, n)
    }"""
    compiled = context(text_model(text, {}), tmp_path)
    assert compiled.ep_context is not None
    assert compiled.ep_context.notes == ("no part is native: the model has no node of ours",)
    assert compiled.ep_context.files == (tmp_path / "net_ctx.onnx",)
    feed = {"x": drawn(4, 8), "n": np.array([8, 1, 3, 5], np.int64)}
    same_bits(compiled, opened(tmp_path / "net_ctx.onnx"), feed)


def test_a_branch_reads_what_a_native_part_made(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    net (float[4, 64] x, bool c) => (float[4, 64] y) {
      h = MatMul (x, w)
      r = Relu (h)
      y = If (c) <
        then_branch = yes () => (float[4, 64] a) { a = ReverseSequence (r, lengths) },
        else_branch = no () => (float[4, 64] b) { b = Neg (r) }
      >
    }"""
    weights = {"w": drawn(64, 64), "lengths": np.full(64, 2, np.int64)}
    compiled = context(text_model(text, weights), tmp_path)
    session = opened(tmp_path / "net_ctx.onnx")
    assert OURS in placed(session)
    for branch in (True, False):
        same_bits(compiled, session, {"x": drawn(4, 64), "c": np.array(branch)})


def test_large_weights_of_the_rest_lie_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    net (float[4, 64] x) => (float[4, 64] y) {
      h = MatMul (x, w)
      r = Relu (h)
      d = ReverseSequence <batch_axis = 0, time_axis = 1> (r, lengths)
      s = Add (v, d)
      t = Reshape (s, pixels)
      i = ConvTranspose <auto_pad = "SAME_UPPER"> (t, u)
      e = Reshape (i, rows)
      y = ReverseSequence <batch_axis = 0, time_axis = 1> (e, lengths)
    }"""
    weights = {
        "w": drawn(64, 64),
        "v": drawn(4, 64),
        "u": drawn(64, 64, 1),  # no kernel of ours: `auto_pad`
        "pixels": np.array([4, 64, 1], np.int64),
        "rows": np.array([4, 64], np.int64),
    }
    weights["lengths"] = np.array([64, 3, 7, 1], np.int64)
    monkeypatch.setattr(ep_context, "_MOST_INNER_BYTES", 1000)
    compiled = context(text_model(text, weights), tmp_path)
    assert compiled.ep_context is not None
    names = [file.name for file in compiled.ep_context.files]
    assert names == ["net_ctx.onnx.data", "net_ctx.rai", "net_ctx.onnx"]
    assert all(file.is_file() for file in compiled.ep_context.files)
    (tmp_path / "moved").mkdir()
    for file in compiled.ep_context.files:
        file.rename(tmp_path / "moved" / file.name)
    session = opened(tmp_path / "moved" / "net_ctx.onnx")
    assert OURS in placed(session)
    same_bits(compiled, session, {"x": drawn(4, 64)})


def test_code_that_is_too_large_for_a_model_is_not_put_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ep_context, "_MOST_EMBEDDED_BYTES", 1000)
    with pytest.raises(OptionError, match="too large for one model"):
        context(dense(), tmp_path, embed=True)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_wrong_use_is_told_before_anything_is_compiled(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="machine code of a CPU"):
        compile_model(dense(), target="strix", ep_context=tmp_path / "x.onnx")
    with pytest.raises(OptionError, match=r"does not end in \.onnx"):
        compile_model(dense(), ep_context=tmp_path / "x.rai")
    file = tmp_path / "net.onnx"
    ir.save(dense(), file)
    with pytest.raises(OptionError, match=r"would replace `.*net\.onnx`"):
        compile_model(str(file), ep_context=tmp_path / "." / "net.onnx")
    with pytest.raises(OptionError, match=r"would replace `.*net_ctx\.rai`"):
        compile_model(file, ep_context=tmp_path / "net_ctx.onnx", output=tmp_path / "net_ctx.rai")
