"""Faults of GPUs: the compute driver, rights, and what `.bashrc` left behind."""

from __future__ import annotations

from collections.abc import Iterator

from vermilion.hardware.checks import Finding
from vermilion.hardware.devices import Machine
from vermilion.hardware.environment import Environment

_ROCM_PAGE = "https://rocm.docs.amd.com/projects/install-on-linux"


def check_presence(machine: Machine, _: Environment) -> Iterator[Finding]:
    """Say what GPU there is, or that there is none and where that was looked for."""
    for gpu in machine.gpus:
        gfx = f", {gpu.gfx}" if gpu.gfx else ""
        yield Finding("gpu.found", "ok", f"{gpu.title}{gfx}")
    if not machine.gpus and machine.looked_at:
        places = " and ".join(machine.looked_at)
        yield Finding("gpu.none", "note", f"no AMD GPU found: looked at {places}")


def check_compute_driver(machine: Machine, environment: Environment) -> Iterator[Finding]:
    """Find a GPU that shows pictures and cannot compute."""
    if environment.system != "Linux":
        return
    idle = [gpu for gpu in machine.gpus if gpu.found_by == "bus"]
    if not idle or any(node.endswith("/kfd") for node in environment.devices):
        return
    loaded = "amdgpu" in environment.modules
    yield Finding(
        "gpu.kfd-missing",
        "error",
        f"{idle[0].title} is on the PCI bus and `/dev/kfd` is not there: "
        + ("`amdgpu` runs without KFD" if loaded else "the module `amdgpu` is not loaded"),
        f"sudo modprobe amdgpu (in a container: --device=/dev/kfd --device=/dev/dri; else"
        f" {_ROCM_PAGE})",
    )


def check_access(machine: Machine, environment: Environment) -> Iterator[Finding]:
    """Check that this user may open the GPU's device nodes."""
    refused = [
        node
        for node, may_open in environment.devices.items()
        if not may_open and (node.endswith("/kfd") or "/renderD" in node)
    ]
    if machine.gpus and refused:
        user = environment.user or "$USER"
        yield Finding(
            "gpu.no-access",
            "error",
            "this user may not open " + ", ".join(f"`{node}`" for node in refused),
            f"sudo usermod -aG render,video {user}, then log out and in again",
        )


def check_override(_: Machine, environment: Environment) -> Iterator[Finding]:
    """Find the variable that makes every GPU call itself another."""
    value = environment.variables.get("HSA_OVERRIDE_GFX_VERSION")
    if value is not None:
        yield Finding(
            "gpu.hsa-override",
            "warning",
            f"`HSA_OVERRIDE_GFX_VERSION={value}` makes every GPU report that version, so code is"
            " built and cached for the wrong chip",
            "unset HSA_OVERRIDE_GFX_VERSION (and take it out of ~/.bashrc)",
        )


def check_migraphx_libraries(_: Machine, environment: Environment) -> Iterator[Finding]:
    """Find the MIGraphX wheel without the libraries that it needs and does not bring."""
    if environment.system != "Linux" or "onnxruntime-migraphx" not in environment.distributions:
        return
    needed = {"libmigraphx_c.so.3", "libamdhip64.so.7"} & environment.missing_libraries
    if needed:
        yield Finding(
            "gpu.migraphx-libraries",
            "error",
            "`onnxruntime-migraphx` is installed and "
            + " and ".join(f"`{name}`" for name in sorted(needed))
            + " cannot be found: its sessions silently run on the CPU",
            "sudo apt install migraphx hip-runtime-amd; export LD_LIBRARY_PATH=/opt/rocm/lib",
        )


CHECKS = (
    check_presence,
    check_compute_driver,
    check_access,
    check_override,
    check_migraphx_libraries,
)
