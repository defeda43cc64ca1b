from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from vermilion.bench.records import head, in_turns, printed_record, rows, save_json
from vermilion.errors import DeviceError


def test_medians_and_spread_of_what_took_turns() -> None:
    records = [
        {"model": "m", "engine": engine, "turn": turn, "ms": ms}
        for turn, pair in enumerate([(3.0, 30.0), (1.0, 10.0), (8.0, 20.0)])
        for engine, ms in zip(("ours", "theirs"), pair, strict=True)
    ]
    lines = [line.split() for line in rows(records, ("model", "engine"), ("ms",))]
    assert lines == [
        ["m", "ours", "3.0", "(1.0–8.0)"],
        ["m", "theirs", "20.0", "(10.0–30.0)"],
    ]
    assert head(("model", "engine"), ("ms",)).split() == ["model", "engine", "ms"]


def test_a_turn_that_fails_ends_the_bench(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(
        "import sys\n"
        "print('{\"ms\": ' + sys.argv[1] + '}\\nand more')\n"
        "sys.exit('it broke' if sys.argv[1] == '3' else 0)"
    )
    assert in_turns(str(script), [["1"], ["2"]], 2) == [
        {"ms": 1, "turn": 0},
        {"ms": 1, "turn": 1},
        {"ms": 2, "turn": 0},
        {"ms": 2, "turn": 1},
    ]
    with pytest.raises(DeviceError, match="it broke") as caught:
        in_turns(str(script), [["1"], ["3"]], 1)
    assert "child.py 3`" in caught.value.where


def test_a_command_that_prints_no_record_has_failed() -> None:
    with pytest.raises(DeviceError, match="ended with code 0"):
        printed_record([sys.executable, "-c", "print('done')"])


def test_a_file_is_whole_or_what_it_was(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    save_json(file, {"results": [1]})
    with pytest.raises(TypeError):
        save_json(file, {"results": [object()]})
    assert json.loads(file.read_text("utf-8")) == {"results": [1]}
