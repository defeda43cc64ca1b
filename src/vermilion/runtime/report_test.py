from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import bundles
from vermilion.errors import OptionError, UnsupportedError
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.report import OffloadGate, Report, read_report
from vermilion.runtime.summary import Summary
from vermilion.runtime.write import write_artifact

REPORT = Report(
    summary=bundles.small_summary(),
    nodes=({"name": "first", "op_type": "MatMul", "device": "npu", "reason": "", "hint": ""},),
    verification=({"name": "y", "cosine": 1.0, "sqnr_db": 200.0, "max_abs_error": 0.0},),
    passes=({"name": "fold-constants", "fired": 2, "refusals": []},),
    predicted_ms=1.25,
    predicted_interval_ms=(1.0, 2.5),
)


def written(tmp_path: Path, report: Report) -> Path:
    content = bundles.small_content(bundles.small_parts(tmp_path / "scratch"))
    content = replace(content, summary=report.summary, nodes=report.nodes, extra=report.extra())
    write_artifact(tmp_path / "bundle", content)
    return tmp_path / "bundle"


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_report(open_artifact(written(tmp_path, REPORT))) == REPORT


def test_a_latency_that_nobody_could_model_stays_unknown(tmp_path: Path) -> None:
    unknown = replace(REPORT, predicted_ms=None, predicted_interval_ms=None, predicted_reason="no")
    found = read_report(open_artifact(written(tmp_path, unknown)))
    assert (found.predicted_ms, found.predicted_reason) == (None, "no")


@pytest.mark.parametrize("interval", [b"null", b"[1.0]", b'["a", "b"]', b"3"])
def test_a_latency_without_its_interval_is_none(interval: bytes, tmp_path: Path) -> None:
    folder = written(tmp_path, REPORT)
    text = (folder / "summary.json").read_bytes()
    start = text.index(b'"predicted_interval_ms": ') + len(b'"predicted_interval_ms": ')
    odd = text[:start] + interval + text[text.index(b"]", start) + 1 :]
    bundles.replace_member(folder, "summary.json", odd)
    found = read_report(open_artifact(folder))
    assert (found.predicted_ms, found.predicted_interval_ms) == (None, None)


def test_rows_of_another_form_are_left_out(tmp_path: Path) -> None:
    folder = written(tmp_path, REPORT)
    text = (folder / "summary.json").read_bytes()
    odd = text.replace(b'"predicted_ms": 1.25', b'"predicted_ms": "soon"')
    odd = odd.replace(b'"verification": {', b'"verified": {')
    assert odd != text
    bundles.replace_member(folder, "summary.json", odd)
    report = read_report(open_artifact(folder))
    assert (report.predicted_ms, report.verification) == (None, ())
    assert report.nodes == REPORT.nodes


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


def test_of_a_model_without_work_the_operators_are_counted() -> None:
    moved = replace(SUMMARY, gops=0.0, offloaded_gops=0.0)
    gate = OffloadGate.parse("gops=95%")
    gate.check(replace(moved, offloaded_operators=moved.operators))
    with pytest.raises(UnsupportedError, match=r"0\.000% of the operators"):
        gate.check(replace(moved, offloaded_operators=0))
    gate.check(replace(moved, operators=0, offloaded_operators=0))


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
