"""The tour, taken once in a run of the tests: its own tests look at it, pages begin with it."""

from __future__ import annotations

import os
import pickle
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import vermilion.hello as tour
from models import small_cnn
from pages import printed_to
from vermilion.api import compile_model
from vermilion.cli import main
from vermilion.hello import HelloReport


@dataclass(frozen=True)
class Printed:
    """How `vermilion hello` ended, and what it printed."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Taken:
    """A tour: what it returned, what was printed of it, where it and the user's cache lie."""

    for_machines: Printed
    for_people: Printed
    report: HelloReport
    folder: Path
    cache: Path


def taken_tour(factory: pytest.TempPathFactory) -> Taken:
    """Return the tour, which the first who asks takes: it costs 45 seconds of a processor."""
    own = factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    file = shared / "tour.pickle"
    with FileLock(shared / "tour.lock"):
        if not file.exists():
            file.write_bytes(pickle.dumps(_take(shared / "taken" / "tour", shared / "taken")))
        found: Taken = pickle.loads(file.read_bytes())
    return found


def _take(folder: Path, beside: Path) -> Taken:
    cache = beside / "cache"
    # What an earlier tour has left.
    compile_model(small_cnn(), cache_dir=folder / "cache", cache_key="earlier")
    reports: list[HelloReport] = []
    take_tour = tour.hello

    def noted(*given: Any, **options: Any) -> HelloReport:
        if not reports:
            reports.append(take_tour(*given, **options))
        return reports[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        patch.setenv("VERMILION_CACHE", str(cache))
        patch.setattr(tour, "hello", noted)
        words = ["hello", "--folder", str(folder)]
        for_machines, for_people = _printed([*words, "--json"]), _printed(words)
    return Taken(for_machines, for_people, reports[0], folder, cache)


def _printed(words: list[str]) -> Printed:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with printed_to((out, err)), redirect_stdout(out), redirect_stderr(err):
            code = main(words)
        texts = [(file.seek(0), file.read())[1] for file in (out, err)]
    return Printed(code, texts[0], texts[1])
