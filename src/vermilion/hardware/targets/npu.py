"""AMD's NPUs: one row a chip, with all that is known of it.

Sources beside each row's own: operators, Ryzen AI documentation, ops_support.rst; PCI ids,
app_development.rst, "APU Types", and amd/xdna-driver 856409c, amdxdna_pci_drv.c (17f0:11 is its
npu5, Strix Halo); arrays, the driver's register files and amdnpu.rst; releases, relnotes.rst (1.2:
Strix Point; 1.4: Krackan Point); binaries, modelrun.rst, runtime_setup.rst, relnotes.rst 1.5 (4x4
is the only one left for Phoenix) and 1.6 (Strix and Krackan must name none); configuration,
modelrun.rst (the example for Strix) and UG1787.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from vermilion.hardware.targets.npu_operators import OPERATORS
from vermilion.hardware.targets.target import ArrayFacts, NpuFacts, PlacementLimits, Target

# Source: Ryzen AI documentation, modelrun.rst: threshold_gops_percent 20, at most 7 subgraphs.
_LIMITS = PlacementLimits(min_gops_percent=20.0, max_parts=7)
_DRIVER = "amd/xdna-driver at 856409c"
_BINARIES = "voe-4.0-win_amd64/xclbins"
_STRIX_BINARIES = (("1.2", f"{_BINARIES}/strix/AMD_AIE2P_4x4_Overlay.xclbin"), ("1.6", ""))

TARGETS = (
    # INT8 CNNs, nothing else (relnotes.rst, model matrix). PCI ids do not tell Phoenix and Hawk
    # Point apart, so they are one target.
    Target(
        name="phoenix",
        kind="npu",
        title="Phoenix and Hawk Point NPU (XDNA 1)",
        source="Ryzen AI documentation 1.8: ops_support.rst, relnotes.rst, app_development.rst",
        aliases=("hawk-point", "hpt", "phx"),
        # The X1 compiler gives a graph of fewer than two convolutions to the CPU as a whole
        # (`minimum_num_of_conv`, https://github.com/amd/RyzenAI-SW/issues/85 and /126), and leaves
        # batch entries after the first unwritten (https://github.com/amd/RyzenAI-SW/issues/401).
        limits=replace(_LIMITS, min_convolutions=2, max_batch=1),
        npu=NpuFacts(
            chips="Phoenix and Hawk Point",
            operators={name: OPERATORS[name] for name in ("a8w8", "xint8")},
            summary_codes=("phx",),
            vaiml_code="phx",
            compilers=("X1",),
            pci={(0x1502, 0x00): "Phoenix or Hawk Point NPU (XDNA 1)"},
            # The driver itself reports 10 TOPS, for five columns.
            array=ArrayFacts(4, 4, 512, 1309, 2560, f"{_DRIVER}, npu1_regs.c, amdnpu.rst"),
            first_release="1.2",
            not_on=("Linux",),
            # Source: https://ryzenai.docs.amd.com, release notes, which models run where.
            language_models=False,
            binaries=(
                ("1.2", f"{_BINARIES}/phoenix/1x4.xclbin"),
                ("1.5", f"{_BINARIES}/phoenix/4x4.xclbin"),
            ),
        ),
    ),
    Target(
        name="strix",
        kind="npu",
        title="Strix Point and Strix Halo NPU (XDNA 2)",
        source="Ryzen AI documentation 1.8: ops_support.rst, relnotes.rst, modelrun.rst",
        aliases=("strix-halo", "strix-point", "stx", "stx-halo", "sth"),
        limits=_LIMITS,
        npu=NpuFacts(
            chips="Strix",
            operators=OPERATORS,
            summary_codes=("stx", "ryzen-ai"),
            vaiml_code="stx",
            compilers=("X2", "X1"),
            pci={
                (0x17F0, 0x00): "Strix Point NPU (XDNA 2, early revision)",
                (0x17F0, 0x10): "Strix Point NPU (XDNA 2)",
                (0x17F0, 0x11): "Strix Halo NPU (XDNA 2)",
            },
            # Clock: the step below the highest in the driver's table. `xrt-smi validate --run gemm`
            # reports 51.3 TOPS, 99 % of what these figures give. Block floating point (bfp16),
            # which bf16 matrix products are turned into, has the same rate.
            array=ArrayFacts(8, 4, 1024, 1584, 4096, f"{_DRIVER}, npu4_regs.c, amdnpu.rst"),
            first_release="1.2",
            binaries=_STRIX_BINARIES,
        ),
    ),
    # No latencies are published for it, and what the int8 fit for Strix is bound by, memory, is
    # another on this chip.
    Target(
        name="krackan",
        kind="npu",
        title="Krackan Point NPU (XDNA 2)",
        source=(
            "Ryzen AI documentation 1.8: ops_support.rst, relnotes.rst (same models as Strix);"
            " amd/xdna-driver, npu6_regs.c (same array as npu4)"
        ),
        aliases=("krackan-point", "krk"),
        limits=_LIMITS,
        npu=NpuFacts(
            chips="Krackan",
            operators=OPERATORS,
            summary_codes=("krk",),
            vaiml_code="stx",
            compilers=("X2", "X1"),
            pci={(0x17F0, 0x20): "Krackan Point NPU (XDNA 2)"},
            array=ArrayFacts(8, 4, 1024, 1584, 4096, f"{_DRIVER}, npu6_regs.c, amdnpu.rst"),
            first_release="1.4",
            binaries=_STRIX_BINARIES,
        ),
    ),
    # The vendor's compiler for this chip is the one of Ryzen AI (VAIML), so the documented Ryzen AI
    # operators stand for it: the chip's own list is broader. No latency model and no peak: they
    # depend on the part and on the overlay that the board was built with.
    Target(
        name="ve2",
        kind="npu",
        title="Versal AI Edge Series Gen 2 (VE2)",
        source=(
            "Vitis AI documentation for Versal AI Edge Gen 2 (UG1787), model_compilation;"
            " operators: Ryzen AI documentation 1.8, ops_support.rst"
        ),
        aliases=("ve2-xc2ve3858", "xc2ve3858", "versal-gen2"),
        limits=_LIMITS,
        npu=NpuFacts(
            chips="Versal",
            operators={name: OPERATORS[name] for name in ("a8w8", "bf16", "xint8")},
            summary_codes=("ve2",),
            vaiml_code="ve2",
            compilers=("VAIML",),
        ),
    ),
)

# What the vendor's summary prints after `Device:` → target.
TARGET_OF_CODE: Mapping[str, str] = {
    code: target.name
    for target in TARGETS
    if target.npu is not None
    for code in target.npu.summary_codes
}


def npu_facts(name: str) -> NpuFacts | None:
    """Return the facts of an NPU by the name of its target, None for what is no such name."""
    return next((target.npu for target in TARGETS if target.name == name), None)


def ryzen_ai_chips(which: Callable[[NpuFacts], bool] = lambda _: True) -> str:
    """Return the chips that Ryzen AI drives and `which` holds for, as a sentence names them."""
    return listed(
        npu.chips
        for target in TARGETS
        if (npu := target.npu) is not None and npu.first_release and which(npu)
    )


def not_on_system(npu: NpuFacts, system: str) -> str:
    """Say that Ryzen AI for this system has other chips, and not this one."""
    others = ryzen_ai_chips(lambda one: system not in one.not_on)
    return f"Ryzen AI for {system} supports {others}, not {npu.chips}"


def listed(names: Iterable[str]) -> str:
    """Return `A`, `A and B` or `A, B and C`."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
