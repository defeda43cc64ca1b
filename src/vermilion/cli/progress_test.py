from __future__ import annotations

import io

from rich.console import Console

from vermilion.cli.progress import Bars


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
