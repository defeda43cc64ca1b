"""From a name to a target."""

from __future__ import annotations

import difflib

from vermilion.errors import OptionError
from vermilion.hardware.targets import gfx, zen
from vermilion.hardware.targets.cpu import CPU, resolve_cpu
from vermilion.hardware.targets.krackan import KRACKAN
from vermilion.hardware.targets.phoenix import PHOENIX
from vermilion.hardware.targets.strix import STRIX
from vermilion.hardware.targets.target import Target
from vermilion.hardware.targets.ve2 import VE2


def all_targets() -> tuple[Target, ...]:
    """Return every target, processors first; `cpu` stands unresolved."""
    return (CPU, *zen.TARGETS, PHOENIX, STRIX, KRACKAN, VE2, *gfx.TARGETS)


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
    found = {target.name: target for target in map(find_target, name.split(","))}
    targets = tuple(found.values())
    for target in targets:
        if target.kind != "gpu":
            raise OptionError(
                f"`{target.name}` cannot stand beside other targets",
                where=f"target `{name}`",
                hint="several at once are for GPUs: `gfx942,gfx1100`",
            )
    return targets[0] if len(targets) == 1 else gfx.several(targets)


def _nearest(wanted: str, named: dict[str, Target]) -> str:
    if wanted.startswith("gfx") and wanted[3:].isalnum():
        return (
            f"the nearest that works is `{gfx.nearest_architecture(wanted)}`; "
            "a program for one GPU does not run on another"
        )
    close = difflib.get_close_matches(wanted, named, n=1, cutoff=0.6)
    if close:
        return f"did you mean `{close[0]}`?"
    return "the targets are " + ", ".join(f"`{target.name}`" for target in all_targets())
