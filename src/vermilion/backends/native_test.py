"""Generated code on whole networks: right, the same on any number of workers, on every chip."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import models
from float_graphs import run_native
from native_text import read
from vermilion.api import Compiled, compile_model
from vermilion.backends.base import CompileOptions, Part
from vermilion.backends.native import NativeBackend
from vermilion.errors import UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import CpuFacts
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.literal.run import run_literally
from vermilion.ir.literal.types import complete_types
from vermilion.ir.measure import agreement
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.samples import sample_inputs
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.prove_part import StagedFiles
from vermilion.runtime.session import Session
from vermilion.runtime.write import CompiledPart

NETWORKS: dict[str, Callable[[], ir.Model]] = {
    "small cnn": lambda: models.small_cnn(bn=True, image=24),
    "branches": models.branching_cnn,
    "depthwise": lambda: models.mobilenet(image=64),
    "transformer": models.transformer_block,
    "resnet": lambda: models.resnet18(image=64, classes=10),
}
# Of the largest output value: sums in another order; Winograd's transforms lose some more.
PLAIN, WINOGRAD = 1e-5, 1e-3
TARGETS = [
    name
    for name in ("zen2", "zen3", "zen4", "zen5", "x86-64-v3", "x86-64-v4")
    if NativeBackend().available(find_target(name)).usable
]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have one cache for all: several tests look at one network from several sides."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERMILION_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def all_native(compiled: Compiled) -> Compiled:
    manifest = open_artifact(compiled.artifact).manifest
    assert {part.backend for part in manifest.parts} == {"native"}
    return compiled


def worst(model: ir.Model, session: Session) -> float:
    """Return the largest error, as a part of the largest value of its output."""
    inputs = sample_inputs(model, seed=5)
    expected = run_session(open_session(model), inputs)
    found = dict(zip(expected, session.run(list(expected), inputs), strict=True))
    return max(
        float(np.abs(found[name] - array).max() / np.abs(array).max())
        for name, array in expected.items()
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_computes_what_it_says(name: str, target: str) -> None:
    model = NETWORKS[name]()
    with all_native(compile_model(model, target=target, winograd=False)).session() as session:
        assert worst(model, session) < PLAIN


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4-base", "x86-64-v4"])
def test_products_of_integers_are_the_same_bits_with_and_without_vnni(target: str) -> None:
    if not NativeBackend().available(find_target(target)).usable:
        pytest.skip(f"this machine is no {target}")
    random = np.random.default_rng(0)
    weights = random.integers(-128, 128, (32, 16, 3, 3)).astype(np.int8)
    given = {"x": random.integers(0, 256, (1, 16, 9, 9)).astype(np.uint8)}
    model = ir.from_onnx_text("""<ir_version: 8, opset_import: ["": 17]>
    g (uint8[1,16,9,9] x, int8[32,16,3,3] w) => (uint8[1,32,7,7] y)
    <float s = {0.03125}, uint8 z = {128}, float r = {0.0078125}, int8 n = {0}> {
      y = QLinearConv (x, s, z, w, r, n, s, z) }""")
    weight = model.graph.inputs.pop()
    weight.const_value = ir.tensor(weights, name="w")
    model.graph.register_initializer(weight)
    expected = run_literally(model, given).outputs["y"]
    with all_native(compile_model(model, target=target)).session() as session:
        np.testing.assert_array_equal(session.run(None, given)[0], expected)


def test_winograd_is_another_kernel_and_near(tmp_path: Path) -> None:
    model = NETWORKS["resnet"]()
    kernels = []
    for winograd in (True, False):
        dump = tmp_path / str(winograd)
        with compile_model(model, winograd=winograd, dump=dump).session() as session:
            assert worst(model, session) < (WINOGRAD if winograd else PLAIN)
        kernels.append((dump / "vaiml_par_0" / "kernels.txt").read_text())
        assert "define" in (dump / "vaiml_par_0" / "program.ll").read_text()
        assert "vfmadd" in (dump / "vaiml_par_0" / "program.s").read_text()
    assert "winograd" in kernels[0]
    assert "winograd" not in kernels[1]


def test_bf16_loses_what_bfloat16_loses() -> None:
    model = NETWORKS["resnet"]()
    inputs = sample_inputs(model, seed=5)
    ((name, expected),) = run_session(open_session(model), inputs).items()
    with all_native(compile_model(model, precision="bf16")).session() as session:
        (found,) = session.run([name], inputs)
    # 8 bits of mantissa: about 50 dB for one product, less over 18 layers.
    assert 25 < agreement(name, expected, found).sqnr_db < 60


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_any_number_of_workers_gives_the_same_bits(name: str, precision: str) -> None:
    model = NETWORKS[name]()
    artifact = all_native(compile_model(model, precision=precision)).artifact
    inputs = sample_inputs(model, seed=5)
    answers = []
    for threads in (1, 2, 4, 1):
        with Session(artifact, threads=threads) as session:
            answers += [session.run(None, inputs) for _ in range(2)]
    for answer in answers[1:]:
        for first, other in zip(answers[0], answer, strict=True):
            np.testing.assert_array_equal(first, other)


def test_two_sessions_at_once_do_not_disturb_one_another() -> None:
    model = NETWORKS["small cnn"]()
    artifact = all_native(compile_model(model)).artifact
    feeds = [sample_inputs(model, seed=seed) for seed in range(2)]
    with Session(artifact) as one, Session(artifact) as other:
        expected = [
            session.run(None, feed)[0] for session, feed in zip((one, other), feeds, strict=True)
        ]
        wrong: list[int] = []

        def run(number: int) -> None:
            session = (one, other)[number]
            answers = (session.run(None, feeds[number])[0] for _ in range(50))
            wrong.extend(number for a in answers if not np.array_equal(a, expected[number]))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_code_of_another_chip_is_not_for_this_one() -> None:
    strange = find_target("zen5")
    missing = NativeBackend().available(
        type(strange)(
            name="next", kind="cpu", title="", source="", cpu=CpuFacts(frozenset({"avx-1024"}))
        )
    )
    assert not missing.usable
    assert "avx-1024" in missing.reason


def test_an_input_of_another_shape_than_compiled_for_is_refused() -> None:
    """What lies before a part may give another shape than the file declares of it."""
    model = read("(float[4,6] x) => (float[4,6] y) { y = Relu(x) }")
    for shape in ((4, 5), (3, 6), (6, 4), (24,), ()):
        with pytest.raises(UnsupportedError, match=r"`x` has the shape .* \[4, 6\]"):
            run_native(model, {"x": np.ones(shape, np.float32)}, "cpu", "fp32")


def test_what_follows_from_fixed_sizes_beside_dynamic_ones_needs_no_kernel(tmp_path: Path) -> None:
    """LogSoftmax of before opset 13 flattens: its shape is put back by what a Shape gives."""
    text = """<ir_version: 8, opset_import: ["" : 12]>
    g (float[N,300] x, float[3,17] s) => (float[N,300] y, float[3,17] t) {
      a = Exp (x) b = Tanh (a) y = Sigmoid (b) t = LogSoftmax <axis = 0> (s) }"""
    model = onnx.parser.parse_model(text)
    graph = simplify(ir.from_proto(model)).model
    complete_types(graph)
    piece = graph.clone()
    piece.graph.outputs.pop(0)
    for node in reversed([n for n in piece.graph if n.op_type in ("Exp", "Tanh", "Sigmoid")]):
        piece.graph.remove(node, safe=True)
    piece.graph.inputs.pop(0)
    assert "Shape" in {node.op_type for node in piece.graph}
    part, target = Part("part", "cpu", "native", piece, (), 0.0), find_target("cpu")
    NativeBackend().check(part, target, CompileOptions())
    program = NativeBackend().compile(part, target, CompileOptions(), tmp_path)
    compiled = CompiledPart(part, program, tmp_path)
    loaded = NativeBackend().load(program, StagedFiles(compiled), target, CompileOptions())
    s = np.random.default_rng(0).standard_normal((3, 17)).astype(np.float32)
    expected = s - np.log(np.exp(s.astype(np.float64)).sum())
    np.testing.assert_allclose(loaded.run({"s": s})["t"], expected, rtol=1e-4, atol=1e-5)
