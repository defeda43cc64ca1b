"""The backend against a process that keeps programs, and misbehaves, as AMD's provider does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import fake_gpu_provider
from bundles import small_summary
from vermilion.backends.base import Array, Availability, CompileOptions, Part, Program
from vermilion.backends.migraphx.backend import PROVIDER_FILE, MigraphxBackend
from vermilion.backends.migraphx.found import Stack
from vermilion.backends.migraphx.options import CONTEXT_FILE, session_options, with_folder
from vermilion.backends.provider.child import Limits, ProviderProcess
from vermilion.backends.provider.contract import Request
from vermilion.backends.provider.part import tensor_files, unpack_folder, write_model
from vermilion.errors import ArtifactError, DeviceError, OptionError, VermilionError
from vermilion.hardware.options.gpu import BUILT_IN_WHEEL, MIGRAPHX, PLUGIN
from vermilion.hardware.targets.find import find_target
from vermilion.ir.execute import open_session, run_session, split_weights
from vermilion.ir.opset import required_inputs
from vermilion.process.child import ChildError
from vermilion.runtime.build import check_provider_options
from vermilion.runtime.digest import model_digest
from vermilion.runtime.session import Session
from vermilion.runtime.write import ArtifactContent, CompiledPart, write_artifact

GFX1100 = find_target("gfx1100")
BUILT_IN = Stack(
    MIGRAPHX, BUILT_IN_WHEEL, "1.27.1", "", "gfx1100", 0, hip="70051831", migraphx="3.0.70000"
)
AS_PLUGIN = replace(BUILT_IN, build=PLUGIN, library="/opt/libmigraphx-ep.so")
SHORT = Limits(compile_s=90.0, load_s=90.0, run_s=90.0)
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[4, 64] x) => (float[4, 128] y) { a = MatMul (x, w)  y = Relu (a) }"""
X = np.random.default_rng(3).standard_normal((4, 64), dtype=np.float32)


def part(seed: int = 0) -> Part:
    """Return one graph; the weights are the seed's."""
    proto = onnx.parser.parse_model(TEXT)
    weight = np.random.default_rng(seed).standard_normal((64, 128), dtype=np.float32) / 8
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return Part("vaiml_par_0", "gpu", "migraphx", ir.from_proto(proto), ("0", "1"), 0.0)


def backend(
    mode: str = "good", stack: Stack | Availability = BUILT_IN, limits: Limits = SHORT
) -> MigraphxBackend:
    worker = (fake_gpu_provider.__name__, mode)
    return MigraphxBackend(worker=worker, find=lambda _: stack, limits=limits)


class Files:
    def __init__(self, folder: Path, weights: Mapping[str, Array]) -> None:
        self.folder, self.lent = folder, weights

    def read(self, name: str) -> memoryview:
        return memoryview((self.folder / name).read_bytes())

    def weights(self) -> Mapping[str, Array]:
        return self.lent


def compiled(
    folder: Path, stack: Stack = BUILT_IN, seed: int = 0, **options: object
) -> tuple[Program, Files]:
    made = part(seed)
    program = backend(stack=stack).compile(made, GFX1100, CompileOptions(**options), folder)
    return program, Files(folder, split_weights(made.model)[1])


def expected(seed: int = 0) -> Array:
    return run_session(open_session(part(seed).model), {"x": X})["y"]


FAULTS = {
    "crash": "the process ended while opening: SIGABRT",
    "the CPU alone": "the session has no `MIGraphXExecutionProvider`: it has CPUExecutionProvider",
    "events on the CPU": "and all of 2 node runs were on the CPU",
    "no node": "lists `MIGraphXExecutionProvider`, and it was given no node",
    "wrong": "output `y`: SQNR -6.0 dB",
}


@pytest.mark.parametrize("mode", FAULTS)
def test_each_fault_is_caught_and_named(mode: str, tmp_path: Path) -> None:
    with pytest.raises(VermilionError) as caught:
        backend(mode).compile(part(), GFX1100, CompileOptions(), tmp_path)
    assert FAULTS[mode] in caught.value.message
    assert caught.value.hint


def test_a_hang_is_ended(tmp_path: Path) -> None:
    short = replace(SHORT, compile_s=1.0)
    with pytest.raises(ChildError, match="took more than 1 s") as caught:
        backend("hang", limits=short).compile(part(), GFX1100, CompileOptions(), tmp_path)
    assert caught.value.where == "MIGraphX provider, opening"


