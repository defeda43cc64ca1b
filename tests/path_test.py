"""The whole path on real models: from the file to a result that is held against ONNX Runtime."""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commands import command_line
from models import PACKAGE_SHAPES, SMALL_MODELS, Net, conv, package_model_path
from vermilion import InferenceSession, compile_model
from vermilion.api import Compiled
from vermilion.compare import compare_sides
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.measure import agreement
from vermilion.ir.samples import sample_inputs
from vermilion.sides import open_side

Tensors = dict[str, np.ndarray]

OCR = ("ocr-det", "ocr-rec", "ocr-cls")
# What the project promises for FP32 on the CPU against ONNX Runtime on the model as it came.
MIN_COSINE = 0.99999
# Another order of additions puts some values on the other side of a bfloat16 step.
MIN_MODELLED_COSINE = 0.99
# A chain of ten roundings to eight bits, on values that products may have made large.
BFLOAT16_TOLERANCE = 0.06


def written_page(*shape: int) -> np.ndarray:
    """Draw dark strokes on a light page: on noise, text detection finds nothing and says 1e-7."""
    page = np.full(shape, 1.0, np.float32)
    page[:, :, 16:32, 16:-16:6] = -1.0
    page[:, :, 16:32, 17:-16:6] = -1.0
    page[:, :, 22:24, 16:-16] = -1.0
    return page


@dataclass(frozen=True)
class Case:
    """A model of a package with fixed sizes, and a page for it to read."""

    file: Path
    dims: dict[str, tuple[int, ...]]
    page: Tensors

    def compile(self, root: Path, target: str) -> Compiled:
        return compile_model(
            self.file,
            target=target,
            dims=self.dims,
            cache_dir=root / "cache",
            output=root / f"{self.file.stem}-{target}.rai",
        )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("path")


def ocr(name: str) -> Case:
    dims = PACKAGE_SHAPES[name]
    return Case(
        package_model_path(name), dims, {key: written_page(*shape) for key, shape in dims.items()}
    )


@pytest.mark.parametrize("name", OCR)
def test_ocr_on_the_cpu_equals_onnx_runtime(name: str, root: Path) -> None:
    case = ocr(name)
    compiled = case.compile(root, "cpu")
    assert {row["device"] for row in compiled.report.nodes} == {"cpu"}
    reference = open_side(f"{case.file}@onnxruntime", dims=case.dims)
    folder = compiled.cache_dir / compiled.cache_key
    single = compare_sides(reference, open_side(str(compiled.artifact)), case.page, runs=0)
    again = compare_sides(reference, open_side(str(folder)), case.page, layers=False, runs=0)
    for found in (single, again):
        assert [output.cosine >= MIN_COSINE for output in found.outputs] == [True]
        assert found.outputs[0].sqnr_db > 60
    assert single.first_divergence is None
    assert len(single.layers) > 100


@pytest.mark.parametrize("name", OCR)
def test_ocr_on_strix_is_placed_whole_and_modelled(name: str, root: Path) -> None:
    case = ocr(name)
    compiled = case.compile(root, "strix")
    summary = compiled.report.summary
    assert summary.offloaded_operators == summary.operators
    report = compiled.report
    assert (report.predicted_ms is None) == (report.predicted_interval_ms is None)
    assert (report.predicted_ms is None) == bool(report.predicted_reason)
    folder = InferenceSession(compiled.cache_dir / compiled.cache_key, threads=1)
    single = InferenceSession(compiled.artifact, threads=1)
    assert all("modelled" in place for place in [*folder.runs_on, *single.runs_on])
    one, other = folder.run(None, case.page), single.run(None, case.page)
    np.testing.assert_array_equal(one[0], other[0])
    # The chip's numbers are bfloat16: in standard operators, ONNX Runtime gives nearly the same.
    literal = open_side(str(compiled.artifact)).model
    expected = next(iter(run_session(open_session(literal), case.page).values()))
    assert agreement("y", expected, one[0]).cosine >= MIN_MODELLED_COSINE


