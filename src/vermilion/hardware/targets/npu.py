"""AMD's NPUs: one row a chip, with all that is known of it.

Sources beside each row's own: PCI ids, app_development.rst, "APU Types", and amd/xdna-driver
856409c, amdxdna_pci_drv.c (17f0:11 is its npu5, Strix Halo); arrays, the driver's register files
and amdnpu.rst; releases, relnotes.rst (1.2: Strix Point; 1.4: Krackan Point); binaries,
modelrun.rst, runtime_setup.rst, relnotes.rst 1.5 (4x4 is the only one left for Phoenix) and 1.6
(Strix and Krackan must name none); configuration, modelrun.rst (the example for Strix) and UG1787.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from vermilion.hardware.targets.target import ArrayFacts, NpuFacts, PlacementLimits, Target

# Operators that AMD documents as supported, by number format: 105 rows, four columns. The rows are
# grouped here by the columns they have a `Y` in. A `Y` means broad coverage; some configurations of
# an operator may still be refused.
# Source: Ryzen AI Software 1.8 documentation, docs/ops_support.rst.
_ALL = frozenset(("bf16", "a16w8", "a8w8", "xint8"))

_OPERATOR_ROWS: tuple[tuple[frozenset[str], str], ...] = (
    (
        _ALL,
        "Add AveragePool BatchNormalization Concat Constant ConstantOfShape Conv DepthToSpace Div"
        " Expand Flatten Gemm GlobalAveragePool Identity InstanceNormalization MatMul Max MaxPool"
        " Min Mul Pad Reciprocal ReduceMax Reshape Shape Slice Sqrt Squeeze Sub Transpose"
        " Unsqueeze",
    ),
    (
        frozenset(("bf16", "xint8")),
        "Abs And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil"
        " CumSum Equal Erf Floor Greater Less Log Neg Or Pow Round Sign Tile",
    ),
    # `GroupConv` is no ONNX operator, and the old `Upsample` is a row of its own: `_DEPRECATED`.
    (
        frozenset(("bf16",)),
        "Einsum Gather GridSample GroupConv LSTM Mod Not ScatterND Size Xor",
    ),
    (
        frozenset(("xint8",)),
        "Celu GreaterOrEqual LayerNormalization LessOrEqual Mish Range STFT Shrink Softsign"
        " ThresholdedRelu",
    ),
    (
        frozenset(("a16w8", "a8w8", "xint8")),
        "Clip DequantizeLinear Gelu GlobalMaxPool GroupNormalization LeakyRelu Relu Softmax"
        " Upsample",
    ),
    (frozenset(("bf16", "a8w8", "xint8")), "ReduceMean ReduceMin ReduceSum Resize"),
    (frozenset(("bf16", "a16w8", "a8w8")), "ConvTranspose Sigmoid Sin"),
    (frozenset(("a16w8", "a8w8")), "Cos QLinearConv QuantizeLinear"),
    (frozenset(("bf16", "a16w8")), "Exp GatherElements Split"),
    (frozenset(("a16w8", "xint8")), "Elu TopK"),
    (frozenset(("a8w8",)), "HardSigmoid QLinearMatMul"),
    (frozenset(("bf16", "a16w8", "xint8")), "Tanh Where"),
    (frozenset(("a8w8", "xint8")), "HardSwish"),
)

# The row reads `Upsample (deprecated)` and has a `Y` for BF16 alone.
_DEPRECATED: Mapping[str, frozenset[str]] = {"bf16": frozenset(("Upsample",))}

FORMATS = ("a16w8", "a8w8", "bf16", "xint8")


def _column(number_format: str) -> frozenset[str]:
    names = (row.split() for formats, row in _OPERATOR_ROWS if number_format in formats)
    return frozenset().union(*names) | _DEPRECATED.get(number_format, frozenset())


ROWS_IN_TABLE = sum(len(row.split()) for _, row in _OPERATOR_ROWS) + len(_DEPRECATED)

DOCUMENTED: Mapping[str, frozenset[str]] = {name: _column(name) for name in FORMATS}

# Operators with no `Y` in the BF16 column that run in BF16 all the same, because the compiler fuses
# them into a neighbour or takes them apart first. Inferred, from AMD's own results:
# - Relu: the example summary of resnet18.a1_in1k (Vitis AI documentation for Versal AI Edge Gen 2,
#   model_compilation/compiling.html) counts 49 operators, of which 17 are Relu, and offloads 49;
# - LayerNormalization, Softmax, Gelu: RyzenAI-SW, Transformer-examples, DistilBERT in BF16;
# - Clip, HardSwish, HardSigmoid, LeakyRelu: RyzenAI-SW, onnx-benchmark, FP32 MobileNet and YOLO
#   models run as BF16; each is a Min, Max, Mul and Add, which the column has;
# - GlobalMaxPool: a MaxPool over the whole image, which the column has.
BF16_THROUGH_FUSION = frozenset(
    [
        "Clip",
        "Gelu",
        "GlobalMaxPool",
        "HardSigmoid",
        "HardSwish",
        "LayerNormalization",
        "LeakyRelu",
        "Relu",
        "Softmax",
    ]
)

# In a quantized model these fold into the integer kernels on both sides of them. The table's
# XINT8 column has no QuantizeLinear, and every XINT8 model that AMD ships is full of them.
QDQ = frozenset(("QuantizeLinear", "DequantizeLinear"))

OPERATORS: Mapping[str, frozenset[str]] = {
    "bf16": DOCUMENTED["bf16"] | BF16_THROUGH_FUSION,
    "a16w8": DOCUMENTED["a16w8"] | QDQ,
    "a8w8": DOCUMENTED["a8w8"] | QDQ,
    "xint8": DOCUMENTED["xint8"] | QDQ,
}


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
            # Source: https://github.com/amd/RyzenAI-SW/issues/400 and /396.
            without_binary={
                "1.8": "the installer of 1.8.0 leaves it out, though the documentation names it:"
                " take the file of 1.7.1, or install that release"
            },
            # Source: quicktest.py as inst.rst of 1.7 prints it.
            int8_settings=(
                (
                    "1.7",
                    "xlnx_enable_py3_round",
                    "0",
                    "rounding as the quantizer does it; AMD's own test sets it on this NPU",
                ),
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
