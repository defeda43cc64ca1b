"""Faults of the rest: variables that nobody reads any more, the processor, the disk."""

from __future__ import annotations

from collections.abc import Iterator

from vermilion.hardware.checks import Finding
from vermilion.hardware.devices import Machine
from vermilion.hardware.environment import Environment
from vermilion.hardware.targets.x86 import X86_64_V3

# Variable → since when it is ignored, what to use instead. Sources: Ryzen AI documentation,
# relnotes.rst, 1.5; ROCm 6.4, MIGraphX provider (microsoft/onnxruntime#25379).
_RETIRED = {
    "XLNX_ENABLE_CACHE": ("Ryzen AI 1.5", "the provider option `enable_cache_file_io_in_mem`"),
    "XLNX_TARGET_NAME": ("Ryzen AI 1.5", "the provider option `target`"),
    "XLNX_VART_FIRMWARE": ("Ryzen AI 1.5", "the provider option `xclbin`, on Phoenix alone"),
    "ORT_MIGRAPHX_LOAD_COMPILED_MODEL": ("ROCm 6.4", "`ORT_MIGRAPHX_MODEL_CACHE_PATH`"),
    "ORT_MIGRAPHX_LOAD_COMPILED_PATH": ("ROCm 6.4", "`ORT_MIGRAPHX_MODEL_CACHE_PATH`"),
    "ORT_MIGRAPHX_SAVE_COMPILED_MODEL": ("ROCm 6.4", "`ORT_MIGRAPHX_MODEL_CACHE_PATH`"),
    "ORT_MIGRAPHX_SAVE_COMPILED_PATH": ("ROCm 6.4", "`ORT_MIGRAPHX_MODEL_CACHE_PATH`"),
}

# A compiled model is as large as its weights, and more than one is kept; below the second figure
# even a small one may not fit. Our choice.
LOW_DISK_BYTES = 5 * 10**9
NO_DISK_BYTES = 10**9


def check_processor(machine: Machine, _: Environment) -> Iterator[Finding]:
    """Check that the processor can run compiled code, not only ONNX Runtime's."""
    cpu = machine.cpu
    missing = sorted(X86_64_V3 - cpu.features)
    if not missing:
        core = f" ({cpu.core})" if cpu.core else ""
        yield Finding("cpu.found", "ok", f"{cpu.brand}{core}, {cpu.physical_cores} cores")
        return
    yield Finding(
        "cpu.no-avx2",
        "warning",
        f"{cpu.brand} lacks " + ", ".join(f"`{name}`" for name in missing) + ": no compiled"
        " kernels, everything runs through ONNX Runtime",
        "in a virtual machine pass the host's processor through (QEMU: -cpu host)",
    )


def check_retired_variables(_: Machine, environment: Environment) -> Iterator[Finding]:
    """Find variables that are set and that nothing reads."""
    for name, (since, instead) in _RETIRED.items():
        if name in environment.variables:
            unset = f"set {name}=" if environment.system == "Windows" else f"unset {name}"
            yield Finding(
                "environment.retired-variable",
                "warning",
                f"`{name}` is ignored since {since}",
                f"{unset}; instead: {instead}",
            )


def check_skip_fatal(machine: Machine, environment: Environment) -> Iterator[Finding]:
    """Find the setting by which compile errors turn into a silent run on the CPU.

    Source: VAIP, vaip/src/vitisai_compile_model.cpp: XLNX_ENABLE_SKIP_FATAL is 1 unless set.
    """
    name = "XLNX_ENABLE_SKIP_FATAL"
    value = environment.variables.get(name)
    has_vitis = any(p.name == "VitisAIExecutionProvider" for p in machine.providers)
    if value == "0" or (value is None and not has_vitis):
        return
    state = f"`{name}={value}`" if value is not None else f"`{name}` is not set, which means 1"
    yield Finding(
        "environment.skip-fatal",
        "warning" if value is not None else "note",
        f"{state}: the VitisAI provider swallows compile errors and runs the model on the CPU",
        f"set {name}=0" if environment.system == "Windows" else f"export {name}=0",
    )


def check_disk(_: Machine, environment: Environment) -> Iterator[Finding]:
    """Check that compiled models fit where they are to be kept."""
    free = environment.cache_free_bytes
    if not environment.cache_folder or free >= LOW_DISK_BYTES:
        return
    yield Finding(
        "system.disk-low",
        "error" if free < NO_DISK_BYTES else "warning",
        f"{free / 10**9:.1f} GB free for compiled models in `{environment.cache_folder}`",
        "vermilion cache prune, or `--cache-dir` on another disk",
    )


CHECKS = (check_processor, check_retired_variables, check_skip_fatal, check_disk)
