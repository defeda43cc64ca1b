"""The backend against a process that misbehaves in each way that the vendor's provider has."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import psutil
import pytest

import fake_provider
from bundles import small_summary
from vermilion.backends.base import Availability, CompileOptions, Part, Program
from vermilion.backends.provider.child import Limits, ProviderProcess
from vermilion.backends.provider.contract import CPU, Request
from vermilion.backends.provider.part import pack_folder, unpack_folder
from vermilion.backends.provider.worker import RECORD_ASSIGNMENT
from vermilion.backends.vitisai.backend import VitisAiBackend
from vermilion.backends.vitisai.found import Stack
from vermilion.errors import ArtifactError, DeviceError, VermilionError
from vermilion.hardware.targets.find import find_target
from vermilion.ir.execute import open_session, run_session, split_weights
from vermilion.process.arrays import TensorFile
from vermilion.process.child import ChildError
from vermilion.runtime.digest import model_digest
from vermilion.runtime.session import Session
from vermilion.runtime.write import ArtifactContent, CompiledPart, write_artifact

STRIX = find_target("strix")
STACK = Stack("1.7.1", "1.23.0", "", "32.0.203.280", "1.0.20.0", "strix")
# Long enough for a machine that is busy with other things.
SHORT = Limits(compile_s=90.0, load_s=90.0, run_s=90.0)
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[4, 3, 6, 6] x) => (float[4, 8, 6, 6] y) {
    a = Conv<pads=[1,1,1,1]> (x, w)
    b = Conv (a, v)
    y = Add (b, c)
}"""


def part() -> Part:
    random = np.random.default_rng(0)
    proto = onnx.parser.parse_model(TEXT)
    for name, shape in (("w", (512, 3, 3, 3)), ("v", (8, 512, 1, 1)), ("c", (1, 8, 6, 6))):
        array = random.standard_normal(shape, dtype=np.float32) / 8
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    return Part("vaiml_par_0", "npu", "vitisai", model, ("0", "1", "2"), 0.0)


def backend(mode: str, stack: Stack = STACK, limits: Limits = SHORT) -> VitisAiBackend:
    worker = (fake_provider.__name__, mode)
    return VitisAiBackend(worker=worker, find=lambda _: stack, limits=limits)


class Files:
    def __init__(self, folder: Path, weights: Mapping[str, np.ndarray]) -> None:
        self._folder, self._weights = folder, weights

    def read(self, name: str) -> memoryview:
        return memoryview((self._folder / name).read_bytes())

    def weights(self) -> Mapping[str, np.ndarray]:
        return self._weights


FAULTS = {
    "access violation while compiling": "the process ended while opening: SIGSEGV",
    "access violation while running": "the process ended while running: SIGSEGV",
    "exception": "Flexible L1 placement failure in layer 105",
    "provider missing": "the session has no `VitisAIExecutionProvider`",
    "everything on the CPU": "says that 3 of 3 operators are on the NPU, and every node that was"
    " seen to run ran on the CPU (3 events)",
    "a plan that nothing supports": "preliminary summary supports no operator, the final one"
    " offloads 3",
    "one entry unwritten": "output `y`: entry 1 of the batch of 4 is never written",
    "one entry wrong": "output `y`: entry 3 of the batch of 4 is wrong, the others are right",
    "NaN": "of its values are NaN where the CPU's are numbers",
    "wrong": "output `y`: SQNR -6.0 dB",
    "nothing written": "output `y`: it is never written",
    "text for a number": "the process broke while opening: it answers nonsense",
    "negative events": "the process broke while closing: it answers nonsense",
    "dies when it is closed": "the process ended while closing: exit code 9",
    "cuts its files short": "output `y`: its file was cut short or damaged",
    "paths without end": "a file that cannot be kept: File name too long",
    "names that no other system takes": "a file that cannot be kept: 'part/x:y.bin'",
}


@pytest.mark.parametrize("mode", FAULTS)
def test_each_fault_is_caught_and_named(mode: str, tmp_path: Path) -> None:
    with pytest.raises(VermilionError) as caught:
        backend(mode).compile(part(), STRIX, CompileOptions(), tmp_path)
    assert FAULTS[mode] in caught.value.message
    assert caught.value.hint


def test_the_last_words_before_a_crash_are_kept(tmp_path: Path) -> None:
    with pytest.raises(ChildError) as caught:
        backend("access violation while compiling").compile(
            part(), STRIX, CompileOptions(), tmp_path
        )
    assert (caught.value.kind, caught.value.stage) == ("crashed", "opening")
    assert "xir_deserialize_cif" in caught.value.hint


