"""What is found: from recorded answers, and from real libraries that a C compiler makes here."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from model_wheels import wheel_folder
from vermilion.backends.base import Availability
from vermilion.backends.migraphx.found import (
    WORDS,
    Stack,
    Surroundings,
    build_of,
    file_of,
    find_stack,
    installs,
    missing_for,
    needed_libraries,
)
from vermilion.backends.migraphx.hip import Hip, ask_hip
from vermilion.backends.provider.stack import differences
from vermilion.hardware.options.gpu import (
    AMDGPU,
    BUILT_IN,
    BUILT_IN_ROCM,
    BUILT_IN_WHEEL,
    MIGRAPHX,
    PLUGIN,
    TABLES,
)
from vermilion.hardware.providers import ProviderInfo
from vermilion.hardware.targets.find import find_target

BUILT = ProviderInfo(MIGRAPHX, "built in", "onnxruntime-migraphx", "1.27.1", "x/migraphx.so")
AS_PLUGIN = ProviderInfo(MIGRAPHX, "plugin", "AMDGPU_EP_PATH", library="x/libmigraphx-ep.so")
UMBRELLA = ProviderInfo(AMDGPU, "plugin", "AMDGPU_EP_PATH", library="x/libamdgpu-ep.so")
PLACEHOLDER = replace(
    AS_PLUGIN, origin="onnxruntime_ep_migraphx", loads=False, reason="an empty placeholder"
)
HIP = Hip(2, "70051831", paths={"libmigraphx_c.so.3": "/opt/rocm/lib/libmigraphx_c.so.3.0.70000"})
ASK_THE_WHEEL = """
from vermilion.backends.migraphx.found import build_of, find_stack
from vermilion.hardware.providers import find_providers
from vermilion.hardware.targets.find import find_target
found = find_stack(find_target("gfx1100"))
[built_in] = [one for one in find_providers() if one.name == "MIGraphXExecutionProvider"]
print(found.reason, found.hint, build_of(built_in), sep="\\n")
"""
COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="this machine has no C compiler for Linux"
)


def around(
    *providers: ProviderInfo, hip: Hip = HIP, gpus: Sequence[str] = ("gfx1036", "gfx1100")
) -> Surroundings:
    def probe(found: tuple[ProviderInfo, ...]) -> tuple[ProviderInfo, ...]:
        return tuple(replace(p, loads=p.loads is not False) for p in found)

    return Surroundings(lambda: providers, lambda _: (), lambda: gpus, lambda _: hip, probe)


@pytest.mark.parametrize(
    ("providers", "target", "chosen"),
    [
        ((BUILT,), "gfx1100", (MIGRAPHX, BUILT_IN, "")),
        ((BUILT, AS_PLUGIN, UMBRELLA), "gfx1100", (MIGRAPHX, PLUGIN, "x/libmigraphx-ep.so")),
        ((UMBRELLA,), "gfx1100", (AMDGPU, PLUGIN, "x/libamdgpu-ep.so")),
        ((PLACEHOLDER, BUILT), "gfx942,gfx1100", (MIGRAPHX, BUILT_IN, "")),
    ],
)
def test_the_provider_and_the_gpu(
    providers: tuple[ProviderInfo, ...], target: str, chosen: tuple[str, str, str]
) -> None:
    stack = find_stack(find_target(target), around(*providers))
    assert isinstance(stack, Stack)
    assert (stack.provider, stack.build, stack.library) == chosen
    assert (stack.gfx, stack.device_number) == ("gfx1100", 1)
    assert (stack.hip, stack.migraphx) == ("70051831", "3.0.70000")
    assert stack.table.provider == stack.provider


@pytest.mark.parametrize(
    ("given", "target", "reason", "hint"),
    [
        (around(), "gfx1100", "no MIGraphX provider is installed", "onnxruntime-migraphx"),
        (around(PLACEHOLDER), "gfx1100", "an empty placeholder", "onnxruntime-migraphx"),
        (around(UMBRELLA), "gfx942", "sends gfx942 to DirectML", "MIGraphX provider itself"),
        (around(BUILT), "gfx942", "this machine has gfx1036, gfx1100", "--target gfx1036"),
        (around(BUILT, hip=Hip(0), gpus=()), "gfx1100", "HIP finds no GPU", "doctor"),
        (around(BUILT, hip=Hip(1)), "gfx1100", "HIP shows 1 GPUs", "HIP_VISIBLE_DEVICES"),
        (
            around(BUILT, hip=Hip(error="hipGetDeviceCount gives hipErrorNoDevice")),
            "gfx1100",
            "HIP cannot be used: hipGetDeviceCount gives hipErrorNoDevice",
            "doctor",
        ),
    ],
)
def test_why_there_is_none(given: Surroundings, target: str, reason: str, hint: str) -> None:
    found = find_stack(find_target(target), given)
    assert isinstance(found, Availability)
    assert reason in found.reason
    assert hint in found.hint


def test_a_provider_that_does_not_load() -> None:
    given = replace(
        around(BUILT),
        probe=lambda found: (replace(found[0], loads=False, reason="undefined symbol"), BUILT),
    )
    found = find_stack(find_target("gfx1100"), given)
    assert isinstance(found, Availability)
    assert found.reason.endswith("does not load: undefined symbol")


def test_the_build_is_read_from_the_library(tmp_path: Path) -> None:
    for build in (BUILT_IN, BUILT_IN_WHEEL, BUILT_IN_ROCM):
        table = next(t for t in TABLES if (t.provider, t.build) == (MIGRAPHX, build))
        file = tmp_path / f"{build}.so"
        file.write_bytes(b"\0".join(option.name.encode() for option in table.options))
        assert build_of(replace(BUILT, library=str(file))) == build
    assert build_of(AS_PLUGIN) == PLUGIN


def test_a_plugin_is_found_in_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_ep_package"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "lib" / "libmigraphx-ep.so").write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = file_of(ProviderInfo(MIGRAPHX, "plugin", "some_ep_package"))
    assert found == package / "lib" / "libmigraphx-ep.so"
    assert file_of(BUILT) == Path("x/migraphx.so")


def test_what_changed_is_named() -> None:
    stack = Stack(MIGRAPHX, BUILT_IN, "1.23.1", "", "gfx942", 0, "70051831", "2.13")
    assert differences(WORDS, stack.as_details(), stack.as_details()) == []
    other = replace(stack, gfx="gfx950", provider_version="")
    assert differences(WORDS, stack.as_details(), other.as_details()) == [
        "the provider's version was 1.23.1 and is unknown",
        "the GPU was gfx942 and is gfx950",
    ]


def build(folder: Path, name: str, source: str, *words: str) -> Path:
    """Make a shared library whose own name is `name`."""
    assert COMPILER is not None, "the test is skipped without one"
    code, library = folder / f"{name}.c", folder / name
    code.write_text(source)
    command = [COMPILER, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-Wl,--no-as-needed"]
    subprocess.run([*command, "-o", library, code, *words], check=True, capture_output=True)
    return library


HIP_SOURCE = """
int hipRuntimeGetVersion(int *version) {{ *version = 70051831; return 0; }}
int hipGetDeviceCount(int *count) {{ *count = {count}; return {code}; }}
"""


@needs_compiler
def test_the_libraries_that_a_file_asks_for(tmp_path: Path) -> None:
    hip = build(tmp_path, "libamdhip64.so.7", HIP_SOURCE.format(count=2, code=0))
    own = build(tmp_path, "libown.so.1", "int own;")
    provider = build(tmp_path, "libprovider.so", "int provider;", str(hip), str(own))
    assert needed_libraries(provider)[:2] == ("libamdhip64.so.7", "libown.so.1")
    assert missing_for(provider, {}) == (), "both lie beside it"
    hip.rename(tmp_path / "elsewhere")
    assert missing_for(provider, {}) == ("libamdhip64.so.7",)
    (tmp_path / "rocm").mkdir()
    (tmp_path / "elsewhere").rename(tmp_path / "rocm" / "libamdhip64.so.7")
    assert missing_for(provider, {"LD_LIBRARY_PATH": str(tmp_path / "rocm")}) == ()


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    for content in (b"", b"MZ", b"\x7fELF\x02\x01" + b"\xff" * 80):
        (tmp_path / "x.so").write_bytes(content)
        assert needed_libraries(tmp_path / "x.so") == ()


def test_what_installs_them() -> None:
    line = installs(("libmigraphx_c.so.3", "libamdhip64.so.7", "libstrange.so.1"))
    assert line.startswith("sudo apt install migraphx hip-runtime-amd (from AMD's repository of")
    assert "ROCm 7:" in line
    assert line.endswith("install what brings `libstrange.so.1`")


@needs_compiler
@pytest.mark.parametrize(
    ("count", "code", "expected"),
    [
        (2, 0, Hip(2, "70051831")),
        (0, 100, Hip(0, "70051831", "hipGetDeviceCount gives hipErrorNoDevice")),
        (0, 77, Hip(0, "70051831", "hipGetDeviceCount gives error 77")),
    ],
)
def test_hip_is_asked_in_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, code: int, expected: Hip
) -> None:
    library = build(tmp_path, "libamdhip64.so.7", HIP_SOURCE.format(count=count, code=code))
    versioned = library.rename(tmp_path / "libamdhip64.so.7.0.51831")
    library.symlink_to(versioned.name)
    hip = ask_hip([str(library)])
    assert (hip.devices, hip.error) == (0, "the HIP runtime is not among the libraries that load")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    hip = ask_hip(["libamdhip64.so.7", "libmigraphx_c.so.3"])
    assert (hip.devices, hip.version, hip.error) == (
        expected.devices, expected.version, expected.error
    )  # fmt: skip
    assert hip.paths["libamdhip64.so.7"] == str(versioned)
    assert "libmigraphx_c.so.3" in hip.refused


@needs_compiler
def test_a_runtime_that_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "#include <stdlib.h>\n__attribute__((constructor)) void f(void) { abort(); }"
    build(tmp_path, "libamdhip64.so.7", source)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert "asking ended the process with code -6" in ask_hip(["libamdhip64.so.7"]).error


def test_one_that_does_not_answer() -> None:
    hip = ask_hip([], command=(sys.executable, "-c", "import time; time.sleep(60)"), limit_s=0.2)
    assert hip.error == "asking took more than 0.2 s and was stopped"


def test_this_machine_is_asked_and_not_believed() -> None:
    found = find_stack(find_target("gfx1100"))
    if isinstance(found, Availability):
        assert found.reason
        assert found.hint
    else:
        assert found.gfx == "gfx1100"


@pytest.mark.skipif(
    Path("/opt/rocm/lib/libmigraphx_c.so.3").exists(), reason="this machine has ROCm"
)
@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="this system has no wheel of onnxruntime-migraphx",
)
def test_the_wheel_without_rocm_names_both_libraries() -> None:
    """A process of its own has the wheel's ONNX Runtime before the one that is installed."""
    path = [str(wheel_folder("onnxruntime-migraphx")), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", ASK_THE_WHEEL],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reason, hint, build = done.stdout.splitlines()
    assert "`libmigraphx_c.so.3` and `libamdhip64.so.7`" in reason
    assert "sudo apt install migraphx hip-runtime-amd" in hint
    assert build == BUILT_IN_WHEEL
