"""ONNX Runtime's execution providers: which are installed, and whether AMD's really load.

`onnxruntime.get_available_providers()` lists what the wheel was built with, not what works, and a
session whose provider does not load silently runs on the CPU. So each of AMD's is loaded here, in a
child process, because a vendor's library may crash or hang the process that loads it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from vermilion.process.log import last_words

TIME_LIMIT_S = 30.0

CPU_PROVIDER = "CPUExecutionProvider"


@dataclass(frozen=True)
class ProviderInfo:
    """One execution provider.

    `loads` is None where nobody tried; where it is False `reason` says why. `origin`: the wheel
    it is part of, the package or the environment variable that names its library.
    """

    name: str
    kind: Literal["built in", "plugin"]
    origin: str
    version: str = ""
    library: str = ""
    loads: bool | None = None
    reason: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the keys that `vermilion devices --json` prints."""
        return {
            "name": self.name,
            "kind": self.kind,
            "origin": self.origin,
            "version": self.version,
            "library": self.library,
            "loads": self.loads,
            "reason": self.reason,
        }


# Stem of the library inside the wheel → provider. Source: microsoft/onnxruntime, the file names in
# onnxruntime/core/session/provider_bridge_ort.cc.
_LIBRARY_NAMES: Mapping[str, str] = {
    "cuda": "CUDAExecutionProvider",
    "dnnl": "DnnlExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "qnn": "QNNExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "vitisai": "VitisAIExecutionProvider",
}

# Package → provider. Source: onnxruntime/onnxruntime-ep-amdgpu, the Python packages.
_PLUGIN_PACKAGES: Mapping[str, str] = {
    "onnxruntime_ep_amdgpu": "AMDGPUExecutionProvider",
    "onnxruntime_ep_migraphx": "MIGraphXExecutionProvider",
}

# Variable → provider. Source: microsoft/onnxruntime-genai, src/ryzenai and src/amdgpu.
_PLUGIN_VARIABLES: Mapping[str, str] = {
    "AMDGPU_EP_PATH": "AMDGPUExecutionProvider",
    "RYZENAI_EP_PATH": "RyzenAILightExecutionProvider",
}

AMD_PROVIDERS = frozenset(
    (
        "AMDGPUExecutionProvider",
        "DmlExecutionProvider",
        "MIGraphXExecutionProvider",
        "ROCMExecutionProvider",
        "RyzenAILightExecutionProvider",
        "VitisAIExecutionProvider",
    )
)

# Distributions that all bring a package called `onnxruntime`. Source: PyPI and AMD's wheel indexes.
ONNXRUNTIME_WHEELS = frozenset(
    (
        "onnxruntime",
        "onnxruntime-directml",
        "onnxruntime-gpu",
        "onnxruntime-migraphx",
        "onnxruntime-openvino",
        "onnxruntime-qnn",
        "onnxruntime-rocm",
        "onnxruntime-vitisai",
        "onnxruntime-windowsml",
    )
)

# PyPI holds empty packages under AMD's names, all of this version.
PLACEHOLDER_VERSION = "0.0.0"


def find_providers(variables: Mapping[str, str] | None = None) -> tuple[ProviderInfo, ...]:
    """List providers by looking at files only: nothing is imported or loaded.

    `variables` None reads the environment. Providers that are compiled into ONNX Runtime's own
    library, other than the CPU's, are seen only by `probe_providers`.
    """
    environment = os.environ if variables is None else variables
    return (*_in_wheel(), *_in_packages(), *_in_variables(environment))


def probe_providers(
    found: tuple[ProviderInfo, ...], time_limit_s: float = TIME_LIMIT_S
) -> tuple[ProviderInfo, ...]:
    """Load each of AMD's providers in a child process; give them with `loads` and `reason` set.

    Those that ONNX Runtime lists and `find_providers` could not see are added.
    """
    listed = _list_built_in(time_limit_s)
    if isinstance(listed, str):
        return tuple(
            replace(provider, loads=False, reason=listed) if provider.loads is None else provider
            for provider in found
        )
    names = {provider.name for provider in found if provider.kind == "built in"}
    origin, version = _onnxruntime_distribution()
    added = tuple(
        ProviderInfo(name, "built in", origin, version) for name in listed if name not in names
    )
    return tuple(_probe(provider, time_limit_s) for provider in (*found, *added))