@pytest.mark.parametrize(
    ("mode", "limits", "stage"),
    [
        ("hang while compiling", replace(SHORT, compile_s=1.0), "opening"),
        ("hang while running", replace(SHORT, run_s=1.0), "running"),
    ],
)
def test_a_hang_is_ended(mode: str, limits: Limits, stage: str, tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(ChildError) as caught:
        backend(mode, limits=limits).compile(part(), STRIX, CompileOptions(), tmp_path)
    assert (caught.value.kind, caught.value.stage) == ("hung", stage)
    assert "took more than 1 s and was stopped" in caught.value.message
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize("mode", ["two of three on the CPU", "a report of one on the NPU"])
def test_what_ran_on_the_cpu_did_not_run_on_the_npu(mode: str, tmp_path: Path) -> None:
    program = backend(mode).compile(part(), STRIX, CompileOptions(), tmp_path)
    assert set(program.elsewhere) == {0, 1}, "the largest two"
    assert any("2 of 3 operators" in note for note in program.notes)
    assert program.details["not_seen_on_npu"] == "2"


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no pipes in folders")
def test_what_is_written_without_end_is_not_read(tmp_path: Path) -> None:
    backend("writes without end").compile(part(), STRIX, CompileOptions(), tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 1 << 20


def test_no_process_and_no_folder_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    backend("leaves processes behind").compile(part(), STRIX, CompileOptions(), tmp_path / "p")
    with pytest.raises(ChildError):
        backend("access violation while running").compile(
            part(), STRIX, CompileOptions(), tmp_path / "q"
        )
    running = [
        child
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "fake_provider" in " ".join(child.cmdline())
    ]
    assert running == []
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="this system executes no scripts")
def test_what_xrt_smi_has_not_seen_did_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, files = compiled(tmp_path)
    tool = tmp_path / "bin" / "xrt-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho No hardware contexts running on device\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    loaded = backend("good").load(program, files, STRIX, CompileOptions())
    for _ in range(2):
        with pytest.raises(DeviceError, match="not one command was put to the NPU"):
            loaded.run({"x": np.ones((4, 3, 6, 6), np.float32)})
    with pytest.raises(DeviceError, match="not one command was put to the NPU"):
        backend("good").compile(part(), STRIX, CompileOptions(), tmp_path / "again")


LATER = {
    "nothing written later": "output `y`: it is never written",
    "NaN later": "output `y`: 1 of its 1152 values are NaN where the CPU's are numbers",
    "fails later": "device lost",
}


@pytest.mark.parametrize("mode", LATER)
def test_a_later_run_that_fails_is_no_result(mode: str, tmp_path: Path) -> None:
    program, files = compiled(tmp_path)
    loaded = backend(mode).load(program, files, STRIX, CompileOptions())
    x = {"x": np.ones((4, 3, 6, 6), np.float32)}
    loaded.run(x)
    for _ in range(2):
        with pytest.raises(DeviceError, match=LATER[mode]):
            loaded.run(x)


def compiled(tmp_path: Path) -> tuple[Program, Files]:
    made = part()
    program = backend("good").compile(made, STRIX, CompileOptions(), tmp_path)
    weights = split_weights(made.model)[1]
    assert list(weights) == ["w", "v"], "both are large enough to be lent"
    # A bundle gives them in an order of its own.
    return program, Files(tmp_path, dict(reversed(weights.items())))


def test_a_part_that_is_right_is_kept_loaded_and_run(tmp_path: Path) -> None:
    program, files = compiled(tmp_path)
    assert not program.modelled
    assert program.details["ran_on_npu"] == "True"
    assert program.details["offloaded"] == "3"
    assert program.details["driver"] == "32.0.203.280"
    assert {"part.onnx", "provider_options.json", "vaiml_config.json"} <= set(program.files)
    with tarfile.open(tmp_path / "provider.tar") as archive:
        assert "part/context.json" in archive.getnames()
        assert "part/vaiml_par_0/0/deep/er/program.bin" in archive.getnames()
    loaded = backend("good").load(program, files, STRIX, CompileOptions())
    x = np.random.default_rng(1).standard_normal((4, 3, 6, 6), dtype=np.float32)
    session = open_session(part().model)
    for scale in (1, 2):
        expected = run_session(session, {"x": scale * x})["y"]
        np.testing.assert_allclose(loaded.run({"x": scale * x})["y"], expected, atol=1e-4)
    assert "in a child process" in loaded.runs_on


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"driver": "32.0.203.376"}, "the NPU driver was 32.0.203.280 and is 32.0.203.376"),
        ({"provider_version": "1.23.3"}, "the provider was 1.23.0"),
        ({"firmware": ""}, "the NPU's firmware was 1.0.20.0 and is unknown"),
    ],
)
def test_a_stale_part_is_refused(change: dict[str, str], words: str, tmp_path: Path) -> None:
    program, files = compiled(tmp_path)
    other = backend("good", replace(STACK, **change))
    with pytest.raises(ArtifactError, match=words):
        other.load(program, files, STRIX, CompileOptions())