@pytest.mark.parametrize("stack", [BUILT_IN, AS_PLUGIN], ids=["built in", "plugin"])
def test_a_part_that_is_right_is_kept_loaded_and_run(stack: Stack, tmp_path: Path) -> None:
    program, files = compiled(tmp_path, stack)
    assert program.details["gfx"] == "gfx1100"
    assert program.details["cpu_share"] == "0.0000"
    assert program.notes == ()
    loaded = backend(stack=stack).load(program, files, GFX1100, CompileOptions())
    np.testing.assert_allclose(loaded.run({"x": X})["y"], expected(), atol=1e-5)
    assert "gfx1100, MIGraphXExecutionProvider 1.27.1" in loaded.runs_on
    assert "anew" not in loaded.runs_on
    unpack_folder(files.read(PROVIDER_FILE), tmp_path / "seen")
    assert (tmp_path / "seen" / CONTEXT_FILE).is_file() == (stack is AS_PLUGIN)


def test_the_provider_alone_would_run_another_models_program(tmp_path: Path) -> None:
    """Show the hazard that the folders are for, in the stand-in as in the provider's source."""
    shared = tmp_path / "shared"
    shared.mkdir()
    found = []
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        model = part(seed).model
        write_model(*split_weights(model), folder)
        request = Request(
            MIGRAPHX,
            {"migraphx_model_cache_dir": str(shared)},
            tensor_files("input", required_inputs(model)),
            tensor_files("output", model.graph.outputs),
        )
        worker = (fake_gpu_provider.__name__, "good")
        with ProviderProcess(
            request, folder, worker=worker, open_limit_s=90, run_limit_s=90
        ) as child:
            found.append(child.run({"x": X})["y"])
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.allclose(found[1], expected(1), atol=0.1)


@pytest.mark.parametrize("stack", [BUILT_IN, AS_PLUGIN], ids=["built in", "plugin"])
def test_no_two_contents_share_a_folder(stack: Stack, tmp_path: Path) -> None:
    contents = {
        "weights 0": compiled(tmp_path / "a", stack, seed=0),
        "weights 1": compiled(tmp_path / "b", stack, seed=1),
        "weights 0 in fp16": compiled(tmp_path / "c", stack, seed=0, precision="fp16"),
        "weights 0 again": compiled(tmp_path / "d", stack, seed=0),
    }
    keys = {name: program.details["content"] for name, (program, _) in contents.items()}
    assert keys.pop("weights 0 again") == keys["weights 0"], "the same content has the same name"
    assert len(set(keys.values())) == 3
    for name, seed in (("weights 0", 0), ("weights 1", 1)):
        program, files = contents[name]
        loaded = backend(stack=stack).load(program, files, GFX1100, CompileOptions())
        np.testing.assert_allclose(loaded.run({"x": X})["y"], expected(seed), atol=1e-5)
    program, files = contents["weights 0 in fp16"]
    half = backend(stack=stack).load(program, files, GFX1100, CompileOptions()).run({"x": X})["y"]
    np.testing.assert_array_equal(half, expected(0).astype(np.float16).astype(np.float32))


def test_versions_and_options_are_in_the_name(tmp_path: Path) -> None:
    program, _ = compiled(tmp_path / "a")
    newer, _ = compiled(tmp_path / "b", replace(BUILT_IN, migraphx="3.0.70100"))
    tuned, _ = compiled(tmp_path / "c", provider_options={"migraphx_exhaustive_tune": "1"})
    assert len({p.details["content"] for p in (program, newer, tuned)}) == 3


def test_other_weights_under_a_compiled_part_are_refused(tmp_path: Path) -> None:
    program, files = compiled(tmp_path)
    files.lent = split_weights(part(1).model)[1]
    with pytest.raises(ArtifactError, match="compiled from another model"):
        backend().load(program, files, GFX1100, CompileOptions())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gfx": "gfx1201"}, "the GPU was gfx1100 and is gfx1201"),
        ({"migraphx": "3.0.80000"}, "MIGraphX was 3.0.70000 and is 3.0.80000"),
        ({"hip": ""}, "HIP was 70051831 and is unknown"),
        ({"build": PLUGIN}, "the provider's build was built-in-1.27.1 and is plugin"),
    ],
)
def test_a_stale_part_is_refused(change: dict[str, str], words: str, tmp_path: Path) -> None:
    program, files = compiled(tmp_path)
    with pytest.raises(ArtifactError, match=words):
        backend(stack=replace(BUILT_IN, **change)).load(program, files, GFX1100, CompileOptions())


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("another GPU", "the program was compiled for gfx942, and this GPU is gfx1100"),
        ("outside", r"names `../../elsewhere\.mxr`, outside of it"),
    ],
)
def test_a_context_that_is_not_for_here(mode: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=words):
        backend(mode, AS_PLUGIN).compile(part(), GFX1100, CompileOptions(), tmp_path)


