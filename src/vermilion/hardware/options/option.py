"""What one provider option is, what a build of a provider takes, and what somebody wrote."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from vermilion.hardware.checks import Level

Values = Literal["flag", "integer", "number", "choice", "path", "text", "hex64", "address"]

TRUE_WORDS = frozenset(("1", "true", "True"))
FALSE_WORDS = frozenset(("0", "false", "False"))

# What only running the program would tell stands between these; it is taken as right.
UNKNOWN_OPEN, UNKNOWN_CLOSE = "‹", "›"

_INTEGER = re.compile(r"-?\d{1,20}")
_NUMBER = re.compile(r"-?\d{1,20}(?:\.\d{1,10})?")
_HEX_64 = re.compile(r"[0-9a-fA-F]{64}")
_EXPECTED: Mapping[str, str] = {
    "flag": "`0` or `1`",
    "integer": "a whole number",
    "number": "a number",
    "path": "a path",
    "text": "text",
    "hex64": "64 hexadecimal digits (a 256-bit key)",
    "address": "the address of a function",
}


def unknown(expression: str) -> str:
    """Mark the text of an expression whose value is not known."""
    return f"{UNKNOWN_OPEN}{expression}{UNKNOWN_CLOSE}"


def is_unknown(value: str) -> bool:
    """Say whether a value is an expression that was not evaluated."""
    return value.startswith(UNKNOWN_OPEN) and value.endswith(UNKNOWN_CLOSE)


@dataclass(frozen=True)
class Option:
    """One row of a provider's table.

    `since` and `until` are the first and last release or build that take it, empty where no source
    says. `other_spellings` are read as this option by the provider itself.
    """

    name: str
    values: Values
    meaning: str
    default: str = ""
    choices: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    other_spellings: tuple[str, ...] = ()
    is_documented: bool = True
    advice: str = ""  # what to do where a release no longer takes it

    @property
    def expected(self) -> str:
        """Say in words what values are right."""
        if self.values == "choice":
            return "one of " + ", ".join(f"`{choice}`" for choice in self.choices)
        return _EXPECTED[self.values]

    def takes(self, value: str) -> bool:
        """Say whether the provider understands this value."""
        if is_unknown(value):
            return True
        match self.values:
            case "flag":
                return value in TRUE_WORDS | FALSE_WORDS
            case "integer":
                return _INTEGER.fullmatch(value) is not None
            case "number":
                return _NUMBER.fullmatch(value) is not None
            case "choice":
                return value in self.choices
            case "hex64":
                return _HEX_64.fullmatch(value) is not None
            case "path":
                return bool(value)
            case "text" | "address":
                return True


@dataclass(frozen=True)
class OptionTable:
    """The options that one build or release of a provider takes.

    `removed` maps names that older builds took to what to write instead (empty: nothing).
    """

    provider: str
    build: str
    title: str
    source: str
    options: tuple[Option, ...]
    removed: Mapping[str, str] = field(default_factory=dict)

    def find(self, written: str) -> Option | None:
        """Return the option that a name stands for, by its own name or another spelling."""
        return next(
            (o for o in self.options if written == o.name or written in o.other_spellings), None
        )

    def nearest(self, written: str) -> str:
        """Return the known name that looks most like `written`, empty where none does."""
        close = difflib.get_close_matches(
            written.lower(), [option.name for option in self.options], n=1, cutoff=0.7
        )
        return close[0] if close else ""


@dataclass(frozen=True)
class Setting:
    """For what the options are meant; empty where nobody said and no file told.

    `build`: a Ryzen AI release (`1.7`), or a build of a GPU provider (`plugin`, `built-in-1.27`).
    """

    build: str = ""
    device: str = ""  # a target: `strix`, `phoenix`, `gfx1100`
    precision: str = ""  # `int8`, `bf16`
    system: str = ""  # `Windows`, `Linux`


@dataclass(frozen=True)
class OptionSet:
    """Options as somebody wrote them. Values that were no text have their Python type's name.

    `providers` is the whole list that the session is given. `config` is the content of the file
    that `config_file` names, where it could be read.
    """

    provider: str
    options: Mapping[str, str]
    where: str = ""
    not_text: Mapping[str, str] = field(default_factory=dict)
    providers: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Problem:
    """One thing wrong with an option set. `id` is stable, `fix` is what the corrected form has."""

    id: str
    level: Level
    option: str
    what: str
    fix: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the keys that `vermilion doctor --options --json` prints."""
        return {
            "id": self.id,
            "level": self.level,
            "option": self.option,
            "what": self.what,
            "fix": self.fix,
        }


@dataclass
class Draft:
    """A corrected option set in the making, and what was wrong with the one it came from."""

    provider: str
    options: dict[str, str]
    providers: tuple[str, ...]
    environment: dict[str, str]
    config: dict[str, object] | None = None
    problems: list[Problem] = field(default_factory=list)

    def note(self, id: str, level: Level, option: str, what: str, fix: str = "") -> None:
        """Keep one problem."""
        self.problems.append(Problem(id, level, option, what, fix))

    def rename(self, old: str, new: str) -> None:
        """Return an option another name in the same place; a value already there stays."""
        renamed: dict[str, str] = {}
        for name, value in self.options.items():
            if name != old:
                renamed[name] = value
            elif new not in self.options:
                renamed[new] = value
        self.options = renamed


@dataclass(frozen=True)
class Linted:
    """An option set, what is wrong with it, and its corrected form."""

    given: OptionSet
    setting: Setting
    table: OptionTable | None
    problems: tuple[Problem, ...]
    corrected: OptionSet

    @property
    def errors(self) -> int:
        """How many problems keep it from working."""
        return sum(problem.level == "error" for problem in self.problems)
