"""The VitisAI provider that Windows ML installs: a Windows package, asked for by name.

Windows ML keeps providers in packages of their own below `WindowsApps`, a folder that users cannot
list: the package manager is asked. Nothing is downloaded and nothing is registered here.

Sources: https://learn.microsoft.com/windows/ai/new-windows-ml/initialize-execution-providers; names
of packages and of the library in them as users' logs have them:
https://github.com/microsoft/foundry-local/issues/558 (1.8),
https://github.com/microsoft/WindowsAppSDK-Samples/issues/561 (before).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import PureWindowsPath

from vermilion.hardware.options.vitisai import PROVIDER
from vermilion.hardware.providers import ProviderInfo
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
