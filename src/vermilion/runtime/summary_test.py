from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from vermilion.errors import ArtifactError
from vermilion.runtime.summary import (
    Fallback,
    SubgraphStats,
    Summary,
    parse_summary,
    summary_from_json,
)

# Source: AMD, "Compiled Model Output" (ResNet-18), and the tutorials that print the same file.
RESNET18 = """\
--------- Final Summary of VAIML Pass ----------
OS: Linux X64
VAIP commit: 744227ab2a0fddec1eccdfe04ca222afd339f53f
Model: /path/to/models/resnet18.a1_in1k.onnx
Model signature: 41d764d4ef1d716a260bc7b2b4e07ff1
Device: ve2
Model data type: float32
Device data type: bfloat16
Number of operators in the model: 49
GOPs of the model: 3.64388
Number of operators supported by VAIML: 49 (100.000%)
GOPs supported by VAIML: 3.644 (100.000%)
Number of subgraphs supported by VAIML: 1
Number of operators offloaded by VAIML: 49 (100.000%)
GOPs offloaded by VAIML: 3.644 (100.000%)
Number of subgraphs offloaded by VAIML: 1
Number of subgraphs with compilation errors (fall back to CPU): 0
Number of subgraphs below 20% GOPs threshold (fall back to CPU): 0
Number of subgraphs above max number of subgraphs allowed(7): 0 (fall back to CPU)
Stats for offloaded subgraphs
Subgraph vaiml_par_0 stats:
    Type: npu
    Operators: 49 (100.000%)
    GOPs : 3.644 (100.000%)  OPs: 3,643,881,552
"""
# Of a quantized ResNet-50 v1, in the same tutorials: not everything is offloaded.
RESNET50_INT8 = (
    RESNET18.replace(
        "Number of operators in the model: 49", "Number of operators in the model: 493"
    )
    .replace("3.64388", "8.09703")
    .replace("49 (100.000%)", "491 (99.594%)")
    .replace("3.644 (100.000%)", "8.096 (99.993%)")
    .replace("3,643,881,552", "8,096,463,208")
    .replace("float32", "int8 quantized")
    .replace("bfloat16", "int8")
)
# The form of 2026: no commit, a block on the compiler, more lines, shares by number format.
FORM_2026 = """\
--------- Final Summary of VAIML Pass ----------
OS: Linux X64
Model: ....../resnet_trained_for_cifar10.onnx
Model signature: 9d9110c306b8e68d8e622b3414dd5982

Compiler Information
  Target Device: ve2 (part number: xc2ve3858)
  Device Data Type: bfloat16
  Flow: default
  Overlay: aie2_6x4x4.yaml
  NPU Frequency: 1267 MHz
  Threshold GOPs Percent: 20
  Model data type: float32
Number of operators in the model: 124
GOPs of the model: 0.168
Number of operators supported by VAIML: 124 (100.000%)
GOPs supported by VAIML: 0.168 (100.000%)
Number of subgraphs supported by VAIML: 1
Number of operators offloaded by VAIML: 124 (100.000%)
GOPs offloaded by VAIML: 0.168 (100.000%)
Number of subgraphs offloaded by VAIML: 1
Number of partitions offloaded to NPU: 1
Number of partitions executed on CPU: 0
Number of subgraphs with compilation errors (fall back to CPU): 0
Number of subgraphs below 20% GOPs threshold (fall back to CPU): 0
Number of subgraphs above max number of subgraphs allowed(7): 0 (fall back to CPU)
Stats for offloaded subgraphs
Subgraph vaiml_par_0 stats:
    Type: npu
    Operators: 124 (100.000%)
    GOPs : 0.168 (100.000%)  OPs: 167,999,964
    fp32 ops %: 99.574

Compilation Information
  Frontend (FE): 23.7 s (6.5%)
  Backend (BE): 342.0 s (93.2%)
"""
PRELIMINARY = """\
OS: Windows X64
Model: m.onnx
Model signature: 00000000000000000000000000000000
Device: stx
Model data type: float32
Device data type: bfloat16
Number of operators in the model: 120
GOPs of the model: 1.5
Number of operators supported by VAIML: 0(0.000%)
GOPs supported by VAIML: 0.000(0.000%)
Number of subgraphs supported by VAIML: 0
"""
OLD = """\
Number of operators in the model: 100
GOPs of the model: 2
Number of operators supported by VAIML: 90 (90.000%)
GOPs supported by VAIML: 1.900 (95.000%)
Number of subgraphs supported by VAIML: 12
Number of operators offloaded by VAIML: 40 (40.000%)
GOPs offloaded by VAIML: 1.000 (50.000%)
Number of subgraphs offloaded by VAIML: 2
Number of subgraphs with compilation issue: 3
Number of subgraphs below GOPs% (2%) threshold: 4
Number of subgraphs above max number of subgraphs allowed(15): 5 (fall back to CPU)
"""


