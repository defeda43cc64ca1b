import pytest

from vermilion.hardware.targets.find import all_targets, find_target
from vermilion.hardware.targets.npu import (
    BF16_THROUGH_FUSION,
    DOCUMENTED,
    OPERATORS,
    ROWS_IN_TABLE,
)

# What a column of the vendor's table counts: docs/ops_support.rst, 1.8.
COUNTS = {"bf16": 78, "a16w8": 53, "a8w8": 53, "xint8": 83}


@pytest.mark.parametrize("number_format", sorted(COUNTS))
def test_documented_columns_have_the_documented_size(number_format):
    assert len(DOCUMENTED[number_format]) == COUNTS[number_format]


def test_documented_rows():
    assert ROWS_IN_TABLE == 105
    assert len(frozenset().union(*DOCUMENTED.values())) == 104  # `Upsample` has two rows


@pytest.mark.parametrize(
    ("number_format", "operator", "documented"),
    [
        ("bf16", "Relu", False),
        ("bf16", "Gather", True),
        ("bf16", "GroupNormalization", False),
        ("xint8", "Gather", False),
        ("xint8", "Sigmoid", False),
        ("xint8", "QuantizeLinear", False),
        ("xint8", "DequantizeLinear", True),
        ("xint8", "Relu", True),
        ("a16w8", "Sigmoid", True),
        ("a16w8", "ReduceMean", False),
        ("a8w8", "HardSwish", True),
        ("a8w8", "Tanh", False),
        ("bf16", "Upsample", True),
    ],
)
def test_single_cells(number_format, operator, documented):
    assert (operator in DOCUMENTED[number_format]) is documented


def test_fusion_adds_only_what_the_table_lacks():
    assert not BF16_THROUGH_FUSION & DOCUMENTED["bf16"]
    assert OPERATORS["bf16"] - DOCUMENTED["bf16"] == BF16_THROUGH_FUSION


def test_a_resnet_is_wholly_supported():
    in_float = {"Conv", "Relu", "MaxPool", "Add", "GlobalAveragePool", "Flatten", "Gemm"}
    assert in_float <= find_target("ve2").operators["bf16"]
    quantized = in_float | {"QuantizeLinear", "DequantizeLinear"}
    assert quantized <= find_target("strix").operators["xint8"]
    assert quantized <= find_target("phoenix").operators["xint8"]


def test_control_flow_is_supported_nowhere():
    for operators in OPERATORS.values():
        assert not operators & {"If", "Loop", "Scan", "NonMaxSuppression", "GRU"}


def test_formats_by_chip():
    assert find_target("strix").formats == ("a16w8", "a8w8", "bf16", "xint8")
    assert find_target("krackan").formats == find_target("strix").formats
    assert find_target("phoenix").formats == ("a8w8", "xint8")
    assert "bf16" in find_target("ve2").formats


def test_limits_by_kind_of_chip():
    for target in all_targets():
        expected = {"npu": (20.0, 7), "cpu": (1.0, None), "gpu": (0.0, None)}[target.kind]
        expected = (0.0, None) if target.name == "cpu" else expected  # stands for this machine's
        assert (target.limits.min_gops_percent, target.limits.max_parts) == expected, target.name
