"""The NPU of Phoenix and Hawk Point (XDNA 1)."""

from __future__ import annotations

from vermilion.hardware.targets.npu_operators import OPERATORS
from vermilion.hardware.targets.strix import NPU_LIMITS
from vermilion.hardware.targets.target import Target

# Source: Ryzen AI documentation, relnotes.rst, model matrix: INT8 CNNs, nothing else. PCI ids do
# not tell Phoenix and Hawk Point apart, so they are one target.
PHOENIX = Target(
    name="phoenix",
    kind="npu",
    title="Phoenix and Hawk Point NPU (XDNA 1)",
    source="Ryzen AI documentation 1.8: ops_support.rst, relnotes.rst, app_development.rst",
    aliases=("hawk-point", "hpt", "phx"),
    device_code="phx",
    limits=NPU_LIMITS,
    operators={name: OPERATORS[name] for name in ("a8w8", "xint8")},
    # What the driver reports for five columns: amd/xdna-driver, npu1_regs.c.
    peak_tops={"int8": 10.0},
)
