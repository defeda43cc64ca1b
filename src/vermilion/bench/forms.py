"""The files of a suite: the same result as JSON, CSV, Markdown and one HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vermilion.bench.page import html_page
from vermilion.bench.regress import Delta
from vermilion.bench.suite import SuiteResult
from vermilion.bench.tables import comma_separated, markdown, suite_tables

STEM = "suite"


def write_forms(
    result: SuiteResult,
    folder: Path,
    *,
    deltas: Sequence[Delta] = (),
    with_quoted: bool = False,
    with_page: bool = True,
) -> list[Path]:
    """Write every form into `folder`; give the files. The JSON is what `--compare` reads later."""
    data: dict[str, Any] = dict(result.data)
    if deltas:
        data["compared"] = [delta.as_json() for delta in deltas]
    told = (*(f"failed: {words}" for words in result.failed), *result.concerns)
    tables = suite_tables(data, deltas, with_quoted=with_quoted)
    heading = f"# Vermilion benchmark suite\n\n{_machine(data)}\n\n"
    warnings = "".join(f"- {words}\n" for words in told)
    forms = {
        "json": json.dumps(data, indent=2) + "\n",
        "csv": comma_separated(data, with_quoted=with_quoted),
        "md": heading + (warnings + "\n" if warnings else "") + markdown(tables),
    }
    if with_page:
        forms["html"] = html_page(data, tables, told)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for ending, text in forms.items():
        path = folder / f"{STEM}.{ending}"
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _machine(data: dict[str, Any]) -> str:
    machine, version = data["machine"], data["suite"]["version"]
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}. Vermilion {version}."
