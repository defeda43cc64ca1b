from __future__ import annotations

from dataclasses import replace

import pytest

from vermilion.errors import OptionError, UnsupportedError
from vermilion.runtime.gate import OffloadGate
from vermilion.runtime.summary import Summary

SUMMARY = Summary(
    model="m.onnx",
    model_signature="0" * 32,
    device="stx",
    model_data_type="float32",
    device_data_type="bfloat16",
    operators=49,
    gops=3.643,
    supported_operators=49,
    supported_gops=3.643,
    offloaded_operators=35,
    offloaded_gops=2.5,
    subgraphs_supported=3,
    subgraphs_offloaded=2,
)


def test_a_met_gate_passes() -> None:
    OffloadGate.parse("gops=68%").check(SUMMARY)
    OffloadGate.parse("operators=71.4").check(SUMMARY)
    OffloadGate.parse("gops=100%").check(replace(SUMMARY, offloaded_gops=3.643))


def test_a_missed_gate_names_both_figures() -> None:
    with pytest.raises(UnsupportedError, match=r"68\.625% of the gops .* 95% were asked for"):
        OffloadGate.parse("gops=95%").check(SUMMARY)


def test_it_says_whether_it_was_seen_to_run() -> None:
    gate = OffloadGate.parse("gops=95%")
    with pytest.raises(UnsupportedError, match="are offloaded to stx"):
        gate.check(SUMMARY)
    with pytest.raises(UnsupportedError, match="ran on stx"):
        gate.check(SUMMARY, ran=True)


@pytest.mark.parametrize("text", ["95%", "gops", "gops=-1%", "gops=101%", "flops=3%", "gops=x"])
def test_what_is_not_a_gate_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="not a gate"):
        OffloadGate.parse(text)