def test_compare_shows_it_on_the_command_line(
    root: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = ocr("ocr-cls")
    vermilion = command_line(capfd, monkeypatch, tmp_path / "cache")
    np.savez(tmp_path / "page.npz", **case.page)  # type: ignore[arg-type]
    words = ["compare", case.file, f"{case.file}@cpu", "--dim", "x=1x3x48x192", "--runs", "2"]
    words += ["--input", tmp_path / "page.npz"]
    data = vermilion(*words, "--json").data
    assert data["outputs"][0]["cosine"] >= MIN_COSINE
    assert data["first_divergence"] is None
    assert [side["latency_ms"]["runs"] for side in data["sides"]] == [2, 2]
    people = vermilion(*words)
    assert "no --input" not in people.err
    assert "B against the literal run of A's model" in people.out
    assert "1.00000000" in people.out
    assert "no layer is below 10 dB" in people.out


def test_a_session_answers_the_calls_of_onnx_runtime(root: Path) -> None:
    """What somebody who moves over writes, word for word, on both."""
    case = ocr("ocr-rec")
    open_dims = compile_model(case.file, cache_dir=root / "cache")
    theirs = ort.InferenceSession(str(case.file), providers=["CPUExecutionProvider"])
    ours = InferenceSession(open_dims.artifact)
    for sessions in zip(theirs.get_inputs(), ours.get_inputs(), strict=True):
        assert sessions[0].name == sessions[1].name
        assert sessions[0].type == sessions[1].type
        assert len(sessions[0].shape) == len(sessions[1].shape)
    assert [o.name for o in theirs.get_outputs()] == [o.name for o in ours.get_outputs()]
    assert all(isinstance(provider, str) for provider in ours.get_providers())
    assert ours.get_modelmeta().custom_metadata_map == theirs.get_modelmeta().custom_metadata_map
    name = theirs.get_outputs()[0].name
    for width in (160, 320):
        feed = {theirs.get_inputs()[0].name: written_page(2, 3, 48, width)}
        for names in ([name], None, []):
            expected, found = theirs.run(names, feed), ours.run(names, feed)
            assert len(expected) == len(found) == 1
            assert expected[0].shape == found[0].shape
            assert agreement(name, expected[0], found[0]).cosine >= MIN_COSINE


def striped() -> ir.Model:
    """Convolutions with an operator between them that no NPU takes: NPU, CPU, NPU."""
    net = Net("striped", seed=7)
    x = net.input("input", (1, 8, 16, 16))
    x = net.op("Relu", conv(net, x, "first", (8, 64), 3), name="first/Relu")
    x = net.op("Softplus", x, name="between")
    x = conv(net, x, "second", (64, 8), 3)
    net.output(x, "output", (1, 8, 16, 16))
    return net.model()


def test_eight_threads_on_parts_of_two_devices(tmp_path: Path) -> None:
    compiled = compile_model(striped(), target="strix", cache_dir=tmp_path)
    session = compiled.session(threads=1)
    parts = [place.partition(":")[0] for place in session.runs_on]
    assert parts == ["vaiml_par_0", "cpu_par_0", "vaiml_par_1"]
    reference = open_session(striped(), threads=1)
    feeds = [sample_inputs(striped(), seed=seed) for seed in range(16)]
    expected = [run_session(reference, feed)["output"] for feed in feeds]
    alone = [session.run(["output"], feed)[0] for feed in feeds]
    for one, wanted in zip(alone, expected, strict=True):
        np.testing.assert_allclose(one, wanted, atol=BFLOAT16_TOLERANCE * np.abs(wanted).max())

    def is_right(turn: int) -> bool:
        (found,) = session.run(["output"], feeds[turn % 16])
        return bool(np.array_equal(found, alone[turn % 16]))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_right, range(320)))


@pytest.mark.parametrize("target", ["cpu", "strix", "ve2"])
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_networks_of_many_kinds(name: str, target: str, tmp_path: Path) -> None:
    model = SMALL_MODELS[name]()
    check_equal(model, target, tmp_path)


UNARY = ("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Softplus", "Identity", "Erf")
BINARY = ("Add", "Mul", "Sub", "Max")


