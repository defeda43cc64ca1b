"""Which VitisAI provider is here, of which release, with which driver and firmware.

And what `xrt-smi` says of our process: how many commands it has put to the NPU.

Windows ML keeps providers in packages of their own below `WindowsApps`, a folder that users cannot
list: the package manager is asked. Nothing is downloaded and nothing is registered here.

Sources: https://learn.microsoft.com/windows/ai/new-windows-ml/initialize-execution-providers; names
of packages and of the library in them as users' logs have them:
https://github.com/microsoft/foundry-local/issues/558 (1.8),
https://github.com/microsoft/WindowsAppSDK-Samples/issues/561 (before).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from vermilion.backends.base import Availability
from vermilion.hardware.devices import Machine, detect_machine
from vermilion.hardware.options.vitisai import NEWEST, PROVIDER
from vermilion.hardware.providers import (
    ProviderInfo,
    distribution_version,
    find_providers,
    probe_providers,
)
from vermilion.hardware.targets.target import Target
from vermilion.process.printed import printed
from vermilion.version import version_fields

ORIGIN = "Windows ML"
# Of one package each: from release 1.8 on, the same as an optional feature of Windows, before.
_PACKAGES = (
    "MicrosoftCorporationII.WinML.AMD.NPU.EP",
    "WindowsWorkload.EP.AMD.VitisAI",
    "Microsoft.WindowsMLRuntime.AMD.NPU.EP",
)
_LIBRARY = PureWindowsPath("ExecutionProvider", "onnxruntime_providers_vitisai.dll")
_TIME_LIMIT_S = 20.0

Ask = Callable[[], str]


def ask_windows() -> str:
    """Return the installed packages of those names as PowerShell prints them in JSON.

    Raises: OSError or subprocess.SubprocessError where it cannot be run.
    """
    names = ", ".join(f"'{name}*'" for name in _PACKAGES)
    command = (
        f"@({names}) | ForEach-Object {{ Get-AppxPackage -Name $_ }} | "
        "Select-Object Name, Version, InstallLocation | ConvertTo-Json -Compress"
    )
    done = subprocess.run(
        ["powershell", "-NoProfile", "-NonInteractive", "-Command", command],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
        timeout=_TIME_LIMIT_S,
    )  # fmt: skip
    return done.stdout


def find_windows_ml(ask: Ask | None = None) -> ProviderInfo | None:
    """Return the newest provider that Windows ML has installed, None where there is none.

    `ask` None asks this machine, which is done on Windows alone.
    """
    if ask is None and sys.platform != "win32":
        return None
    try:
        text = (ask or ask_windows)()
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"Windows was asked for its packages and did not answer: {error}"
        return ProviderInfo(PROVIDER, "plugin", ORIGIN, loads=False, reason=reason)
    rows = _rows(text)
    if isinstance(rows, str):
        return ProviderInfo(PROVIDER, "plugin", ORIGIN, loads=False, reason=rows)
    if not rows:
        return None
    newest = max(rows, key=lambda row: version_fields(row["Version"]))
    library = str(PureWindowsPath(newest["InstallLocation"]) / _LIBRARY)
    return ProviderInfo(PROVIDER, "plugin", ORIGIN, newest["Version"], library)


def _rows(text: str) -> list[Mapping[str, str]] | str:
    """Return the packages that are installed, or what is wrong with the answer.

    PowerShell prints nothing for none, an object for one, an array for several.
    """
    if not text.strip():
        return []
    try:
        parsed = json.loads(text.lstrip("\ufeff"))
    except ValueError:
        return f"Windows was asked for its packages and answered `{text.strip()[:80]}`"
    rows = parsed if isinstance(parsed, list) else [parsed]
    wanted = ("Name", "Version", "InstallLocation")
    return [
        {key: str(row[key]) for key in wanted}
        for row in rows
        if isinstance(row, dict)
        and all(row.get(key) for key in wanted)
        and str(row["Name"]).startswith(_PACKAGES)
    ]


INSTALLATION_VARIABLE = "RYZEN_AI_INSTALLATION_PATH"
_INSTALL_PAGE = "https://ryzenai.docs.amd.com/en/latest/inst.html"


@dataclass(frozen=True)
class Stack:
    """Everything below a compiled part that can make it stale."""

    release: str  # `1.7`
    provider_version: str
    library: str  # of a plugin; empty where the provider is built in
    driver: str
    firmware: str
    device: str  # the target that the NPU is
    installation: str = ""

    def as_details(self) -> dict[str, str]:
        """Return what is kept with a compiled part and compared when it is loaded."""
        return {
            "release": self.release,
            "provider_version": self.provider_version,
            "driver": self.driver,
            "firmware": self.firmware,
            "device": self.device,
        }


# What each of them is called for people. A cache is not to be used with another version of provider
# or driver (Ryzen AI documentation, modelrun.rst); the vendor's provider does not look, and
# https://github.com/microsoft/winml-cli/issues/1224 shows what happens.
WORDS: Mapping[str, str] = {
    "release": "Ryzen AI",
    "provider_version": "the provider",
    "driver": "the NPU driver",
    "firmware": "the NPU's firmware",
    "device": "the NPU",
}


def find_stack(
    target: Target,
    machine: Machine | None = None,
    *,
    providers: Sequence[ProviderInfo] | None = None,
    probe: bool = True,
) -> Stack | Availability:
    """Return the provider, driver and device for a target, or why it cannot be used here.

    Cheap where there is no provider: files are looked at, nothing is loaded. `machine` and
    `providers` None look at this machine; `probe` loads the provider in a child process.
    """
    listed = find_providers() if providers is None else providers
    provider = next((p for p in listed if p.name == PROVIDER), None)
    if provider is None and providers is None:
        provider = find_windows_ml()
    if provider is None:
        return Availability(
            usable=False,
            reason="no VitisAI provider is installed: this ONNX Runtime has no library of it",
            hint=f"install Ryzen AI Software: {_INSTALL_PAGE}",
        )
    if provider.loads is False:
        return Availability(
            usable=False,
            reason=f"the VitisAI provider of {provider.origin} cannot be used: {provider.reason}",
            hint="`vermilion doctor` says what is missing",
        )
    here = machine if machine is not None else detect_machine(probe_providers=False)
    npu = next((npu for npu in here.npus if npu.target == target.name), None)
    if npu is None:
        others = ", ".join(n.title for n in here.npus) or "no NPU"
        return Availability(
            usable=False,
            reason=f"the VitisAI provider is installed, and this machine has {others}, not"
            f" {target.title}",
            hint="compile on a machine that has it",
        )
    if probe:
        provider = probe_providers((provider,))[0]
        if not provider.loads:
            return Availability(
                usable=False,
                reason=f"the VitisAI provider does not load: {provider.reason}",
                hint="`vermilion doctor` says what is missing",
            )
    return Stack(
        release=release_of(provider),
        provider_version=provider.version,
        library=provider.library if provider.kind == "plugin" else "",
        driver=npu.driver_version,
        firmware=npu.firmware_version,
        device=target.name,
        installation=os.environ.get(INSTALLATION_VARIABLE, ""),
    )


def release_of(provider: ProviderInfo) -> str:
    """Return the Ryzen AI release: of the distribution `voe`, else of the folder, else the newest.

    `voe` counts with the releases; ONNX Runtime's own version says nothing of them.
    """
    folder = os.environ.get(INSTALLATION_VARIABLE, "").replace("\\", "/").rstrip("/")
    for text in (distribution_version("voe"), folder.rpartition("/")[2], provider.version):
        fields = version_fields(text)
        if len(fields) >= 2 and fields[0] == 1 and fields[1] < 20:
            return ".".join(str(number) for number in fields[:3])
    return NEWEST


# Source: Ryzen AI documentation, xrt_smi.rst (Windows), linux.rst (`/opt/xilinx/xrt/setup.sh`).
_PLACES = ("C:/Windows/System32/AMD/xrt-smi.exe", "/opt/xilinx/xrt/bin/xrt-smi")
_LIMIT_S = 10.0
_NOBODY = re.compile(r"no (?:hardware|hw) contexts", re.IGNORECASE)
_SUBMITTED = ("sub", "submissions", "submitted")


def find_xrt_smi(places: Sequence[str] = _PLACES) -> str:
    """Return the tool's path, empty where there is none."""
    found = shutil.which("xrt-smi")
    if found:
        return found
    return next((place for place in places if Path(place).is_file()), "")


