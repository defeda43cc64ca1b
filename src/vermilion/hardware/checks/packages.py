"""Faults of the Python environment: wheels that exclude each other, and providers that fail."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vermilion.hardware.checks import Finding
from vermilion.hardware.devices import Machine, ProviderInfo
from vermilion.hardware.environment import Environment
from vermilion.hardware.providers import ONNXRUNTIME_WHEELS, PLACEHOLDER_VERSION
from vermilion.hardware.targets.npu import npu_facts
from vermilion.version import is_older

# Source: onnxruntime/onnxruntime-ep-amdgpu, README.
_OLDEST_FOR_PLUGINS = "1.24"

# What ONNX Runtime says where a plugin was built against a newer one.
# Source: microsoft/onnxruntime, onnxruntime/core/session/onnxruntime_c_api.cc, GetApi.
_API_MISMATCH = re.compile(r"API version \[(\d+)\].*?\[1, (\d+)\]")

_VITIS_PROVIDERS = ("VitisAIExecutionProvider", "RyzenAILightExecutionProvider")
_GPU_PROVIDERS = (
    "AMDGPUExecutionProvider",
    "DmlExecutionProvider",
    "MIGraphXExecutionProvider",
    "ROCMExecutionProvider",
)


def check_onnxruntime(_: Machine, environment: Environment) -> Iterator[Finding]:
    """Check that exactly one distribution brings the package `onnxruntime`."""
    installed = sorted(ONNXRUNTIME_WHEELS & environment.distributions.keys())
    if not installed:
        yield Finding(
            "packages.no-onnxruntime",
            "error",
            "no ONNX Runtime is installed",
            "pip install onnxruntime",
        )
    elif len(installed) > 1:
        keep = next((name for name in installed if name != "onnxruntime"), installed[0])
        yield Finding(
            "packages.two-onnxruntimes",
            "error",
            "these wheels overwrite each other's files: "
            + ", ".join(f"`{name}` {environment.distributions[name]}" for name in installed),
            f"pip uninstall -y {' '.join(installed)} && pip install {keep}",
        )


def check_placeholders(_: Machine, environment: Environment) -> Iterator[Finding]:
    """Find the empty packages that hold AMD's names on PyPI."""
    empty = [
        name
        for name, version in sorted(environment.distributions.items())
        if name.startswith("onnxruntime-ep-") and version == PLACEHOLDER_VERSION
    ]
    if empty:
        yield Finding(
            "packages.placeholder",
            "error",
            "empty placeholders from PyPI, with no provider inside: "
            + ", ".join(f"`{name}`" for name in empty),
            f"pip uninstall -y {' '.join(empty)}; AMD's wheels: https://repo.radeon.com/rocm",
        )


def check_rocm_provider(machine: Machine, environment: Environment) -> Iterator[Finding]:
    """Find the provider that ONNX Runtime dropped."""
    in_use = any(provider.name == "ROCMExecutionProvider" for provider in machine.providers)
    if in_use or "onnxruntime-rocm" in environment.distributions:
        yield Finding(
            "packages.rocm-provider-gone",
            "warning",
            "`ROCMExecutionProvider` was removed in ONNX Runtime 1.23; asking a newer one for it"
            " gives a CPU session",
            "pip uninstall -y onnxruntime-rocm && pip install onnxruntime-migraphx, and ask for"
            " `MIGraphXExecutionProvider`",
        )


def check_missing_providers(machine: Machine, _: Environment) -> Iterator[Finding]:
    """Find a device that no installed provider can drive."""
    names = {provider.name for provider in machine.providers if provider.loads is not False}
    known = [npu for npu in machine.npus if npu.target is not None]
    if known and not names & set(_VITIS_PROVIDERS):
        yield Finding(
            "packages.no-npu-provider",
            "error",
            f"{known[0].title} is here and no provider for it loads: models run on the CPU",
            _enter_ryzen_ai(machine.system),
        )
    if machine.gpus and not names & set(_GPU_PROVIDERS):
        yield Finding(
            "packages.no-gpu-provider",
            "warning",
            f"{machine.gpus[0].title} is here and no provider for it loads: this ONNX Runtime has"
            " the CPU only",
            "pip uninstall -y onnxruntime && pip install onnxruntime-"
            + ("directml" if machine.system == "Windows" else "migraphx"),
        )


