"""The documentation tells the truth: its tables are those of the code, its links lead somewhere."""

from __future__ import annotations

import re
import sys

from pages import BLOCK, ROOT, SET_UP


def test_the_set_up_commands_are_those_that_ci_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = {line.strip() for _, _, block in BLOCK.findall(readme) for line in block.splitlines()}
    assert lines >= SET_UP
    assert "pip install --quiet . && vermilion hello" in script
    assert "pip install --quiet '.[test]'" in script
    assert re.search(r"^pytest$", script, re.MULTILINE)


def test_the_tables_are_those_of_the_code() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from tables import documents
    finally:
        sys.path.remove(str(ROOT / "tools"))
    for path, text in documents().items():
        assert path.read_text(encoding="utf-8") == text, f"run `python tools/tables.py`: {path}"


def test_every_link_of_the_documentation_leads_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"
