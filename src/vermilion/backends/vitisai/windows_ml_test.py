"""What Windows answers when it is asked for Windows ML's provider, as PowerShell prints it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from vermilion.backends.vitisai.found import Stack, find_stack
from vermilion.backends.vitisai.found_test import BUILT_IN, NPU, STRIX, machine
from vermilion.backends.vitisai.windows_ml import find_windows_ml

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
