from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import bundles
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.report import Report, read_report
from vermilion.runtime.write import write_artifact

REPORT = Report(
    summary=bundles.small_summary(),
    nodes=({"name": "first", "op_type": "MatMul", "device": "npu", "reason": "", "hint": ""},),
    verification=({"name": "y", "cosine": 1.0, "sqnr_db": 200.0, "max_abs_error": 0.0},),
    passes=({"name": "fold-constants", "fired": 2, "refusals": []},),
    predicted_ms=1.25,
)


def written(tmp_path: Path, report: Report) -> Path:
    content = bundles.small_content(bundles.small_parts(tmp_path / "scratch"))
    content = replace(content, summary=report.summary, nodes=report.nodes, extra=report.extra())
    write_artifact(tmp_path / "bundle", content)
    return tmp_path / "bundle"


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_report(open_artifact(written(tmp_path, REPORT))) == REPORT


def test_a_latency_that_nobody_could_model_stays_unknown(tmp_path: Path) -> None:
    unknown = replace(REPORT, predicted_ms=None)
    assert read_report(open_artifact(written(tmp_path, unknown))).predicted_ms is None


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
