"""`vermilion devices`: what is in this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.hardware.devices import Machine, ProviderInfo


@verb("devices")
def devices(terminal: Terminal) -> Result:
    """Show the processor, NPUs, GPUs and ONNX Runtime providers of this machine."""
    from vermilion.hardware.devices import detect_machine

    terminal.progress("looking for devices", 0, 0)
    machine = detect_machine()
    for problem in machine.problems:
        terminal.warn(problem)
    return Result(machine.as_json(), lambda: _view(machine))


def _view(machine: Machine) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    cpu = machine.cpu
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_column()
    table.add_row(
        "CPU",
        cpu.brand,
        f"{cpu.core or 'x86-64'}, {cpu.physical_cores} cores, {_gigabytes(cpu.memory_bytes)}",
    )
    for npu in machine.npus:
        target = f"target `{npu.target}`" if npu.target else "not a target that vermilion knows"
        driver = f"driver {npu.driver} {npu.driver_version}".rstrip() if npu.driver else "no driver"
        table.add_row("NPU", f"{npu.title} ({npu.ids})", f"{target}, {driver}")
    if not machine.npus:
        table.add_row("NPU", "none found", f"looked at {', '.join(machine.looked_at) or 'nothing'}")
    for gpu in machine.gpus:
        driver = f"driver {gpu.driver} {gpu.driver_version}".rstrip() if gpu.driver else "no driver"
        table.add_row("GPU", f"{gpu.title} ({gpu.ids})", f"{gpu.gfx or 'unknown gfx'}, {driver}")
    if not machine.gpus:
        table.add_row("GPU", "no AMD GPU found", "")
    for provider in machine.providers:
        origin = f"{provider.kind}, {provider.origin} {provider.version}".rstrip()
        table.add_row("provider", provider.name, f"{origin}: {_state(provider)}")
    return Group(table)


def _state(provider: ProviderInfo) -> str:
    if provider.loads is None:
        return provider.reason or "not tried"
    return "loads" if provider.loads else f"does not load: {provider.reason}"


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
