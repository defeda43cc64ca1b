"""The page: HTML, style and scripts with the data in it, as one text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from vermilion.pages.document import data_block, policy, style

_ASSETS = Path(__file__).parent / "assets"
# In the order in which each needs what stands before it. Dagre lays out a graph in layers.
# Source: https://github.com/dagrejs/dagre 3.1.3, MIT; its licence lies beside it.
_SCRIPTS = (
    "dagre.min.js", "data.js", "colour.js", "layout.js", "map.js", "charts.js", "card.js",
    "panels.js", "main.js",
)  # fmt: skip


@cache
def _parts() -> tuple[str, str, str]:
    look = style() + _read("view.css")
    script = "\n".join(_read(name) for name in _SCRIPTS)
    return _read("view.html"), look, script


def _read(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def view_page(data: Mapping[str, object]) -> str:
    """Return the page that shows `data`, which `build` makes."""
    shell, look, script = _parts()
    parts = {
        "policy": policy([look], [script]), "style": look, "data": data_block(data),
        "script": script,
    }  # fmt: skip
    pieces = [shell]
    for name, text in parts.items():
        # Split once, so that no text put in is looked at again.
        before, after = pieces.pop().split(f"{{{name}}}", 1)
        pieces += [before, text, after]
    return "".join(pieces)
