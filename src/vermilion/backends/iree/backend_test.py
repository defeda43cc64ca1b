from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from models import Net, small_cnn
from vermilion import compile_model
from vermilion.api import Compiled
from vermilion.backends.base import Array, CompileOptions, Part, PartFiles, Program
from vermilion.backends.iree.backend import CPU_PROGRAM, IreeBackend
from vermilion.backends.iree.found import Device, paired
from vermilion.backends.iree.signature import PART_FILE, read_signature
from vermilion.backends.iree.toolchain import Work, compile_for_gpu, import_part
from vermilion.errors import ArtifactError, DeviceError, Refusal, UnsupportedError
from vermilion.hardware.gpu import find_gpus
from vermilion.hardware.targets.find import find_target
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.literal.types import complete_types
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.samples import sample_inputs
from vermilion.progress import no_progress
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.session import Session

pytestmark = pytest.mark.needs("iree")

THREE = "gfx942,gfx1100,gfx1151"
RECORDED = Path(__file__).parents[2] / "hardware" / "recorded"
NOWHERE = Refusal("this test has no GPU", "none is needed")


@dataclass(frozen=True)
class Files:
    """A compiled part in a folder."""

    folder: Path
    program: Program = field(default_factory=lambda: Program(files=()))

    def read(self, name: str) -> memoryview:
        return memoryview((self.folder / name).read_bytes())

    def weights(self) -> Mapping[str, Array]:
        return self.program.weights or {}


def product() -> ir.Model:
    """Return one matrix product that is large enough for the matrix units, and a Relu."""
    net = Net("product", seed=6)
    x = net.input("x", (64, 512))
    y = net.op("MatMul", x, net.constant("w", net.normal((512, 64), 0.04)), name="product")
    net.output(net.op("Relu", y, name="relu"), "y", (64, 64))
    complete_types(model := net.model())
    return model


def part_of(model: ir.Model) -> Part:
    return Part("vaiml_par_0", "gpu", "iree", model, tuple(n.name or "" for n in model.graph), 0.0)


def without_gpu() -> IreeBackend:
    return IreeBackend(find=lambda: NOWHERE)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    folder = tmp_path_factory.mktemp("three")
    return compile_model(small_cnn(), target=THREE, cache_dir=folder, output=folder / "three.rai")


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, Path]:
    folder = tmp_path_factory.mktemp("half")
    options = CompileOptions(precision="fp16")
    program = without_gpu().compile(part_of(product()), find_target("gfx1100"), options, folder)
    return program, folder


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle without this machine's seal."""
    folder = tmp_path_factory.mktemp("elsewhere")
    done = compile_model(product(), target="gfx1201", precision="fp16", cache_dir=folder)
    manifest = done.artifact / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "seal": ""}))
    return done.artifact


def test_one_artifact_for_three_gpus(three: Compiled) -> None:
    with Session(three.artifact) as session:
        (part,) = session.manifest.parts
        programs = {f"{gpu}.vmfb" for gpu in THREE.split(",")}
        assert set(part.files) >= {*programs, CPU_PROGRAM, "log.txt"}
        assert session.manifest.target == THREE
        inputs = sample_inputs(small_cnn())
        (found,) = session.run(None, inputs)
    expected = run_session(open_session(small_cnn()), inputs)["output"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert three.report.verification[0]["cosine"] > 0.99999
    assert three.report.verification[0]["proven_of"] == "CPU twin"
    # For gfx942 the compiler shows other assembly than its code object had: the shown one is taken.
    own = str(three.report.verification[0]["interpreted"])
    assert all(f"{gpu} (" in own for gpu in THREE.split(","))
    assert three.report.summary.offloaded_operators == three.report.summary.operators


def test_the_report_has_the_kernels_of_all(three: Compiled) -> None:
    rows = three.report.machine_code
    assert {row["gpu"] for row in rows} == set(THREE.split(","))
    assert all(row["code_bytes"] > 0 and row["vgprs"] > 0 for row in rows)
    # CDNA has matrix instructions for float32, RDNA 3 has none.
    assert any(row["matrix_instructions"] for row in rows if row["gpu"] == "gfx942")
    assert not any(row["matrix_instructions"] for row in rows if row["gpu"] != "gfx942")


def test_the_numbers_are_the_cpus_and_it_says_so(half: tuple[Program, Path]) -> None:
    program, folder = half
    assert program.modelled
    loaded = without_gpu().load(
        program, Files(folder, program), find_target("gfx1100"), CompileOptions()
    )
    assert "gfx1100 (modelled" in loaded.runs_on
    inputs = sample_inputs(product())
    expected = run_session(open_session(product()), inputs)["y"]
    for _ in range(2):
        found = loaded.run(inputs)["y"]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=4e-3)
        assert not np.array_equal(found, expected), "float16 rounds"


