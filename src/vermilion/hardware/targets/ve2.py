"""The AI engine array of the Versal AI Edge Series Gen 2 (VE2)."""

from __future__ import annotations

from vermilion.hardware.targets.npu_operators import OPERATORS
from vermilion.hardware.targets.strix import NPU_LIMITS
from vermilion.hardware.targets.target import Target

# The vendor's compiler for this chip is the one of Ryzen AI (VAIML), so the documented Ryzen AI
# operators stand for it: the chip's own list is broader. No latency model and no peak: they depend
# on the part and on the overlay that the board was built with.
VE2 = Target(
    name="ve2",
    kind="npu",
    title="Versal AI Edge Series Gen 2 (VE2)",
    source=(
        "Vitis AI documentation for Versal AI Edge Gen 2 (UG1787), model_compilation; operators:"
        " Ryzen AI documentation 1.8, ops_support.rst"
    ),
    aliases=("ve2-xc2ve3858", "xc2ve3858", "versal-gen2"),
    device_code="ve2",
    limits=NPU_LIMITS,
    operators={name: OPERATORS[name] for name in ("a8w8", "bf16", "xint8")},
)