def distribution_version(name: str) -> str:
    """Return the version of an installed distribution, empty where there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _in_wheel() -> tuple[ProviderInfo, ...]:
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return ()
    origin, version = _onnxruntime_distribution()
    cpu = ProviderInfo(CPU_PROVIDER, "built in", origin, version, loads=None)
    libraries = sorted((Path(spec.origin).parent / "capi").glob("*onnxruntime_providers_*"))
    rows = ((path, path.name.partition("onnxruntime_providers_")[2]) for path in libraries)
    return (
        cpu,
        *(
            ProviderInfo(_LIBRARY_NAMES[stem], "built in", origin, version, str(path))
            for path, rest in rows
            if (stem := rest.partition(".")[0]) in _LIBRARY_NAMES
        ),
    )


def _onnxruntime_distribution() -> tuple[str, str]:
    """Return the name and version of the distribution that owns the package `onnxruntime`."""
    for name in ("onnxruntime", *sorted(ONNXRUNTIME_WHEELS - {"onnxruntime"})):
        version = distribution_version(name)
        if version:
            return name, version
    return "onnxruntime", ""


def _in_packages() -> tuple[ProviderInfo, ...]:
    found = []
    for package, provider in _PLUGIN_PACKAGES.items():
        distribution = package.replace("_", "-")
        version = distribution_version(distribution)
        if version == PLACEHOLDER_VERSION:
            reason = f"`{distribution}` {version} from PyPI is an empty placeholder"
            found.append(
                ProviderInfo(provider, "plugin", package, version, loads=False, reason=reason)
            )
        elif importlib.util.find_spec(package) is not None:
            found.append(ProviderInfo(provider, "plugin", package, version))
    return tuple(found)


def _in_variables(variables: Mapping[str, str]) -> tuple[ProviderInfo, ...]:
    found = []
    for variable, provider in _PLUGIN_VARIABLES.items():
        library = variables.get(variable, "")
        if not library:
            continue
        info = ProviderInfo(provider, "plugin", variable, library=library)
        if not Path(library).is_file():
            info = replace(
                info, loads=False, reason=f"`{variable}` names `{library}`: no such file"
            )
        found.append(info)
    return tuple(found)


def _probe(provider: ProviderInfo, time_limit_s: float) -> ProviderInfo:
    if provider.loads is not None:
        return provider
    if provider.name == CPU_PROVIDER:
        return replace(provider, loads=True)  # the child has just imported it
    if provider.name not in AMD_PROVIDERS:
        return replace(provider, reason="not AMD's: not tried")
    answer = _ask_child(_question(provider), time_limit_s)
    if isinstance(answer, str):
        return replace(provider, loads=False, reason=answer)
    library = answer.get("library")
    return replace(
        provider,
        loads=bool(answer.get("loads")),
        reason=str(answer.get("reason", "")),
        library=library if isinstance(library, str) and library else provider.library,
    )


def _question(provider: ProviderInfo) -> dict[str, str]:
    question = {"ask": "built in", "provider": provider.name}
    if provider.kind == "plugin":
        question = {"ask": "plugin", "provider": provider.name, "library": provider.library}
        if provider.origin in _PLUGIN_PACKAGES:
            question["package"] = provider.origin
    return question


def _list_built_in(time_limit_s: float) -> list[str] | str:
    answer = _ask_child({"ask": "list"}, time_limit_s)
    if isinstance(answer, str):
        return answer
    providers = answer.get("providers")
    if not isinstance(providers, list):
        return str(answer.get("reason", "ONNX Runtime listed no providers"))
    return [str(name) for name in providers]


def _ask_child(question: Mapping[str, str], time_limit_s: float) -> dict[str, object] | str:
    """Put one question to `provider_child`; give its answer, or why there was none."""
    code = "from vermilion.hardware.provider_child import main; main()"
    answer = ask_once([sys.executable, "-c", code, json.dumps(dict(question))], time_limit_s)
    return f"loading it {answer}" if isinstance(answer, str) else answer


def ask_once(command: Sequence[str], time_limit_s: float) -> dict[str, Any] | str:
    """Run a command of this package that writes one JSON object into the file that is named last.

    Return the object, or what the command did instead: for words such as `loading it …`.
    Output goes to files: AMD's provider hangs where stderr is a pipe (microsoft/winml-cli#1265).
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryDirectory(prefix="vermilion-", ignore_cleanup_errors=True) as folder:
        answer, log = Path(folder) / "answer.json", Path(folder) / "log.txt"
        with log.open("wb") as output:
            try:
                done = subprocess.run(
                    [*command, str(answer)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=time_limit_s,
                    check=False,
                    env=environment,
                )
            except subprocess.TimeoutExpired:
                return f"took more than {time_limit_s:g} s and was stopped"
        if not answer.is_file():
            words = last_words(log).rpartition(" | ")[2]
            return f"ended the process with code {done.returncode}{words and f': {words}'}"
        try:
            parsed: object = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            parsed = None
        return parsed if isinstance(parsed, dict) else "gave an answer that nobody can read"