def submitted_commands(process: int, tool: str | None = None) -> int | None:
    """Return how many commands a process has put to the NPU; None where nobody can tell."""
    program = find_xrt_smi() if tool is None else tool
    if not program:
        return None
    try:
        text = printed((program, "examine", "--report", "aie-partitions"), _LIMIT_S)
    except (OSError, ValueError):
        return None
    counts = read_partitions(text)
    return None if counts is None else counts.get(process, 0)


def read_partitions(text: str) -> dict[int, int] | None:
    """Return the commands submitted by process from `xrt-smi examine --report aie-partitions`.

    The columns are found by their heads, `PID` and `Sub`: releases differ in the others. A process
    may have several contexts. None where the text has no such table and does not say that there
    is no context. Source: Ryzen AI documentation, xrt_smi.rst.
    """
    counts: Counter[int] = Counter()
    places: tuple[int, int] | None = None
    was_found = bool(_NOBODY.search(text))
    for line in text.splitlines():
        if "|" not in line:
            places = None
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        heads = [cell.lower() for cell in cells]
        submitted = next((word for word in _SUBMITTED if word in heads), "")
        if "pid" in heads and submitted:
            places = heads.index("pid"), heads.index(submitted)
            was_found = True
        elif places is not None and max(places) < len(cells):
            process, commands = (cells[place] for place in places)
            if process.isdecimal() and commands.isdecimal():
                counts[int(process)] += int(commands)
    return dict(counts) if was_found else None
