"""From a name to a target."""

from __future__ import annotations

import difflib

from vermilion.errors import OptionError
from vermilion.hardware.cpu import detect_cpu
from vermilion.hardware.targets import gpu, npu, x86
from vermilion.hardware.targets.target import Target

# `cpu`: stands in the list of targets, and for processors below x86-64-v3 or not x86 at all:
# nothing is known of them, so nothing but ONNX Runtime is used on them.
CPU = Target(
    name="cpu",
    kind="cpu",
    title="The processor of this machine",
    source="resolved when asked for, from the features that the processor reports",
    aliases=("host", "native"),
)


def all_targets() -> tuple[Target, ...]:
    """Return every target, processors first; `cpu` stands unresolved."""
    return (CPU, *x86.TARGETS, *npu.TARGETS, *gpu.TARGETS)


def resolve_cpu(features: frozenset[str] | None = None) -> Target:
    """Return the newest core whose features this machine has, or the bare `cpu` where none fits.

    The features decide, not the name: a hypervisor may hide some, and code must not use those.
    `features` are LLVM's names; None looks at this machine.
    """
    present = detect_cpu().features if features is None else features
    return next((core for core in x86.newest_first() if core.features <= present), CPU)


def find_target(name: str) -> Target:
    """Return the target that `name` or one of its aliases stands for; `cpu` is this machine's core.

    Upper case, `_` for `-`, and the feature suffix of a GPU (`gfx90a:xnack-`) are all accepted, and
    several GPUs with commas between them.
    Raises: OptionError with the nearest name where there is none such.
    """
    if "," in name:
        return _several(name)
    wanted = name.strip().lower().replace("_", "-").partition(":")[0]
    named = {alias: target for target in all_targets() for alias in (target.name, *target.aliases)}
    found = named.get(wanted)
    if found is None:
        raise OptionError(f"unknown target `{name}`", where="target", hint=_nearest(wanted, named))
    return resolve_cpu() if found is CPU else found


def _several(name: str) -> Target:
    if not all(word.strip() for word in name.split(",")):
        raise OptionError(
            f"a name is missing beside a comma in `{name}`",
            where="target",
            hint="several targets are written with one comma between two: `gfx942,gfx1100`",
        )
    found = {target.name: target for target in map(find_target, name.split(","))}
    targets = tuple(found.values())
    for target in targets:
        if target.kind != "gpu":
            raise OptionError(
                f"`{target.name}` cannot stand beside other targets",
                where=f"target `{name}`",
                hint="several at once are for GPUs: `gfx942,gfx1100`",
            )
    return targets[0] if len(targets) == 1 else gpu.several(targets)


def _nearest(wanted: str, named: dict[str, Target]) -> str:
    if wanted.startswith("gfx") and wanted[3:].isalnum():
        return gpu.instead_of(wanted)
    close = difflib.get_close_matches(wanted, named, n=1, cutoff=0.6)
    if close:
        return f"did you mean `{close[0]}`?"
    return "the targets are " + ", ".join(f"`{target.name}`" for target in all_targets())