def _enter_ryzen_ai(system: str) -> str:
    page = "https://ryzenai.docs.amd.com/en/latest/"
    if system == "Windows":
        return f"conda activate ryzen-ai-1.8.0 (where there is none: {page}inst.html)"
    return f"source TARGET_PATH/venv/bin/activate (where there is none: {page}linux.html)"


def check_failing_providers(machine: Machine, environment: Environment) -> Iterator[Finding]:
    """Say why each provider that is installed does not load."""
    installed = environment.distributions.get("onnxruntime", "")
    for provider in machine.providers:
        if provider.kind == "plugin" and installed and is_older(installed, _OLDEST_FOR_PLUGINS):
            yield Finding(
                "packages.plugin-needs-newer-onnxruntime",
                "error",
                f"`{provider.name}` is a plugin and ONNX Runtime {installed} is older than"
                f" {_OLDEST_FOR_PLUGINS}",
                f'pip install -U "onnxruntime>={_OLDEST_FOR_PLUGINS}"',
            )
        elif provider.loads is False and provider.version != PLACEHOLDER_VERSION:
            yield _failing(provider)


def _failing(provider: ProviderInfo) -> Finding:
    mismatch = _API_MISMATCH.search(provider.reason)
    if mismatch:
        built_for, supported = mismatch.groups()
        return Finding(
            "packages.plugin-api",
            "error",
            f"`{provider.name}` from `{provider.origin}` was built for API {built_for} and this"
            f" ONNX Runtime has {supported}",
            # ONNX Runtime's API number is its minor version.
            f'pip install -U "onnxruntime>=1.{built_for}"',
        )
    return Finding(
        "packages.provider-fails",
        "error",
        f"`{provider.name}` from `{provider.origin}` does not load: {provider.reason}",
        f"fix that, or: pip uninstall -y {provider.origin.replace('_', '-')}"
        if not provider.origin.endswith("_PATH")
        else f"unset {provider.origin}, or let it name the library",
    )


def check_genai(machine: Machine, environment: Environment) -> Iterator[Finding]:
    """Find the public LLM runtime where AMD's own is needed."""
    public = environment.distributions.get("onnxruntime-genai")
    amds = any(name.endswith("-ryzenai") for name in environment.distributions)
    if public and not amds and any(_runs_language_models(npu.target) for npu in machine.npus):
        yield Finding(
            "packages.public-genai",
            "note",
            f"`onnxruntime-genai` {public} from PyPI does not know the provider `RyzenAI`",
            "pip install onnxruntime-genai-directml-ryzenai --extra-index-url"
            " https://pypi.amd.com/simple",
        )


def _runs_language_models(target: str | None) -> bool:
    facts = npu_facts(target or "")
    return facts is not None and facts.language_models


def check_conda(_: Machine, environment: Environment) -> Iterator[Finding]:
    """Find a Python that is not the one of the environment that is switched on."""
    conda = environment.variables.get("CONDA_PREFIX", "")
    prefix = environment.python_prefix
    if not conda or not prefix or environment.variables.get("VIRTUAL_ENV"):
        return
    if _same_folder(conda, prefix):
        return
    yield Finding(
        "packages.conda-mismatch",
        "warning",
        f"the conda environment `{conda}` is active and this Python belongs to `{prefix}`",
        f'conda run -p "{conda}" python -m pip install vermilion, and call vermilion from there',
    )


def _same_folder(a: str, b: str) -> bool:
    return _plain(a) == _plain(b)


def _plain(folder: str) -> str:
    return folder.replace("\\", "/").rstrip("/").casefold()


CHECKS = (
    check_onnxruntime,
    check_placeholders,
    check_rocm_provider,
    check_missing_providers,
    check_failing_providers,
    check_genai,
    check_conda,
)
