"""What Windows answers when it is asked for Windows ML's provider, as PowerShell prints it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vermilion.backends.base import Availability
from vermilion.backends.provider.stack import differences
from vermilion.backends.vitisai.found import (
    WORDS,
    Stack,
    find_stack,
    find_windows_ml,
    find_xrt_smi,
    read_partitions,
    release_of,
    submitted_commands,
)
from vermilion.hardware.cpu import detect_cpu
from vermilion.hardware.devices import Machine
from vermilion.hardware.npu import NpuInfo
from vermilion.hardware.options.vitisai import NEWEST, PROVIDER
from vermilion.hardware.providers import ProviderInfo
from vermilion.hardware.targets.find import find_target

APPS = r"C:\Program Files\WindowsApps"
LIBRARY = r"ExecutionProvider\onnxruntime_providers_vitisai.dll"


def package(name: str, version: str) -> dict[str, str]:
    folder = f"{APPS}\\{name}_{version}_x64__8wekyb3d8bbwe"
    return {"Name": name, "Version": version, "InstallLocation": folder}


NEW = package("MicrosoftCorporationII.WinML.AMD.NPU.EP.1.8", "1.8.53.0")
NEWER = package("MicrosoftCorporationII.WinML.AMD.NPU.EP.1.8", "1.8.72.0")
OLD = package("Microsoft.WindowsMLRuntime.AMD.NPU.EP", "0.1.9.0")
OTHER = package("MicrosoftCorporationII.WinML.AMD.GPU.EP.1.8", "1.8.55.0")


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        (json.dumps(NEW), "1.8.53.0"),  # one package is an object, not an array
        (json.dumps([OLD, NEWER, NEW]), "1.8.72.0"),
        ("\ufeff" + json.dumps([OLD]), "0.1.9.0"),
        (json.dumps([OTHER, OLD]), "0.1.9.0"),
    ],
)
def test_the_newest_package_is_the_provider(answer: str, version: str) -> None:
    found = find_windows_ml(lambda: answer)
    assert found is not None
    assert (found.name, found.kind, found.origin, found.version) == (
        "VitisAIExecutionProvider", "plugin", "Windows ML", version,
    )  # fmt: skip
    assert found.library.startswith(APPS)
    assert found.library.endswith(f"_{version}_x64__8wekyb3d8bbwe\\{LIBRARY}")
    assert found.loads is None, "nobody has tried yet"


@pytest.mark.parametrize("answer", ["", "\r\n", json.dumps([OTHER])])
def test_no_package_is_no_provider(answer: str) -> None:
    assert find_windows_ml(lambda: answer) is None


def test_an_answer_that_is_none_is_a_reason() -> None:
    found = find_windows_ml(lambda: "Get-AppxPackage : The type initializer threw an exception.")
    assert found is not None
    assert found.loads is False
    assert "answered `Get-AppxPackage : The type" in found.reason


def test_no_answer_is_a_reason() -> None:
    def hangs() -> str:
        raise subprocess.TimeoutExpired("powershell", 20)

    found = find_windows_ml(hangs)
    assert found is not None
    assert "did not answer" in found.reason


@pytest.mark.skipif(sys.platform == "win32", reason="this system is asked on Windows")
def test_only_windows_is_asked() -> None:
    assert find_windows_ml() is None


def test_it_is_taken_where_no_other_provider_is() -> None:
    provider = find_windows_ml(lambda: json.dumps(NEW))
    assert provider is not None
    found = find_stack(STRIX, machine(NPU), providers=(provider,), probe=False)
    assert isinstance(found, Stack)
    assert found.library.endswith(LIBRARY)
    assert found.release == "1.8.53"
    both = find_stack(STRIX, machine(NPU), providers=(BUILT_IN, provider), probe=False)
    assert isinstance(both, Stack)
    assert both.library == "", "what the user installed comes first"


STRIX = find_target("strix")
NPU = NpuInfo(
    "Strix NPU (XDNA 2)",
    "known",
    "strix",
    "1022:17f0",
    0x10,
    "c4:00.1",
    driver_version="32.0.203.280",
    firmware_version="1.0.20.0",
)
BUILT_IN = ProviderInfo(PROVIDER, "built in", "onnxruntime-vitisai", "1.23.0", "x/vitisai.so")


def machine(*npus: NpuInfo) -> Machine:
    return Machine("Windows", "10.0.26100", "3.12.0", detect_cpu(), npus)


def test_what_is_found_is_kept_with_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RYZEN_AI_INSTALLATION_PATH", r"C:\Program Files\RyzenAI\1.7.0")
    found = find_stack(STRIX, machine(NPU), providers=(BUILT_IN,), probe=False)
    assert isinstance(found, Stack)
    assert (found.release, found.driver, found.library) == ("1.7.0", "32.0.203.280", "")
    assert found.as_details()["firmware"] == "1.0.20.0"


@pytest.mark.parametrize(
    ("npus", "providers", "words"),
    [
        ((NPU,), (), "no VitisAI provider is installed"),
        ((), (BUILT_IN,), "this machine has no NPU, not Strix"),
    ],
)
def test_why_there_is_none(npus, providers, words: str) -> None:
    found = find_stack(STRIX, machine(*npus), providers=providers, probe=False)
    assert isinstance(found, Availability)
    assert words in found.reason
    assert found.hint


def test_another_npu_is_not_taken_for_this_one() -> None:
    found = find_stack(find_target("phoenix"), machine(NPU), providers=(BUILT_IN,), probe=False)
    assert isinstance(found, Availability)
    assert "this machine has Strix NPU" in found.reason


def test_a_library_that_does_not_load_is_no_provider() -> None:
    found = find_stack(STRIX, machine(NPU), providers=(BUILT_IN,))
    assert isinstance(found, Availability)
    assert found.reason.startswith("the VitisAI provider does not load: ")


@pytest.mark.parametrize(
    ("folder", "version", "release"),
    [
        (r"C:\Program Files\RyzenAI\1.6.1\ ".strip(), "1.22.1", "1.6.1"),
        ("/opt/ryzen-ai", "1.8.68.0", "1.8.68"),
        ("", "1.23.0", NEWEST),  # ONNX Runtime's own version says nothing
    ],
)
def test_the_release(monkeypatch, folder: str, version: str, release: str) -> None:
    monkeypatch.setenv("RYZEN_AI_INSTALLATION_PATH", folder)
    assert release_of(ProviderInfo(PROVIDER, "built in", "x", version)) == release


def test_differences_are_named() -> None:
    one = Stack("1.7", "1.23.0", "", "a", "", "strix").as_details()
    other = Stack("1.8", "1.23.0", "", "b", "", "strix").as_details()
    assert differences(WORDS, one, one) == []
    assert differences(WORDS, one, other) == [
        "Ryzen AI was 1.7 and is 1.8",
        "the NPU driver was a and is b",
    ]


# Written from the documented columns, for Windows and Linux alike.
PARTITIONS = """
AIE Partitions
  Total Column Count: 8
  Partition Index: 0
    Columns: [0, 1, 2, 3]
    HW Contexts:
      |PID   |Ctx ID |Status |Sub  |Compl |Migr |Err |Prio   |GOPS |EGOPS |FPS |Latency |
      |======|=======|=======|=====|======|=====|====|=======|=====|======|====|========|
      |20696 |0      |Active |57   |56    |0    |0   |Normal |0    |0     |0   |0       |
      |20696 |1      |Idle   |3    |3     |0    |0   |Normal |0    |0     |0   |0       |
      |4711  |2      |Idle   |0    |0     |0    |0   |Normal |0    |0     |0   |0       |
