from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

import models
from vermilion.cli import main
from vermilion.cli.bench import parse_sizes
from vermilion.errors import OptionError


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "small.onnx"
    ir.save(models.small_cnn(batch="batch"), path)
    return path


def bench(small: Path, *words: str) -> list[str]:
    return ["bench", str(small), "--dim", "batch=1", "--threads", "1", *words]


def test_json_then_the_gate_against_it(
    small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(bench(small, "--pairs", "6", "--json")) == 0
    report: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert (report["verb"], report["ok"]) == ("bench", True)
    assert [row["engine"] for row in report["results"]] == ["vermilion", "ort"]
    assert set(report["ratios"]) == {"ort"}

    # An earlier bench in which we took a tenth of the time and the peer as long as now.
    ours = report["results"][0]
    ours["turn_ms"] = [ms / 10 for ms in ours["turn_ms"]]
    old = tmp_path / "old.json"
    old.write_text(json.dumps(report))
    gate = ("--compare", str(old), "--max-regression", "50%")
    code = main(bench(small, "--pairs", "6", *gate, "--json"))
    shown = capfd.readouterr()
    gated = json.loads(shown.out)
    assert (code, gated["ok"]) == (1, False), gated["compared"]
    assert "slower than before" in shown.err
    assert [(d["engine"], d["regressed"]) for d in gated["compared"]] == [
        ("vermilion", True),
        ("ort", False),
    ]


@pytest.mark.parametrize("columns", ["80", "200"])
def test_the_table_for_people(
    columns: str, small: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(bench(small, "--pairs", "1")) == 0
    shown = capfd.readouterr().out
    assert "small, fp32, batch 1, 1 thread" in shown
    assert "vermilion: 8 of 8 operators native" in shown
    for words in ("vermilion@fp32", "ort@fp32", "p50 ms", "× as fast", "cosine"):
        assert words in shown
    assert "…" not in shown
    assert ("no room for: " in shown) == (columns == "80")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--precision", "fp8"), "no precision is called `fp8`"),
        (("--batch", "0"), "not a list of sizes"),
        (("--max-regression", "much"), "not a percentage"),
        (("--compare", "none.json"), "cannot be read"),
    ],
)
def test_wrong_use_is_exit_code_2(
    small: Path, words: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*bench(small), *words]) == 2
    assert message in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "sizes"), [(None, ()), ("8", (8,)), ("1, 8", (1, 8)), ("1,1", (1,))]
)
def test_sizes(text: str | None, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text, "--batch") == sizes


@pytest.mark.parametrize("text", ["", "a", "1,", "-1", "0", "1.5"])
def test_what_is_no_size_is_wrong_use(text: str) -> None:
    with pytest.raises(OptionError, match="not a list of sizes"):
        parse_sizes(text, "--batch")


def test_a_profile_as_tables_json_and_trace(
    small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    words = ("--pairs", "2", "--profile", "--trace", str(trace), "--top", "2")
    assert main(bench(small, *words)) == 0
    shown = capfd.readouterr().out
    for word in ("small, batch 1", "vermilion@fp32", "ort@fp32", "share", "GOP/s", "more"):
        assert word in shown
    assert "rocprofv3" in shown
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}

    assert main(bench(small, "--pairs", "2", "--profile", "--json")) == 0
    report = json.loads(capfd.readouterr().out)
    assert [e["engine"] for e in report["profiles"][0]["engines"]] == ["vermilion", "ort"]
    assert report["trace"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bench",), "there is no model to measure"),
        (("bench", "m.onnx", "--suite"), "brings its own models"),
        (("bench", "--suite", "--batch", "1"), "brings its own models"),
        (("bench", "--suite", "--no-html", "--cases", "vgg"), "no case `vgg`"),
        (("bench", "m.onnx", "--trace", "t.json"), "`--trace` writes a profile"),
        (("bench", "--suite", "--profile"), "one model at a time"),
    ],
)
def test_wrong_use_of_suite_and_profile(
    words: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 2
    assert message in capfd.readouterr().err