def test_float16_uses_the_matrix_units(half: tuple[Program, Path]) -> None:
    program, _ = half
    assert sum(int(str(row["matrix_instructions"])) for row in program.machine_code) > 0
    assert program.notes == ()
    assert program.details["fp16_operators"] == "2"
    assert program.details["fp16_kept_fp32"] == "{}"
    assert program.details["iree-base-compiler"]


@pytest.mark.skipif(Path("/dev/kfd").exists(), reason="this machine has a compute driver")
def test_the_program_of_the_gpu_that_is_here_is_chosen(half: tuple[Program, Path]) -> None:
    program, folder = half
    devices = (Device("hip://0", "gfx1036"), Device("hip://1", "gfx1100"))
    backend = IreeBackend(find=lambda: devices)
    target = find_target("gfx942,gfx1100")
    assert backend.available(target).reason == ""
    assert backend.versions(target)["driven"] == "gfx1100"
    with pytest.raises(DeviceError, match="IREE on hip://1"):  # which this machine does not have
        backend.load(program, Files(folder, program), target, CompileOptions())
    other = IreeBackend(find=lambda: devices).available(find_target("gfx942"))
    assert "this machine has gfx1036, gfx1100" in other.reason


def recorded_gpus(machine: str, root: Path) -> list[str]:
    """Return the GPUs of a recorded machine, as its compute driver lists them."""
    for line in (RECORDED / f"linux_{machine}.txt").read_text().splitlines():
        path, is_file, text = line.partition(": ")
        if is_file and " -> " not in line:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text.replace("\\n", "\n") + "\n")
    return [gpu.gfx for gpu in find_gpus((), root)]


@dataclass
class Reads:
    """A part of a bundle that keeps the names of what is read."""

    files: PartFiles
    names: list[str] = field(default_factory=list)

    def read(self, name: str) -> memoryview:
        self.names.append(name)
        return self.files.read(name)

    def weights(self) -> Mapping[str, Array]:
        return self.files.weights()


@pytest.mark.skipif(Path("/dev/kfd").exists(), reason="this machine has a compute driver")
@pytest.mark.parametrize(
    ("before", "uri", "program"),
    [
        ((), "hip://0", "gfx1151.vmfb"),
        (("gfx1036",), "hip://1", "gfx1151.vmfb"),  # no program for the first
        (("gfx1036", "gfx942"), "hip://1", "gfx942.vmfb"),
    ],
)
def test_the_program_for_a_recorded_device_list(
    before: tuple[str, ...], uri: str, program: str, three: Compiled, tmp_path: Path
) -> None:
    listed = [*before, *recorded_gpus("strix_halo", tmp_path)]
    assert listed[-1] == "gfx1151"
    backend = IreeBackend(find=lambda: paired(len(listed), listed))
    reader = open_artifact(three.artifact)
    (part,) = reader.manifest.parts
    files = Reads(reader.part(part.name))
    compiled = Program(part.files, part.modelled, dict(part.details))
    with pytest.raises(DeviceError) as caught:  # it is not really there
        backend.load(compiled, files, find_target(THREE), CompileOptions())
    assert caught.value.where == f"IREE on {uri}, opening"
    assert files.names == [PART_FILE, program]


def test_an_architecture_that_the_compiler_refuses(tmp_path: Path) -> None:
    work = Work(tmp_path, tmp_path / "log.txt", no_progress)
    mlir = import_part(product(), work)
    with pytest.raises(UnsupportedError, match="does not compile for gfx906") as error:
        compile_for_gpu(mlir, "gfx906", tmp_path / "x.vmfb", work)
    assert "gfx90a" in error.value.hint