def test_nodes_that_stay_on_the_cpu_are_said_or_refused(tmp_path: Path) -> None:
    mixed = backend("a node on the CPU")
    program = mixed.compile(part(), GFX1100, CompileOptions(), tmp_path)
    kept, *others, seen = program.notes
    assert all("does not agree" in other for other in others)
    assert "kept 1 nodes of the GPU's part on the CPU (50%)" in kept
    assert "1 of 2 operators" in seen
    assert "were not seen on the GPU" in seen
    assert len(program.elsewhere) == 1
    strict = CompileOptions(provider_options={"session.disable_cpu_ep_fallback": "1"})
    with pytest.raises(ChildError, match="assigned to the CPU"):
        mixed.compile(part(), GFX1100, strict, tmp_path / "strict")


@pytest.mark.parametrize(
    ("stack", "options", "words", "hint"),
    [
        (BUILT_IN, {"fp16_enable": "1"}, "is spelt", "migraphx_fp16_enable"),
        (AS_PLUGIN, {"migraphx_mem_limit": "1"}, "not of the", "remove it"),
        (BUILT_IN, {"migraphx_max_dynamic_batch": "8"}, "not of the", "remove it"),
        (BUILT_IN, {"migraphx_model_cache_dir": "/tmp/x"}, "not yours to set", "--cache-dir"),
        (AS_PLUGIN, {"cache_dir": "/tmp/x"}, "not yours to set", "--cache-dir"),
    ],
)
def test_options_are_those_of_the_build(
    stack: Stack, options: dict[str, str], words: str, hint: str
) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        check_provider_options(
            backend(stack=stack), GFX1100, CompileOptions(provider_options=options)
        )
    assert hint in caught.value.hint


def test_each_build_gets_its_own_names() -> None:
    made = backend(stack=AS_PLUGIN)
    check_provider_options(made, GFX1100, CompileOptions(precision="fp16"))
    plain = session_options(AS_PLUGIN, "fp16", {})
    assert with_folder(plain, AS_PLUGIN, "F") == {
        "device_id": "0", "fp16_enable": "1", "cache_dir": "F"
    }  # fmt: skip
    built_in = session_options(BUILT_IN, "fp16", {})
    assert with_folder(built_in, BUILT_IN, "F") == {
        "device_id": "0", "migraphx_fp16_enable": "1", "migraphx_model_cache_dir": "F"
    }  # fmt: skip


def test_it_survives_a_bundle_and_runs_in_a_session(tmp_path: Path) -> None:
    made, gpu = part(), backend()
    program = gpu.compile(made, GFX1100, CompileOptions(), tmp_path / "p")
    content = ArtifactContent(
        model=made.model,
        parts=(CompiledPart(made, program, tmp_path / "p"),),
        target="gfx1100",
        options={},
        cache_parts={"model": model_digest(made.model)},
        summary=small_summary(),
    )
    write_artifact(tmp_path / "bundle", content)
    with Session(tmp_path / "bundle", backends={"migraphx": gpu}) as session:
        assert session.get_providers() == ["MIGraphXExecutionProvider"]
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), atol=1e-5)


def test_the_real_worker_where_the_provider_is_not(tmp_path: Path) -> None:
    # ONNX Runtime only prints that it does not know the provider, and gives a CPU session.
    real = MigraphxBackend(find=lambda _: BUILT_IN, limits=SHORT)
    with pytest.raises(DeviceError, match="the session has no `MIGraphXExecutionProvider`"):
        real.compile(part(), GFX1100, CompileOptions(), tmp_path)


def test_the_real_worker_has_no_cpu_to_fall_back_to_where_that_is_asked(tmp_path: Path) -> None:
    real = MigraphxBackend(find=lambda _: BUILT_IN, limits=SHORT)
    options = CompileOptions(provider_options={"session.disable_cpu_ep_fallback": "1"})
    with pytest.raises(DeviceError) as caught:
        real.compile(part(), GFX1100, options, tmp_path)
    assert "CPU" in caught.value.message


def test_a_missing_stack_is_an_error_with_its_reason(tmp_path: Path) -> None:
    none = backend(stack=Availability(usable=False, reason="no GPU", hint="buy one"))
    assert none.available(GFX1100).reason == "no GPU"
    with pytest.raises(DeviceError, match="no GPU"):
        none.compile(part(), GFX1100, CompileOptions(), tmp_path)