def partial() -> Summary:
    """The partial offload of AMD's page: 35 of 49 operators, two subgraphs, one that failed."""
    gops = 3.643881552
    return Summary(
        model="/path/to/model.onnx",
        model_signature="41d764d4ef1d716a260bc7b2b4e07ff1",
        device="ve2",
        model_data_type="float32",
        device_data_type="bfloat16",
        operators=49,
        gops=gops,
        supported_operators=45,
        supported_gops=3.2,
        offloaded_operators=35,
        offloaded_gops=2.5,
        subgraphs_supported=3,
        subgraphs_offloaded=2,
        fallback=Fallback(compile_error=1),
        subgraphs=(
            SubgraphStats("vaiml_par_0", "npu", 20, 1.5, 1_500_000_000),
            SubgraphStats("vaiml_par_1", "npu", 15, 1.0, 1_000_000_000, {"int8": 93.846}),
        ),
        os="Linux X64",
        vaip_commit="none (vermilion 0.1.0)",
    )


@pytest.mark.parametrize("recorded", [RESNET18, RESNET50_INT8], ids=["resnet18", "resnet50-int8"])
def test_recorded_summaries_come_back_as_they_were(recorded: str) -> None:
    assert parse_summary(recorded).to_text() == recorded


def test_a_whole_offload_has_its_numbers() -> None:
    summary = parse_summary(RESNET18)
    assert (summary.operators, summary.offloaded_operators) == (49, 49)
    assert summary.gops == 3.64388
    assert summary.subgraphs == (
        SubgraphStats("vaiml_par_0", "npu", 49, 3.643881552, 3_643_881_552),
    )
    assert summary.model_signature == "41d764d4ef1d716a260bc7b2b4e07ff1"


def test_indentation_may_be_lost() -> None:
    # As on AMD's page, where copying the file has taken it away.
    flat = "\n".join(" ".join(line.split()) for line in RESNET18.splitlines())
    assert parse_summary(flat) == parse_summary(RESNET18)


def test_the_form_of_2026_is_read() -> None:
    summary = parse_summary(FORM_2026)
    assert summary.device == "ve2 (part number: xc2ve3858)"
    assert (summary.model_data_type, summary.device_data_type) == ("float32", "bfloat16")
    assert summary.vaip_commit == ""
    assert summary.subgraphs[0].ops == 167_999_964
    assert summary.subgraphs[0].format_percent == {"fp32": 99.574}
    assert "VAIP commit" not in summary.to_text()


def test_the_preliminary_form_is_read() -> None:
    summary = parse_summary(PRELIMINARY)
    assert (summary.operators, summary.supported_operators) == (120, 0)
    assert (summary.offloaded_operators, summary.subgraphs) == (0, ())


def test_the_old_form_is_read_with_its_own_limits() -> None:
    summary = parse_summary(OLD)
    assert summary.fallback == Fallback(3, 4, 5)
    assert (summary.threshold_gops_percent, summary.max_subgraphs) == (2, 15)


def test_a_partial_offload_prints_and_comes_back() -> None:
    text = partial().to_text()
    assert "Number of operators offloaded by VAIML: 35 (71.429%)\n" in text
    assert "GOPs offloaded by VAIML: 2.500 (68.608%)\n" in text
    assert "Number of subgraphs offloaded by VAIML: 2\n" in text
    assert "Number of subgraphs with compilation errors (fall back to CPU): 1\n" in text
    assert "VAIP commit: none (vermilion 0.1.0)\n" in text
    assert "    GOPs : 1.500 (41.165%)  OPs: 1,500,000,000\n" in text
    assert "    int8 ops %: 93.846\n" in text
    assert parse_summary(text).to_text() == text


def test_what_is_read_is_as_near_as_the_digits_allow() -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        gops = float(10 ** random.uniform(-3, 3))
        shares = random.uniform(0, 1, 2)
        given = replace(
            partial(), gops=gops, supported_gops=gops * shares[0], offloaded_gops=gops * shares[1]
        )
        found = parse_summary(given.to_text())
        assert abs(found.gops - gops) <= 5.1e-6 * gops
        assert abs(found.supported_gops - given.supported_gops) <= 0.00101
        assert abs(found.offloaded_gops - given.offloaded_gops) <= 0.00101
        assert [s.ops for s in found.subgraphs] == [s.ops for s in given.subgraphs]


def test_a_model_without_work_has_no_percentage_of_nothing() -> None:
    nothing = replace(partial(), operators=0, gops=0.0, subgraphs=())
    assert "GOPs supported by VAIML: 3.200 (0.000%)" in nothing.to_text()


def test_json_comes_back_whole() -> None:
    data = json.dumps(partial().as_json()).encode()
    assert summary_from_json(data, "summary.json") == partial()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no line `GOPs of the model`"),
        ("GOPs of the model: many", "GOPs of the model: many"),
        ("GOPs of the model: 1\nNumber of operators supported by VAIML: 1", "operators in the"),
        (RESNET18.split("    GOPs :")[0], "no GOPs below `Subgraph vaiml_par_0"),
        ("GOPs of the model: " + "9" * 5000, "9999"),
    ],
)
def test_what_is_no_summary_is_said_to_be_none(text: str, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        parse_summary(text)
