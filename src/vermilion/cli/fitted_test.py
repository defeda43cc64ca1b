from __future__ import annotations

import io
from pathlib import PurePosixPath

import pytest
from rich.console import Console, Group, RenderableType
from rich.text import Text

from vermilion.cli.fitted import (
    Column,
    Definitions,
    Facts,
    FittedTable,
    Prose,
    Verbatim,
    draw,
)

COLUMNS = (
    Column("engine", 0, "name"),
    Column("p50 ms", 1),
    Column("least wanted", 4),
    Column("why", 3, "words"),
    Column("ratio", 2),
)
WHY = "it takes another number format than this model has, and says so at some length"
ROWS = (
    ("vermilion@fp32 1.0", "12.345", "1234567890", WHY, "0.81 (0.79 to 0.83)"),
    ("ort", "not measured"),
)
LONG = "/model/layers.0/self_attn/q_proj/MatMul_output_0_QuantizeLinear"


def drawn(view: RenderableType, width: int, *, terminal: bool = True) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    draw(console, view)
    return out.getvalue()


@pytest.fixture(autouse=True)
def no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.parametrize(
    ("width", "hidden"),
    [(200, ()), (85, ("least wanted",)), (70, ("least wanted", "why")),
     (40, ("least wanted", "why", "ratio"))],
)  # fmt: skip
def test_nothing_is_cut_and_what_is_left_out_is_named(width: int, hidden: tuple[str, ...]) -> None:
    found = drawn(FittedTable(COLUMNS, ROWS), width)
    assert "…" not in found
    assert "vermilion@fp32 1.0" in found
    assert "12.345" in found
    assert max(map(len, found.splitlines())) <= width
    names = found.partition("no room for: ")[2].partition(" (")[0].replace("\n", " ")
    assert names == ", ".join(column.head for column in COLUMNS if column.head in hidden)
    assert ("0.81 (0.79 to 0.83)" in found) == ("ratio" not in hidden)


def test_a_pipe_has_every_column_and_no_blanks_at_the_end_of_lines() -> None:
    found = drawn(FittedTable(COLUMNS, ROWS), 60, terminal=False)
    assert "no room" not in found
    assert "1234567890" in found
    assert not [line for line in found.splitlines() if line != line.rstrip()]


@pytest.mark.parametrize("width", [200, 80, 60])
def test_a_long_name_stays_whole_and_its_figures_stand_below_their_heads(width: int) -> None:
    columns = (Column("layer", 0, "name"), Column("operator", 1, "name"), Column("SQNR dB"))
    lines = drawn(FittedTable(columns, [(LONG, "MatMul", "12.3"), ("b", "Add", "7.0")]), width)
    assert LONG in lines
    ends = {len(line) for line in lines.splitlines() if not line.startswith("/") or width == 200}
    assert len(ends) == 1, lines


def test_heads_and_cells_of_two_lines() -> None:
    table = FittedTable((Column("a", 0, "name"), Column("code\nKiB")), [("x\ny", "1.5")])
    assert drawn(table, 80) == "a  code\n    KiB\nx   1.5\ny\n"


def test_two_columns_of_words_share_the_room() -> None:
    columns = (Column("n"), Column("why", 0, "words"), Column("what to do", 1, "words"))
    found = drawn(FittedTable(columns, [("3", WHY, WHY)]), 80)
    assert max(map(len, found.splitlines())) <= 80
    assert len(found.splitlines()) < 6


def test_wide_characters_are_counted_as_two() -> None:
    table = FittedTable((Column("名前", 0, "name"), Column("n")), [("層", "1"), ("ab", "22")])
    assert drawn(table, 80) == "名前   n\n層     1\nab    22\n"


def test_a_path_stays_on_one_line_and_words_are_wrapped_between_words() -> None:
    path = PurePosixPath("/home/somebody/my models") / ("x" * 70) / "model.onnx"
    rows = [("artifact", path), ("summary", f"{'y' * 90} and words " * 2)]
    lines = drawn(Facts(rows), 80).splitlines()
    assert lines[0] == f"artifact  {path}"
    assert lines[1] == "summary   " + "y" * 90
    assert lines[2].startswith(" " * 10 + "and words")
    assert drawn(Prose(f"written: {'z' * 100} now"), 80) == f"written:\n{'z' * 100}\nnow\n"


def test_sentences_of_a_group_keep_their_indent() -> None:
    found = drawn(Group("    " + "word " * 20, "", Text("end", style="bold")), 40)
    lines = found.splitlines()
    assert all(line.startswith("    word") for line in lines[:-2])
    assert lines[-2:] == ["", "end"]


def test_files_are_printed_as_they_are() -> None:
    script = "if true; then\n    " + "echo " * 40 + "x\nfi"
    assert drawn(Verbatim(script), 40) == script + "\n"


def test_options_that_are_long_have_a_line_of_their_own() -> None:
    rows = [("-o, --output FILE", "Where."), ("--" + "x" * 40, "What it does.")]
    assert drawn(Definitions(rows), 80).splitlines() == [
        "  -o, --output FILE         Where.",
        "  --" + "x" * 40,
        " " * 28 + "What it does.",
    ]


def test_names_cannot_move_the_cursor_or_turn_the_text() -> None:
    found = drawn(FittedTable((Column("a", 0, "name"),), [("x\x1b[2Jy\u202ez",)]), 80)
    assert found == "a\nx\\x1b[2Jy\\u202ez\n"


def test_a_table_without_rows_has_its_heads() -> None:
    assert "engine" in drawn(FittedTable(COLUMNS, ()), 80)
