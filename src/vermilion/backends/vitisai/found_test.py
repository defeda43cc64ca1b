from __future__ import annotations

import pytest

from vermilion.backends.base import Availability
from vermilion.backends.process.stack import differences
from vermilion.backends.vitisai.found import WORDS, Stack, find_stack, release_of
from vermilion.hardware.cpu import detect_cpu
from vermilion.hardware.devices import Machine
from vermilion.hardware.npu import NpuInfo
from vermilion.hardware.options.vitisai import NEWEST, PROVIDER
from vermilion.hardware.providers import ProviderInfo
from vermilion.hardware.targets.find import find_target

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
