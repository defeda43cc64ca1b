"""`cpu`: the processor of whatever machine this is."""

from __future__ import annotations

from vermilion.hardware.cpu import detect_cpu
from vermilion.hardware.targets import zen
from vermilion.hardware.targets.target import Target
from vermilion.hardware.x86 import newest_core

# Stands in the list of targets, and for processors below x86-64-v3 or not x86 at all: nothing is
# known of them, so nothing but ONNX Runtime is used on them.
CPU = Target(
    name="cpu",
    kind="cpu",
    title="The processor of this machine",
    source="resolved when asked for, from the features that the processor reports",
    aliases=("host", "native"),
)


def resolve_cpu(features: frozenset[str] | None = None) -> Target:
    """Return the newest core whose features this machine has, or the bare `cpu` where none fits.

    The features decide, not the name: a hypervisor may hide some, and code must not use those.
    `features` are LLVM's names; None looks at this machine.
    """
    present = detect_cpu().features if features is None else features
    core = newest_core(present)
    return next((target for target in zen.TARGETS if target.name == core), CPU)