def test_it_survives_a_bundle_and_runs_in_a_session(tmp_path: Path) -> None:
    made = part()
    npu = backend("good")
    program = npu.compile(made, STRIX, CompileOptions(), tmp_path / "p")
    content = ArtifactContent(
        model=made.model,
        parts=(CompiledPart(made, program, tmp_path / "p"),),
        target="strix",
        options={},
        cache_parts={"model": model_digest(made.model)},
        summary=small_summary(),
    )
    write_artifact(tmp_path / "bundle", content)
    x = np.random.default_rng(1).standard_normal((4, 3, 6, 6), dtype=np.float32)
    expected = run_session(open_session(made.model), {"x": x})["y"]
    with Session(tmp_path / "bundle", backends={"vitisai": npu}) as session:
        assert session.get_providers() == ["VitisAIExecutionProvider"]
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, atol=1e-4)
    with pytest.raises(DeviceError, match="no VitisAI provider is installed"):
        Session(tmp_path / "bundle")


def test_a_packed_folder_that_leads_elsewhere(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../evil"))
    with pytest.raises(ArtifactError, match="cannot be unpacked"):
        unpack_folder(memoryview(buffer.getvalue()), tmp_path / "f")
    assert not (tmp_path / "evil").exists()
    pack_folder(tmp_path / "missing", tmp_path / "empty.tar")
    unpack_folder(memoryview((tmp_path / "empty.tar").read_bytes()), tmp_path / "g")


def test_options_that_the_provider_removed_or_changed(tmp_path: Path) -> None:
    program, files = compiled(tmp_path)
    (tmp_path / "provider_options.json").write_text("[]")
    kept = tuple(name for name in program.files if name != "provider_options.json")
    for damaged in (program, replace(program, files=kept)):
        with pytest.raises(ArtifactError, match="cannot be read"):
            backend("good").load(damaged, files, STRIX, CompileOptions())


def test_a_crash_in_a_later_run_is_one_clear_error(tmp_path: Path) -> None:
    program, files = compiled(tmp_path)
    loaded = backend("access violation while running").load(program, files, STRIX, CompileOptions())
    with pytest.raises(ChildError, match="SIGSEGV"):
        loaded.run({"x": np.zeros((4, 3, 6, 6), np.float32)})


def test_the_real_worker_where_the_provider_is_not(tmp_path: Path) -> None:
    # ONNX Runtime only prints that it does not know the provider, and gives a CPU session.
    real = VitisAiBackend(find=lambda _: STACK, limits=SHORT)
    with pytest.raises(DeviceError, match="the session has no `VitisAIExecutionProvider`"):
        real.compile(part(), STRIX, CompileOptions(), tmp_path)


def test_the_real_worker_runs_and_counts(tmp_path: Path) -> None:
    model = part().model
    ir.save(model, tmp_path / "part.onnx")
    tensors = {
        "inputs": (TensorFile("x", "i.raw", "<f4", (4, 3, 6, 6)),),
        "outputs": (TensorFile("y", "o.raw", "<f4", (4, 8, 6, 6)),),
    }
    entries = {RECORD_ASSIGNMENT: "1"}
    request = Request(CPU, {}, **tensors, session_entries=entries, profile=True)
    x = np.random.default_rng(1).standard_normal((4, 3, 6, 6), dtype=np.float32)
    with ProviderProcess(request, tmp_path, open_limit_s=90, run_limit_s=90) as child:
        assert child.opened.providers == (CPU,)
        assert set(child.opened.assigned) == {CPU}
        found = child.run({"x": x})["y"]
        events = child.close().events
    np.testing.assert_array_equal(found, run_session(open_session(model), {"x": x})["y"])
    assert set(events) == {CPU}
    assert events[CPU] >= 2


def test_without_a_provider_it_is_not_available() -> None:
    answer = VitisAiBackend().available(STRIX)
    assert not answer.usable
    assert "no VitisAI provider is installed" in answer.reason
    assert answer.hint
    with pytest.raises(DeviceError, match="no VitisAI provider"):
        VitisAiBackend().compile(part(), STRIX, CompileOptions(), Path("nowhere"))


def test_the_reason_is_looked_for_once() -> None:
    asked: list[str] = []

    def find(target):
        asked.append(target.name)
        return Availability(usable=False, reason="no")

    one = VitisAiBackend(find=find)
    assert one.available(STRIX).reason == one.available(STRIX).reason == "no"
    assert asked == ["strix"]
