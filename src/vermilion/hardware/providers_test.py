import subprocess
import sys
import time
from pathlib import Path

import onnxruntime
import pytest

from vermilion.hardware.provider_child import answer, plain_reason
from vermilion.hardware.providers import (
    CPU_PROVIDER,
    ProviderInfo,
    ask_once,
    distribution_version,
    find_providers,
    probe_providers,
)


def named(providers, name):
    (provider,) = (p for p in providers if p.name == name)
    return provider


def built_in() -> set[str]:
    """Return the providers of a fresh process: another test may have registered one in this."""
    code = "import onnxruntime; print(*onnxruntime.get_available_providers())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def write_package(folder: Path, body: str, name: str = "onnxruntime_ep_migraphx") -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(body)


def test_the_cpu_provider_is_found_and_loads():
    found = find_providers({})
    assert named(found, CPU_PROVIDER).loads is None
    probed = probe_providers(found)
    assert named(probed, CPU_PROVIDER).loads is True
    assert {p.name for p in probed} == built_in()


def test_a_provider_of_another_vendor_is_not_tried():
    other = ProviderInfo("CUDAExecutionProvider", "built in", "onnxruntime-gpu")
    assert named(probe_providers((other,)), other.name).loads is None


def test_a_built_in_provider_that_is_not_there_says_so():
    built_in = ProviderInfo("MIGraphXExecutionProvider", "built in", "onnxruntime-migraphx")
    probed = named(probe_providers((built_in,)), built_in.name)
    assert probed.loads is False
    assert "MIGraphXExecutionProvider" in probed.reason
    assert "ONNXRuntimeError" not in probed.reason


def test_a_variable_that_names_nothing(tmp_path):
    found = find_providers({"RYZENAI_EP_PATH": str(tmp_path / "libnone.so")})
    provider = named(found, "RyzenAILightExecutionProvider")
    assert provider.loads is False
    assert "no such file" in provider.reason


def test_a_library_that_is_no_library(tmp_path):
    library = tmp_path / "libamdgpu-ep.so"
    library.write_text("this is no ELF file")
    found = find_providers({"AMDGPU_EP_PATH": str(library)})
    assert named(found, "AMDGPUExecutionProvider").loads is None
    probed = named(probe_providers(found), "AMDGPUExecutionProvider")
    assert probed.loads is False
    assert library.name in probed.reason


def test_a_package_whose_library_is_missing(tmp_path, monkeypatch):
    write_package(tmp_path, "def get_library_path():\n    return '/nowhere/libmigraphx-ep.so'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    probed = named(probe_providers(find_providers({})), "MIGraphXExecutionProvider")
    assert probed.loads is False
    assert probed.library == "/nowhere/libmigraphx-ep.so"
    assert "/nowhere/libmigraphx-ep.so" in probed.reason


def test_a_placeholder_is_told_without_loading_it(tmp_path, monkeypatch):
    write_package(tmp_path, "raise SystemExit('must not be imported')\n")
    (tmp_path / "onnxruntime_ep_migraphx-0.0.0.dist-info").mkdir()
    (tmp_path / "onnxruntime_ep_migraphx-0.0.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: onnxruntime-ep-migraphx\nVersion: 0.0.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert distribution_version("onnxruntime-ep-migraphx") == "0.0.0"
    provider = named(find_providers({}), "MIGraphXExecutionProvider")
    assert provider.loads is False
    assert "placeholder" in provider.reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import os\nos.write(2, b'out of luck\\n')\nos._exit(3)\n", "code 3: out of luck"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n", "code -15"),
        ("def get_library_path():\n    raise OSError('no ROCm here')\n", "no ROCm here"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="this system has no signals in exit codes")
def test_a_crash_stays_in_the_child(body, reason, tmp_path, monkeypatch):
    write_package(tmp_path, body)
    monkeypatch.syspath_prepend(str(tmp_path))
    probed = named(probe_providers(find_providers({})), "MIGraphXExecutionProvider")
    assert probed.loads is False
    assert reason in probed.reason


def test_a_hang_is_stopped(tmp_path, monkeypatch):
    write_package(tmp_path, "import time\ntime.sleep(60)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    start = time.perf_counter()
    probed = named(probe_providers(find_providers({}), 2.0), "MIGraphXExecutionProvider")
    assert time.perf_counter() - start < 20
    assert probed.loads is False
    assert "2 s" in probed.reason


def test_plain_reason():
    text = (
        "/build/provider_bridge_ort.cc:1988 onnxruntime::Provider& onnxruntime::Get()"
        " [ONNXRuntimeError] : 1 : FAIL : Failed to load library a.so with error: b.so: missing\n\n"
    )
    assert plain_reason(text) == "Failed to load library a.so with error: b.so: missing"
    assert plain_reason("") == "no reason given"


def test_the_child_lists():
    assert answer({"ask": "list"}) == {"providers": onnxruntime.get_available_providers()}


@pytest.mark.parametrize("answer", [b'{"a":', b"\xff", b"[" * 100_000, b"[]", b""])
def test_an_answer_that_cannot_be_read_is_said(answer: bytes, tmp_path: Path):
    given = tmp_path / "given"
    given.write_bytes(answer)
    copy = f"import shutil, sys; shutil.copy({str(given)!r}, sys.argv[1])"
    said = ask_once([sys.executable, "-c", copy], 60.0)
    assert said == "gave an answer that nobody can read"