@st.composite
def random_models(draw: st.DrawFn) -> ir.Model:
    """Draw a graph of up to ten nodes, of which the NPU takes some and refuses others."""
    lines, count = ["v0 = MatMul (x, w)"], 1
    for _ in range(draw(st.integers(1, 9))):
        kind = draw(st.sampled_from(["unary", "binary", "product", "softmax", "constant"]))
        source = f"v{draw(st.integers(0, count - 1))}"
        match kind:
            case "unary":
                made = f"{draw(st.sampled_from(UNARY))} ({source})"
            case "binary":
                other = f"v{draw(st.integers(0, count - 1))}"
                made = f"{draw(st.sampled_from(BINARY))} ({source}, {other})"
            case "product":
                made = f"MatMul ({source}, w)"
            case "softmax":
                made = f"Softmax <axis = {draw(st.sampled_from([-1, 0]))}> ({source})"
            case _:
                made = f"{draw(st.sampled_from(BINARY))} ({source}, k)"
        lines.append(f"v{count} = {made}")
        count += 1
    outputs = sorted({draw(st.integers(0, count - 1)), count - 1})
    declared = ", ".join(f"float[4,16] v{number}" for number in outputs)
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[4,16] x) => ({declared}) {{ {" ".join(lines)} }}"""
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(draw(st.integers(0, 3)))
    for name, shape in (("w", (16, 16)), ("k", (16,))):
        array = random.standard_normal(shape, dtype=np.float32) / 4
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


@pytest.mark.parametrize("target", ["cpu", "strix"])
@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(model=random_models())
def test_random_graphs_equal_onnx_runtime(model: ir.Model, target: str, tmp_path: Path) -> None:
    check_equal(model, target, tmp_path)


def check_equal(model: ir.Model, target: str, cache: Path) -> None:
    """Compile, run, and compare; every node has a place and, where it is away, a reason."""
    compiled = compile_model(model, target=target, cache_dir=cache)
    for row in compiled.report.nodes:
        assert row["device"] == compiled.target.kind or (row["reason"] and row["hint"]), row
    inputs = sample_inputs(model, seed=11)
    expected = run_session(open_session(model, optimize=False), inputs)
    with compiled.session(threads=1) as session:
        found = dict(zip(expected, session.run(list(expected), inputs), strict=True))
    for name, array in expected.items():
        assert found[name].shape == array.shape
        # A chain of ten float32 roundings, on values that products may have made large.
        scale = 1.0 + float(np.max(np.abs(array), initial=0.0))
        rtol, atol = (1e-4, 1e-5) if target == "cpu" else (BFLOAT16_TOLERANCE,) * 2
        np.testing.assert_allclose(found[name], array, rtol=rtol, atol=atol * scale)


def summary_lines(text: str) -> dict[str, str]:
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def test_the_summary_says_the_same_in_both_forms(tmp_path: Path) -> None:
    compiled = compile_model(striped(), target="strix", cache_dir=tmp_path)
    folder = compiled.summary_path.parent
    rows: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    lines = summary_lines(compiled.summary_path.read_text(encoding="utf-8"))
    assert lines["Number of operators in the model"] == f" {rows['operators']}" == " 4"
    assert lines["Number of operators offloaded by VAIML"] == " 3 (75.000%)"
    assert lines["Number of subgraphs offloaded by VAIML"] == " 2"
    assert [sub["name"] for sub in rows["subgraphs"]] == ["vaiml_par_0", "vaiml_par_1"]
    assert [row["device"] for row in rows["nodes"]] == ["npu", "npu", "cpu", "npu"]
    assert {entry.name for entry in folder.iterdir() if entry.is_dir()} == {
        "vaiml_par_0",
        "cpu_par_0",
        "vaiml_par_1",
    }


def test_a_reader_can_be_written_from_the_page_of_the_format(tmp_path: Path) -> None:
    """Read a `.rai` with what docs/artifact.md says and nothing of ours, and run it."""
    compile_model(
        striped(), target="strix", cache_dir=tmp_path / "cache", output=tmp_path / "m.rai"
    )
    with zipfile.ZipFile(tmp_path / "m.rai") as archive:
        names = archive.namelist()
        stored = {info.filename: info.compress_type for info in archive.infolist()}
        files = {name: archive.read(name) for name in names}
    assert names[0] == "manifest.json"
    assert set(stored.values()) == {zipfile.ZIP_STORED}
    manifest = json.loads(files["manifest.json"])
    page = (Path(__file__).parent.parent / "docs" / "artifact.md").read_text(encoding="utf-8")
    assert [key for key in manifest if f"`{key}`" not in page] == []
    assert [key for key in manifest["cache_parts"] if f"`{key}`" not in page] == []
    rest = {key: value for key, value in manifest.items() if key not in ("digest", "seal")}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    assert manifest["digest"] == hashlib.sha256(canonical.encode()).hexdigest()
    counted = hashlib.sha256()
    for item in (item for pair in sorted(manifest["cache_parts"].items()) for item in pair):
        counted.update(struct.pack("<Q", len(item.encode())) + item.encode())
    assert manifest["cache_digest"] == counted.hexdigest()
    assert {row["name"] for row in manifest["members"]} == set(names) - {"manifest.json"}
    whole = (tmp_path / "m.rai").read_bytes()
    for row in manifest["members"]:
        data = files[row["name"]]
        assert (row["size"], row["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        assert len(data) < 64 or whole.index(data) % 64 == 0
        (tmp_path / "read" / row["name"]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "read" / row["name"]).write_bytes(data)
    feed = sample_inputs(striped())
    # External data lie beside the model for whoever reads by ONNX's own rules.
    models = [name for name in names if name.endswith("part.onnx")]
    for name in models:
        moved = tmp_path / "read" / name.replace("/", "_")
        moved.write_bytes(files[name])
        ort.InferenceSession(moved, providers=["CPUExecutionProvider"])
    assert models, "the part that stays on the CPU is a model of its own"
    session = ort.InferenceSession(
        tmp_path / "read" / "model.onnx", providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(["output"], feed)
    expected = run_session(open_session(striped()), feed)
    np.testing.assert_allclose(found, expected["output"], rtol=1e-4, atol=1e-5)


FAULTS: dict[str, Callable[[Path], list[str | Path]]] = {
    "no such model": lambda f: ["compile", f / "none.onnx"],
    "a folder": lambda f: ["compile", f],
    "unknown target": lambda f: ["compile", f / "m.onnx", "--target", "strx"],
    "no such dimension": lambda f: ["compile", f / "m.onnx", "--dim", "batch=1"],
    "dimension of nothing": lambda f: ["compile", f / "m.onnx", "--dim", "batch"],
    "key that is a path": lambda f: ["compile", f / "m.onnx", "--cache-key", "../x"],
    "output of another kind": lambda f: ["compile", f / "m.onnx", "-o", f / "m.zip"],
    "gate of nothing": lambda f: ["compile", f / "m.onnx", "--min-offload", "95%"],
    "no such artifact": lambda f: ["run", f / "none.rai"],
    "no such input": lambda f: ["run", f / "m.onnx", "--input", f / "wrong-name.npz"],
    "input of another type": lambda f: ["run", f / "m.rai", "--input", f / "wrong-type.npz"],
    "input of another shape": lambda f: ["run", f / "m.onnx", "--input", f / "wrong-shape.npz"],
    "the same, compiled": lambda f: ["run", f / "m.rai", "--input", f / "wrong-shape.npz"],
    "input file that is not there": lambda f: ["run", f / "m.rai", "--input", f"input={f}/n.npy"],
    "output in no known form": lambda f: ["run", f / "m.rai", "--output", f / "o.txt"],
    "no such side": lambda f: ["compare", f / "m.onnx", f / "none.onnx"],
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, compiled, and inputs that do not fit it."""
    folder = tmp_path_factory.mktemp("small")
    ir.save(striped(), folder / "m.onnx")
    compile_model(folder / "m.onnx", cache_dir=folder / "cache", output=folder / "m.rai")
    shape = (1, 8, 16, 16)
    np.savez(folder / "wrong-name.npz", image=np.zeros(shape, np.float32))
    np.savez(folder / "wrong-type.npz", input=np.zeros(shape))
    np.savez(folder / "wrong-shape.npz", input=np.zeros((1, 8, 16, 17), np.float32))
    return folder


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_use_is_exit_code_2_and_one_clear_error(
    fault: str,
    small: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vermilion = command_line(capfd, monkeypatch, tmp_path / "cache")
    before = sorted(entry.name for entry in small.iterdir())
    done = vermilion(*FAULTS[fault](small))
    assert done.code == 2
    assert done.out == ""
    assert done.err.count("error: ") == 1
    assert "Traceback" not in done.err
    assert "fault in vermilion" not in done.err
    assert sorted(entry.name for entry in small.iterdir()) == before
    assert vermilion(*FAULTS[fault](small), "--json").data["error"]["message"]


def test_gates_on_the_command_line(
    small: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vermilion = command_line(capfd, monkeypatch, tmp_path / "cache")
    words = ["compile", small / "m.onnx", "--target", "strix", "-o", tmp_path / "out.rai"]
    missed = vermilion(*words, "--min-offload", "operators=80%")
    assert missed.code == 1
    assert "75.000% of the operators are offloaded to stx, 80% were asked for" in missed.err
    assert "hint: " in missed.err
    assert not (tmp_path / "out.rai").exists()
    met = vermilion(*words, "--min-offload", "operators=75%", "--json")
    assert met.code == 0
    kept = (tmp_path / "out.rai").read_bytes()
    assert vermilion(*words, "--min-offload", "operators=80%").code == 1
    assert (tmp_path / "out.rai").read_bytes() == kept