"""
OTHER_COLUMNS = """
      |Ctx ID |PID   |Submissions |Completions |
      |=======|======|============|============|
      |0      |77    |12          |12          |
"""


def test_hardware_contexts() -> None:
    assert read_partitions(PARTITIONS) == {20696: 60, 4711: 0}
    assert read_partitions(OTHER_COLUMNS) == {77: 12}
    assert read_partitions("No hardware contexts running on device") == {}


@pytest.mark.parametrize("text", ["", "unknown report 'aie-partitions'", "|a|b|\n|1|2|"])
def test_what_has_no_such_table_says_nothing(text: str) -> None:
    assert read_partitions(text) is None


@pytest.mark.skipif(sys.platform == "win32", reason="this system executes no scripts")
def test_xrt_smi_is_asked(tmp_path: Path) -> None:
    tool = tmp_path / "xrt-smi"
    tool.write_text(f"#!/bin/sh\n[ \"$3\" = aie-partitions ] && cat <<'END'\n{PARTITIONS}\nEND\n")
    tool.chmod(0o755)
    assert submitted_commands(20696, str(tool)) == 60
    assert submitted_commands(1, str(tool)) == 0
    assert submitted_commands(1, str(tmp_path / "missing")) is None
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert submitted_commands(1, str(tool)) is None
    assert find_xrt_smi((str(tool),)) == str(tool)
