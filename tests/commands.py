"""The command line in this process: fast, and as its user reads it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vermilion.cli import main


@dataclass(frozen=True)
class Done:
    """What one command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        loaded: dict[str, Any] = json.loads(self.out)
        assert list(loaded)[:3] == ["schema_version", "verb", "ok"]
        assert loaded["ok"] == (self.code == 0)
        return loaded

    @property
    def words(self) -> str:
        """What stands on stdout, with every run of spaces and line ends as one space."""
        return " ".join(self.out.split())


class Command:
    """Carries out command lines; each gets the test's own cache."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *words: str | Path) -> Done:
        self._capfd.readouterr()
        code = main([str(word) for word in words])
        out, err = self._capfd.readouterr()
        return Done(code, out, err)


def command_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> Command:
    """Return the command line with a cache of its own, on a terminal of no special width."""
    monkeypatch.setenv("VERMILION_CACHE", str(cache))
    monkeypatch.delenv("COLUMNS", raising=False)
    return Command(capfd)


def wide_enough(text: str, columns: int = 120) -> bool:
    """Say whether no line needs more than so many columns, but for a path at its end."""
    lines = (re.sub(r" /\S+$", "", line.rstrip()) for line in text.splitlines())
    return all(len(line) <= columns for line in lines)
