"""The suite on a network that takes no time: whole, stopped, gone on with, in every form."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

import models
from vermilion.bench import quoted
from vermilion.bench.figures import chance_of_difference
from vermilion.bench.forms import write_forms
from vermilion.bench.measure import Plan
from vermilion.bench.regress import SIGNIFICANT, compare_rows, read_rows
from vermilion.bench.suite import SUITE, SuiteCase, SuiteResult, chosen_cases, run_suite
from vermilion.bench.tables import comma_separated, latency_table, sizes_of, suite_tables
from vermilion.errors import OptionError

PLAN = Plan(threads=(1,), against=("ort",))
CASES = (SuiteCase("resnet50", 1, None, 2), SuiteCase("resnet50", 8, None, 2))


def small() -> ir.Model:
    return models.small_cnn(batch="batch")


def broken() -> ir.Model:
    return models.small_cnn(batch=3)


# Under the name of a network that figures have been published for.
NETWORKS = {"resnet50": small, "fixed": broken}


def measured(folder: Path, cases: Any = CASES, plan: Plan = PLAN) -> SuiteResult:
    return run_suite(cases, plan, folder, networks=NETWORKS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("suite")


@pytest.fixture(scope="module")
def found(folder: Path) -> SuiteResult:
    return measured(folder)


def test_every_case_is_a_row_of_every_engine(found: SuiteResult) -> None:
    rows = [(row["engine"], row["batch"], len(row["turn_ms"])) for row in found.data["results"]]
    assert rows == [("vermilion", 1, 2), ("ort", 1, 2), ("vermilion", 8, 2), ("ort", 8, 2)]
    assert (found.kept, found.failed) == (0, ())
    assert found.data["ratios"]["ort"]["pairs"] == 4


def test_what_was_measured_is_kept(found: SuiteResult, folder: Path) -> None:
    again = measured(folder)
    assert again.kept == 2
    assert again.data == found.data


def test_a_suite_that_was_stopped_goes_on(found: SuiteResult, folder: Path, tmp_path: Path) -> None:
    """Stopped after the first case, while the second was being written."""
    (tmp_path / "cases").mkdir()
    whole = (folder / "cases" / "resnet50-b1.json").read_bytes()
    (tmp_path / "cases" / "resnet50-b1.json").write_bytes(whole)
    (tmp_path / "cases" / "resnet50-b8.json").write_bytes(whole[: len(whole) // 2])
    gone_on = measured(tmp_path)
    assert gone_on.kept == 1
    assert gone_on.data["results"][0] == found.data["results"][0]
    assert gone_on.data["results"][2] != found.data["results"][2]
    assert json.loads((tmp_path / "cases" / "resnet50-b8.json").read_text())["results"]


def test_what_was_measured_otherwise_is_measured_again(found: SuiteResult, folder: Path) -> None:
    cases = [replace(CASES[0], pairs=3)]
    other = measured(folder, cases)
    assert other.kept == 0
    assert len(other.data["results"][0]["turn_ms"]) == 3
    assert measured(folder, cases).kept == 1
    assert measured(folder, cases, replace(PLAN, against=())).kept == 0


def test_a_case_that_fails_leaves_the_others(tmp_path: Path) -> None:
    cases = [SuiteCase("fixed", 8, None, 1), SuiteCase("resnet50", 1, None, 1)]
    found = measured(tmp_path, cases)
    assert [row["model"] for row in found.data["results"]] == ["resnet50"] * 2
    (words,) = found.failed
    assert words.startswith("fixed-b8: the batch cannot be 8")
    assert not (tmp_path / "cases" / "fixed-b8.json").exists()


def test_the_tables_have_the_figures_of_the_rows(found: SuiteResult) -> None:
    table = latency_table(found.data, "resnet50")
    assert table.head == ("batch", "vermilion ms", "ort ms", "× ort", "turns")
    ours, peer = found.data["results"][:2]
    assert table.rows[0][0] == "1"
    assert table.rows[0][1] == f"{ours['latency_ms']['p50']:.2f}"
    speed_up = sizes_of(found.data)[0].speed_up("ort")
    pairs = sorted(b / a for a, b in zip(ours["turn_ms"], peer["turn_ms"], strict=True))
    assert speed_up is not None
    assert pairs[0] <= speed_up <= pairs[1]
    titles = [table.title for table in suite_tables(found.data)]
    assert titles == ["resnet50: latency", "resnet50: memory", "Engines"]


def test_one_peer_at_two_precisions_has_two_columns(found: SuiteResult) -> None:
    rows = [dict(row) for row in found.data["results"]]
    rows += [{**row, "precision": "bf16"} for row in rows if row["engine"] == "ort"]
    table = latency_table({**found.data, "results": rows}, "resnet50")
    assert table.head[1:6] == ("vermilion ms", "ort ms", "ort@bf16 ms", "× ort", "× ort@bf16")
    assert table.rows[0][2] == table.rows[0][3]


def test_quoted_figures_have_columns_of_their_own(found: SuiteResult) -> None:
    plain, table = (latency_table(found.data, "resnet50", wanted) for wanted in (False, True))
    assert table.head[len(plain.head) :] == (
        "quoted: CPU ms", "quoted: ROCm ms", "quoted: MIGraphX ms",
    )  # fmt: skip
    assert table.rows[1][len(plain.head) :] == ("336.5", "12.4", "10.8")
    for words in (quoted.HARDWARE, quoted.SOFTWARE, quoted.DATE, quoted.SOURCE):
        assert words in table.note
    assert "quoted" not in plain.note


def test_the_csv_says_what_is_measured_and_what_is_quoted(found: SuiteResult) -> None:
    rows = list(csv.DictReader(io.StringIO(comma_separated(found.data, with_quoted=True))))
    kinds = [(row["kind"], row["engine"]) for row in rows[:5]]
    assert kinds == [
        ("measured", "vermilion"), ("measured", "ort"),
        ("quoted", "CPU"), ("quoted", "ROCm"), ("quoted", "MIGraphX"),
    ]  # fmt: skip
    assert float(rows[0]["p50_ms"]) == found.data["results"][0]["latency_ms"]["p50"]
    assert rows[2]["p50_ms"] == "42.3"
    assert quoted.DATE in rows[2]["source"]


def test_the_forms_are_written_and_compared_with_later(found: SuiteResult, tmp_path: Path) -> None:
    files = write_forms(found, tmp_path, with_page=False)
    assert [file.name for file in files] == ["suite.json", "suite.csv", "suite.md"]
    deltas = compare_rows(found.data["results"], read_rows(files[0]), 5.0)
    assert [delta.state for delta in deltas] == ["matched"] * 4
    text = files[2].read_text(encoding="utf-8")
    assert "| batch | vermilion ms | ort ms | × ort | turns |" in text
    write_forms(found, tmp_path, deltas=deltas, with_page=False)
    assert "## Against the earlier bench" in files[2].read_text(encoding="utf-8")
    assert json.loads(files[0].read_text(encoding="utf-8"))["compared"][0]["change_percent"] == 0.0


def test_the_page_is_one_file_that_runs_nothing_and_fetches_nothing(
    found: SuiteResult, tmp_path: Path
) -> None:
    told = replace(found, concerns=("a <b> & c",))
    drawn = write_forms(told, tmp_path, with_quoted=True)[-1].read_text(encoding="utf-8")
    assert drawn.count('<svg class="plot"') == 3
    assert (
        drawn.count('class="whisker"') == 4 + 2
    )  # of both engines at both sizes, and of one ratio
    assert "milliseconds an image" in drawn
    assert "time of the peer ÷ time of vermilion" in drawn
    assert "Measured on 20" in drawn
    assert "<script" not in drawn
    assert "a &lt;b&gt; &amp; c" in drawn
    links = [word for word in ("src=", "href=", "@import", "url(") if word in drawn]
    assert links == []
    assert drawn.count('class="q"') > 6
    # The same figures make the same bytes.
    assert drawn == write_forms(told, tmp_path, with_quoted=True)[-1].read_text(encoding="utf-8")


def test_the_suite_has_the_sizes_of_the_published_tables_and_can_prove_a_change() -> None:
    assert {(c.network, c.batch, c.sequence) for c in SUITE} == {
        (q.network, q.batch, q.sequence) for q in quoted.FIGURES
    }
    fewest = min(case.pairs for case in SUITE)
    slower = [2.0 + 0.01 * i for i in range(fewest)]
    assert chance_of_difference([ms / 2.0 for ms in slower], slower) < SIGNIFICANT


def test_cases_are_chosen_by_network_or_name() -> None:
    assert [c.name for c in chosen_cases(["bert_base-s128-b8", "resnet50-b1"])] == [
        "resnet50-b1",
        "bert_base-s128-b8",
    ]
    assert len(chosen_cases(["resnet50"])) == 5
    assert chosen_cases([]) == list(SUITE)
    with pytest.raises(OptionError, match="no case `vgg`") as raised:
        chosen_cases(["vgg"])
    assert "bert_base-s512-b8" in raised.value.hint
