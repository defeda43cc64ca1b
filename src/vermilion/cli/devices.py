"""`vermilion devices`: what is in this machine, and what a model can be compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Column, Facts, FittedTable
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.hardware.devices import Machine, ProviderInfo
    from vermilion.hardware.targets.target import Target


@verb("devices")
def devices(
    terminal: Terminal,
    *,
    targets: Annotated[
        bool,
        typer.Option("--targets", help="List what a model can be compiled for, found here or not."),
    ] = False,
) -> Result:
    """Show the processor, NPUs, GPUs and ONNX Runtime providers of this machine."""
    if targets:
        return _targets()
    from vermilion.hardware.devices import detect_machine

    terminal.progress("looking for devices", 0, 0)
    machine = detect_machine()
    for problem in machine.problems:
        terminal.warn(problem)
    return Result(machine.as_json(), lambda: _view(machine))


def _targets() -> Result:
    from vermilion.hardware.targets.find import all_targets, find_target

    found = all_targets()
    here = find_target("cpu").name
    return Result(
        {"targets": [_target_as_json(one) for one in found], "cpu_is": here},
        lambda: _targets_view(found, here),
    )


def _target_as_json(target: Target) -> dict[str, object]:
    return {
        "name": target.name,
        "aliases": list(target.aliases),
        "kind": target.kind,
        "title": target.title,
        "data_types": list(target.formats),
    }


def _targets_view(found: Sequence[Target], here: str) -> RenderableType:
    from rich.console import Group

    columns = (
        Column("target", 0, "name"), Column("kind", 1, "name"), Column("chip", 0, "words"),
        Column("data types", 2, "words"), Column("other names", 3, "words"),
    )  # fmt: skip
    rows = [
        (
            target.name,
            target.kind.upper(),
            target.title,
            ", ".join(target.formats) or "the model's",
            ", ".join(target.aliases),
        )
        for target in found
    ]
    return Group(
        FittedTable(columns, rows),
        "",
        f"`cpu` is {here} on this machine",
        "compile for one: vermilion compile MODEL.onnx --target NAME",
    )


def _view(machine: Machine) -> RenderableType:
    cpu = machine.cpu
    facts = f"{cpu.core or 'x86-64'}, {cpu.physical_cores} cores, {_gigabytes(cpu.memory_bytes)}"
    rows = [("CPU", f"{cpu.brand}: {facts}")]
    for npu in machine.npus:
        target = f"target `{npu.target}`" if npu.target else "not a target that vermilion knows"
        driver = f"driver {npu.driver} {npu.driver_version}".rstrip() if npu.driver else "no driver"
        rows.append(("NPU", f"{npu.title} ({npu.ids}): {target}, {driver}"))
    if not machine.npus:
        looked_at = ", ".join(machine.looked_at) or "nothing"
        rows.append(("NPU", f"none found (looked at {looked_at})"))
    for gpu in machine.gpus:
        driver = f"driver {gpu.driver} {gpu.driver_version}".rstrip() if gpu.driver else "no driver"
        rows.append(("GPU", f"{gpu.title} ({gpu.ids}): {gpu.gfx or 'unknown gfx'}, {driver}"))
    if not machine.gpus:
        rows.append(("GPU", "no AMD GPU found"))
    for provider in machine.providers:
        origin = f"{provider.kind}, {provider.origin} {provider.version}".rstrip()
        rows.append(("provider", f"{provider.name}: {origin}: {_state(provider)}"))
    return Facts(rows)


def _state(provider: ProviderInfo) -> str:
    if provider.loads is None:
        return provider.reason or "not tried"
    return "loads" if provider.loads else f"does not load: {provider.reason}"


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
