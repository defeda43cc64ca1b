"""Which lines HIP's compiler sees, in sources that already know of HIP.

`#ifdef USE_ROCM … #else … #endif` says that its author took care: the branch for CUDA is never
compiled for AMD GPUs and stays as it is, and so do the tests themselves. Where no macro of HIP
decides, both branches are translated.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from vermilion.hipify.tokens import Tokens

Kind = Literal["hip", "cuda", "test"]

# Parts of a macro's name, between its underscores, that say it is about HIP.
_HIP_PARTS = frozenset({"HIP", "HIPCC", "ROCM", "HCC", "AMDGCN", "AMDGPU"})
# Of those, what differs from one GPU or pass to the next, or counts a version.
_OPEN_PARTS = frozenset(
    {"VERSION", "ARCH", "DEVICE", "COMPILE", "NVIDIA", "NVCC", "MAJOR", "MINOR", "H", "HPP", "CUH"}
)
# What only CUDA's compiler defines; where a macro of HIP stands beside it in a test, it is false.
_CUDA_MACROS = frozenset(
    {"__CUDACC__", "__NVCC__", "__CUDA_ARCH__", "CUDA_VERSION", "CUDART_VERSION", "USE_CUDA",
     "__CUDACC_VER_MAJOR__", "__CUDACC_VER_MINOR__", "__HIP_PLATFORM_NVIDIA__",
     "__HIP_PLATFORM_NVCC__"}
)  # fmt: skip
_MENTION = re.compile(r"\b\w*(?:ROCM|HIP|HCC|AMDG)\w*\b")


def is_hip_macro(name: str) -> bool:
    """Say whether a macro stands for compiling with HIP, and nothing else."""
    parts = set(name.upper().split("_"))
    return bool(parts & _HIP_PARTS) and not parts & _OPEN_PARTS


def mentions_hip(name: str) -> bool:
    """Say whether a macro is about HIP at all."""
    return bool(set(name.upper().split("_")) & _HIP_PARTS)


@dataclass(frozen=True)
class Branches:
    """The parts of a text that belong to one side: from `starts[i]` on it is `kinds[i]`.

    `macros` are those of the project that stand for HIP: a build has to define them.
    """

    starts: tuple[int, ...] = ()
    kinds: tuple[Kind | None, ...] = ()
    macros: frozenset[str] = frozenset()

    def at(self, offset: int) -> Kind | None:
        """Return whose part an offset is in, None where it is everybody's."""
        place = bisect_right(self.starts, offset) - 1
        return self.kinds[place] if place >= 0 else None


@dataclass
class _Branch:
    """One branch of a conditional: its test, and what is in it."""

    kind: str  # if, ifdef, ifndef, elif, else
    line: tuple[int, int]
    words: list[str]
    end: int = 0


_Group = list[_Branch]  # of one conditional, from its `#if` to its `#endif`


