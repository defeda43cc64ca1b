from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from vermilion.cli.output import (
    Bars,
    Failure,
    Result,
    console_on,
    emit,
    emit_failure,
    to_json,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def table() -> Table:
    made = Table("name", box=None)
    made.add_row("layer[0]/:smile:/[red]conv")
    return made


def test_a_result_for_machines_is_one_object_with_the_three_keys_first() -> None:
    out = io.StringIO()
    result = Result({"size": 3}, table)
    emit("look", result, as_json=True, out=out, warnings=["random data"])
    assert json.loads(out.getvalue()) == {
        "schema_version": 1,
        "verb": "look",
        "ok": True,
        "size": 3,
        "warnings": ["random data"],
    }


def test_a_result_for_people_prints_names_as_they_are() -> None:
    out = io.StringIO()
    emit("look", Result({}, table), as_json=False, out=out)
    assert "layer[0]/:smile:/[red]conv" in out.getvalue()


def test_a_failure_says_what_where_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    failure = Failure("it broke", where="a.onnx, node `b`", hint="fix it")
    emit_failure("look", failure, as_json=True, out=out)
    assert capsys.readouterr().err == "error: it broke (a.onnx, node `b`)\nhint: fix it\n"
    error = {"message": "it broke", "where": "a.onnx, node `b`", "hint": "fix it"}
    assert json.loads(out.getvalue()) == {
        "schema_version": 1,
        "verb": "look",
        "ok": False,
        "error": error,
    }


def test_a_long_message_in_a_pipe_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    emit_failure("look", Failure("word " * 60), as_json=False, out=io.StringIO())
    assert capsys.readouterr().err.count("\n") == 1


def test_colours_only_on_a_terminal_and_never_with_no_color(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    printed = {}
    for name, stream in (("terminal", Terminal()), ("pipe", io.StringIO())):
        console_on(stream).print("text", style="red")
        printed[name] = stream.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    console_on(stream).print("text", style="red")
    assert "\x1b[31m" in printed["terminal"]
    assert printed["pipe"] == "text\n"
    assert "\x1b[31m" not in stream.getvalue()


def test_json_takes_what_reports_hold() -> None:
    held = {
        "path": Path("a") / "b",
        "nan": float("nan"),
        "infinity": float("inf"),
        "scalar": np.float32(0.5),
        "count": np.int64(7),
        "truth": np.bool_(True),
        "set": {"b", "a"},
        "tuple": (1, None),
    }
    assert to_json(held) == {
        "path": str(Path("a") / "b"),
        "nan": None,
        "infinity": None,
        "scalar": 0.5,
        "count": 7,
        "truth": True,
        "set": ["a", "b"],
        "tuple": [1, None],
    }


def test_json_refuses_what_it_would_have_to_guess() -> None:
    with pytest.raises(TypeError, match="cannot hold a ndarray"):
        to_json({"array": np.zeros(3)})


PRINTS_BESIDE = """
import ctypes, os, sys
from vermilion.cli.output import stdout_for_result_only
print("before")
with stdout_for_result_only() as out:
    print("from Python")
    os.write(1, b"from native code\\n")
    ctypes.CDLL("ucrtbase" if os.name == "nt" else None).puts(b"from C's own buffer")
    out.write("the result\\n")
print("after")
"""


def test_only_the_result_reaches_stdout_even_from_native_code() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINTS_BESIDE],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.stdout.splitlines() == ["before", "the result", "after"]
    assert sorted(done.stderr.splitlines()) == [
        "from C's own buffer",
        "from Python",
        "from native code",
    ]


def test_bars_name_their_stages_on_a_terminal() -> None:
    out = io.StringIO()
    with Bars(Console(file=out, force_terminal=True, width=100)) as bars:
        bars("quantize", 1, 4)
        bars("compile", 0, 0)
        bars("quantize", 4, 4)
    assert "quantize" in out.getvalue()
    assert "compile" in out.getvalue()
    assert "4/4" in out.getvalue()


def test_nothing_is_drawn_where_nobody_watches() -> None:
    out = io.StringIO()
    with Bars(Console(file=out)) as bars:
        bars("quantize", 1, 4)
    assert out.getvalue() == ""
