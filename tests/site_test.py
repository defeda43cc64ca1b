"""The documentation as a site: it builds without a warning, and every page is in its menu."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT

pytestmark = pytest.mark.needs("mkdocs", "material")

# Words that this field does not use, with what it says: none of them is in a text for users.
REPLACED = {
    r"reads nothing": "0 % accuracy",
    r"\brungs?\b": "trial",
    r"\bcrossings?\b": "transfers",
    r"\b(an? )?(CPU )?twins?\b": "CPU build",
    r"\bpictures?\b": "images",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bculprits?\b": "the smallest model that fails",
    r"\bladders?\b": "trials",
    r"\bislands?\b": "float subgraphs",
    r"\bcrew\b": "thread pool",
    r"\bopen (dimension|size|batch)": "dynamic",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


def test_every_page_is_built_and_found_by_the_search(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {path.stem for path in site.glob("*.html")} == {*pages, "404"}
    search = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition(".html")[0] for entry in search["docs"]}
    assert found >= pages - {"index"}


def test_a_page_fetches_nothing_from_elsewhere(site: Path) -> None:
    text = (site / "tutorial.html").read_text(encoding="utf-8")
    fetched = re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(https?:[^"]+)"', text)
    assert not [link for link in fetched if "canonical" not in link]


def texts() -> dict[str, str]:
    """Return the pages, without blocks of code and without names in back quotes."""
    found = {}
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        found[page.name] = re.sub(r"`[^`]*`", "", text)
    return found


@pytest.mark.parametrize("word", REPLACED)
def test_the_words_are_those_of_the_field(word: str) -> None:
    found = {
        f"{name}: {match[0]}"
        for name, text in texts().items()
        for match in re.finditer(word, text, re.IGNORECASE)
    }
    assert not found, f"say {REPLACED[word]}"