def find_branches(tokens: Tokens) -> Branches:
    """Return the parts of a source that are for HIP or for CUDA alone."""
    if _MENTION.search(tokens.text) is None:
        return Branches()
    defined = set(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", tokens.text, re.MULTILINE))
    marks: list[tuple[int, int, Kind]] = []
    macros: set[str] = set()
    for group in _groups(tokens):
        _judge(group, defined, marks, macros)
    return _flatten(marks, frozenset(macros))


def _groups(tokens: Tokens) -> Iterator[_Group]:
    """Yield each conditional of a source, the outer before the inner."""
    found: list[_Group] = []
    open_groups: list[_Group] = []
    for line, words in _directives(tokens):
        name = words[0] if words else ""
        if name in {"if", "ifdef", "ifndef"}:
            group = [_Branch(name, line, words[1:])]
            open_groups.append(group)
            found.append(group)
        elif name in {"elif", "elifdef", "elifndef", "else"} and open_groups:
            group = open_groups[-1]
            group[-1].end = line[0]
            kind = {"elifdef": "ifdef", "elifndef": "ifndef"}.get(name, name)
            group.append(_Branch(kind, line, words[1:]))
        elif name == "endif" and open_groups:
            group = open_groups.pop()
            group[-1].end = line[0]
    for group in open_groups:  # nothing ends it
        group[-1].end = len(tokens.text)
    yield from found


def _directives(tokens: Tokens) -> Iterator[tuple[tuple[int, int], list[str]]]:
    """Yield each preprocessor line: from its `#` to its end, and its words after the `#`."""
    place, meaningful = 0, tokens.meaningful
    while place < len(meaningful):
        index = meaningful[place]
        if tokens.raw(index) != "#" or not _begins_line(tokens, index):
            place += 1
            continue
        start, words = tokens.starts[index], []
        end = _end_of_line(tokens.text, start)
        place += 1
        while place < len(meaningful) and tokens.starts[meaningful[place]] < end:
            words.append(tokens.word(meaningful[place]))
            place += 1
        yield (start, end), words


def _begins_line(tokens: Tokens, index: int) -> bool:
    at = tokens.starts[index]
    return not tokens.text[tokens.text.rfind("\n", 0, at) + 1 : at].strip()


def _end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    while end > 0 and text[start:end].endswith(("\\", "\\\r")):
        end = text.find("\n", end + 1)
    return len(text) if end < 0 else end


def _judge(
    group: _Group, defined: set[str], marks: list[tuple[int, int, Kind]], macros: set[str]
) -> None:
    """Mark the branches of a conditional that a macro of HIP decides."""
    first = group[0]
    if first.kind == "ifndef" and first.words[:1] and first.words[0] in defined:
        return  # the guard of a header, whatever it is called
    every = {word for branch in group for word in branch.words}
    # Our own fixes write the last.
    about_hip = (
        {word for word in every if mentions_hip(word)} - defined - {"__HIP_DEVICE_COMPILE__"}
    )
    if not about_hip:
        return
    macros |= {w for w in about_hip if is_hip_macro(w) and not w.startswith("__")}
    marks += [(*branch.line, "test") for branch in group]
    taken, is_open = False, False
    for branch in group:
        value = False if taken else _value_of(branch, defined)
        if branch.kind == "else" and is_open and not taken:
            value = None
        if value is False:
            marks.append((branch.line[1], branch.end, "cuda"))
        elif value is True:
            marks.append((branch.line[1], branch.end, "hip"))
        taken, is_open = taken or value is True, is_open or value is None


def _value_of(branch: _Branch, defined: set[str]) -> bool | None:
    if branch.kind == "else":
        return True
    if branch.kind in {"ifdef", "ifndef"}:
        value = _is_defined(branch.words[0], defined) if branch.words else None
        return value if branch.kind == "ifdef" or value is None else not value
    return _Condition(branch.words, defined).value()


def _macro(name: str, defined: set[str]) -> bool | None:
    """Return whether HIP's compiler has a macro, None where that is open."""
    if name in _CUDA_MACROS:
        return False
    if name in defined:
        return None
    return True if is_hip_macro(name) else None


def _is_defined(name: str, defined: set[str]) -> bool | None:
    """Return whether HIP's compiler defines a macro: one that counts a version, it does."""
    parts = set(name.upper().split("_"))
    counts = parts & _HIP_PARTS and not parts & (_OPEN_PARTS - {"VERSION", "MAJOR", "MINOR"})
    return True if counts and name not in defined else _macro(name, defined)


class _Condition:
    """A test of the preprocessor, computed as far as macros of HIP decide it."""

    def __init__(self, words: Sequence[str], defined: set[str]) -> None:
        self._words = list(words)
        self._defined = defined
        self._at = 0

    def value(self) -> bool | None:
        """Return the test's value, None where it is open."""
        result = self._either()
        return result if self._at == len(self._words) else None

    def _next(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _either(self) -> bool | None:
        result = self._both()
        while self._next() == "||":
            self._at += 1
            other = self._both()
            result = True if True in (result, other) else None if None in (result, other) else False
        return result

    def _both(self) -> bool | None:
        result = self._one()
        while self._next() == "&&":
            self._at += 1
            other = self._one()
            result = (
                False if False in (result, other) else None if None in (result, other) else True
            )
        return result

    def _one(self) -> bool | None:
        word = self._next()
        self._at += 1
        if word == "!":
            value = self._one()
            return None if value is None else not value
        if word == "(":
            value = self._either()
            self._at += self._next() == ")"
        elif word == "defined":
            bracket = self._next() == "("
            self._at += bracket
            value = _is_defined(self._next(), self._defined)
            self._at += 1 + bracket
        else:
            value = _macro(word, self._defined) if re.match(r"[A-Za-z_]", word) else None
            value = {"0": False, "1": True}.get(word, value)
        # A comparison or a sum is a number that nobody here knows.
        if self._next() not in {"", ")", "&&", "||"}:
            while self._next() not in {"", ")", "&&", "||"}:
                self._at += 1
                if self._words[self._at - 1] == "(":
                    self._either()
                    self._at += self._next() == ")"
            known = value is False and word in _CUDA_MACROS
            return False if known else None
        return value


def _flatten(marks: Sequence[tuple[int, int, Kind]], macros: frozenset[str]) -> Branches:
    """Return marks as parts that follow each other; the inner one counts, CUDA's over all."""
    if not marks:
        return Branches(macros=macros)
    edges = sorted({edge for start, end, _ in marks for edge in (start, end)})
    kinds: list[Kind | None] = []
    for edge in edges:
        around = [mark for mark in marks if mark[0] <= edge < mark[1]]
        cuda = any(kind == "cuda" for _, _, kind in around)
        inner = min(around, key=lambda mark: mark[1] - mark[0], default=None)
        kinds.append("cuda" if cuda else inner[2] if inner is not None else None)
    return Branches(tuple(edges), tuple(kinds), macros)
