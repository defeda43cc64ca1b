"""The NPU of Phoenix and Hawk Point (XDNA 1)."""

from __future__ import annotations

from dataclasses import replace

from vermilion.hardware.targets.npu_operators import OPERATORS
from vermilion.hardware.targets.strix import NPU_LIMITS
from vermilion.hardware.targets.target import Target

# The X1 compiler gives a graph of fewer than two convolutions to the CPU as a whole
# (`minimum_num_of_conv`, https://github.com/amd/RyzenAI-SW/issues/85 and /126), and leaves batch
# entries after the first unwritten (https://github.com/amd/RyzenAI-SW/issues/401).
_LIMITS = replace(NPU_LIMITS, min_convolutions=2, max_batch=1)

# Source: Ryzen AI documentation, relnotes.rst, model matrix: INT8 CNNs, nothing else. PCI ids do
# not tell Phoenix and Hawk Point apart, so they are one target.
PHOENIX = Target(
    name="phoenix",
    kind="npu",
    title="Phoenix and Hawk Point NPU (XDNA 1)",
    source="Ryzen AI documentation 1.8: ops_support.rst, relnotes.rst, app_development.rst",
    aliases=("hawk-point", "hpt", "phx"),
    device_code="phx",
    limits=_LIMITS,
    operators={name: OPERATORS[name] for name in ("a8w8", "xint8")},
    # What the driver reports for five columns: amd/xdna-driver, npu1_regs.c.
    peak_tops={"int8": 10.0},
)