def test_what_fails_to_compile_runs_on_the_cpu_with_the_reason(tmp_path: Path) -> None:
    net = Net("pool", seed=1)
    y = net.op("LpPool", net.input("x", (1, 1, 4, 4)), name="pool", kernel_shape=[2, 2])
    net.output(y, "y", (1, 1, 3, 3))
    done = compile_model(net.model(), target="gfx942", cache_dir=tmp_path)
    (node,) = done.report.nodes
    assert node["device"] == "cpu"
    assert "failed to compile" in str(node["reason"])
    assert "it has no `LpPool`" in str(node["reason"])
    assert done.report.verification[0]["proven_of"] == "CPU's parts"


def test_a_compiler_that_takes_too_long(tmp_path: Path) -> None:
    backend = IreeBackend(find=lambda: NOWHERE, compile_limit_s=0.01)
    with pytest.raises(UnsupportedError, match=r"took more than 0\.01 s"):
        backend.compile(part_of(product()), find_target("gfx942"), CompileOptions(), tmp_path)
    assert "== importing" in (tmp_path / "log.txt").read_text()


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    options = CompileOptions(progress=lambda *step: told.append(step))
    without_gpu().compile(part_of(product()), find_target("gfx1201"), options, tmp_path)
    assert told == [
        ("import into IREE", 0, 3),
        ("compile for gfx1201", 1, 3),
        ("compile for the CPU", 2, 3),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"inputs": 1, "outputs": []}',
        '{"inputs": [{}], "outputs": []}',
        '{"inputs": [{"name": "x", "dtype": "what", "shape": [1]}], "outputs": []}',
        '{"inputs": [{"name": "x", "dtype": "O", "shape": [1]}], "outputs": []}',
        '{"inputs": [{"name": "x", "dtype": "<f4", "shape": [-1]}], "outputs": []}',
        '{"inputs": [], "outputs": [], "weights": [{"key": "weight0"}]}',
    ],
)
def test_a_damaged_part_file(tmp_path: Path, text: str) -> None:
    (tmp_path / PART_FILE).write_text(text)
    (tmp_path / CPU_PROGRAM).write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"part\.json"):
        without_gpu().load(
            Program(files=()), Files(tmp_path), find_target("gfx942"), CompileOptions()
        )


def test_a_bundle_from_elsewhere_is_compiled_again_in_its_own_precision(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path))
    with Session(elsewhere) as session:
        assert "was not made on this machine" in session.notes[0]
        (part,) = session.manifest.parts
        assert "gfx1201.vmfb" in part.files
        assert part.details["fp16_operators"] == "2"


def test_open_sizes_are_compiled_once_and_run_at_any(tmp_path: Path) -> None:
    done = compile_model(small_cnn(batch="batch"), target="gfx942", cache_dir=tmp_path)
    assert {node["device"] for node in done.report.nodes} == {"gpu"}
    assert done.report.verification[0]["status"] == "proven"
    plain = open_session(small_cnn(batch="batch"))
    with Session(done.artifact) as session:
        for batch in (1, 3):
            given = {
                key: np.repeat(array, batch, axis=0)
                for key, array in sample_inputs(small_cnn()).items()
            }
            (found,) = session.run(None, given)
            np.testing.assert_allclose(found, run_session(plain, given)["output"], atol=1e-5)


def test_large_weights_are_beside_the_programs(half: tuple[Program, Path]) -> None:
    program, folder = half
    assert program.weights is not None
    (weight,) = program.weights.values()
    assert weight.nbytes > 3 * max(path.stat().st_size for path in folder.glob("*.vmfb"))
    signature = read_signature((folder / PART_FILE).read_bytes())
    assert [p.of for p in signature.parameters] == list(program.weights)


def test_a_simplified_network_compiles_from_its_own_copy(tmp_path: Path) -> None:
    model = simplify(small_cnn(bn=True)).model
    complete_types(model)
    name = model.graph.name
    without_gpu().compile(part_of(model), find_target("gfx90a"), CompileOptions(), tmp_path)
    assert model.graph.name == name
