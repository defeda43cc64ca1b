"""CUDA source → HIP source, token by token: whatever is not a name of CUDA's stays as it is.

Lines stay lines, so that a compiler's message about the result points into the source too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vermilion.hipify.branches import Branches, find_branches
from vermilion.hipify.declared import names_of_header, own_names
from vermilion.hipify.finding import Edit, Finding, apply_edits, without_overlaps
from vermilion.hipify.headers import INCLUDE, find_header, project_headers, torch_header
from vermilion.hipify.names import Names, Rename, Unknown, forms, includes
from vermilion.hipify.namespaces import NAMES, Namespaces
from vermilion.hipify.rules.catalogue import RULES
from vermilion.hipify.tokens import Span, Tokens, split_arguments, text_of, tokenize

# 4 execution units of 64 lanes in a CDNA compute unit: `blocks` of `threads` need
# blocks * threads / 256 waves on each. An RDNA unit needs more; the number is a lower bound.
_LANES_OF_A_UNIT = 256
# Everything below these is the counterpart of one header.
_INCLUDE_TREES = (("cub/", "hipcub/hipcub.hpp"), ("thrust/system/cuda/", "thrust/system/hip/"))
# Conventions of calls, which are empty on Linux and which HIP does not name.
_REMOVED = frozenset({"CUDART_CB", "CUDARTAPI", "CUDAAPI", "CUDA_CB"})
# Numbers of CUDA's versions, which HIP's stand for.
_VERSIONS = frozenset({"CUDA_VERSION", "CUDART_VERSION"})
_COMPARISONS = frozenset({"<", ">", "<=", ">=", "==", "!=", "/", "%"})
_SYMBOL_PARAMETER = {
    "hipMemcpyToSymbol": 0,
    "hipMemcpyToSymbolAsync": 0,
    "hipMemcpyFromSymbol": 1,
    "hipMemcpyFromSymbolAsync": 1,
    "hipGetSymbolAddress": 1,
    "hipGetSymbolSize": 1,
}
# Of these CUDA has a form that takes a kernel of any type; HIP's takes `const void*`.
_KERNEL_PARAMETER = {
    "hipFuncSetAttribute": 0,
    "hipFuncSetCacheConfig": 0,
    "hipFuncGetAttributes": 1,
}


@dataclass(frozen=True)
class Translation:
    """A translated text, the edits that made it, what was left, and the names that it defines."""

    text: str
    edits: list[Edit]
    findings: list[Finding]
    own_names: frozenset[str] = frozenset()
    branches: Branches = field(default_factory=Branches)


@dataclass(frozen=True)
class Place:
    """Where a source lies: its own folder, and the folders that its includes lead to.

    `project` are folders of the sources themselves, `given` those that the user named for the
    compiler, which may hold headers of libraries too.
    """

    own: Path | None = None
    project: tuple[Path, ...] = ()
    given: tuple[Path, ...] = ()

    def headers(self, tokens: Tokens) -> Iterator[Path]:
        """Yield the files of the project that a source includes."""
        if self.own is not None:
            yield from project_headers(tokens, self.own, self.project)

    def given_headers(self, tokens: Tokens) -> Iterator[Path]:
        """Yield the files of folders for the compiler that a source includes."""
        if self.own is not None and self.given:
            yield from project_headers(tokens, None, self.given)


@dataclass
class _Work:
    tokens: Tokens
    names: Names
    file: str
    own_names: frozenset[str]
    words: Sequence[str]
    branches: Branches
    edits: list[Edit] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def word(self, place: int) -> str:
        return self.words[place] if 0 <= place < len(self.words) else ""

    def kind(self, place: int) -> str:
        return self.tokens.kinds[self.tokens.meaningful[place]] if place >= 0 else ""

    def is_left_alone(self, index: int) -> bool:
        """Say whether a token is CUDA's side, or the test, of a source that knows of HIP."""
        return self.branches.at(self.tokens.starts[index]) in {"cuda", "test"}

    def replace(self, index: int, text: str) -> None:
        if text != self.tokens.word(index):
            start, end = self.tokens.starts[index], self.tokens.starts[index + 1]
            # A name that a splice cuts keeps its lines: the splices follow it.
            splices = "".join(re.findall(r"\\\r?\n", self.tokens.text[start:end]))
            self.edits.append(Edit(start, end, text + splices))

    def report(
        self, rule: str, index: int, message: str, hint: str = "", *, name: str = ""
    ) -> None:
        line, column = self.tokens.position(self.tokens.starts[index])
        found = RULES[rule]
        self.findings.append(
            Finding(
                rule, found.level, self.file, line, column, message, hint or found.fix, name=name
            )
        )


def translate(
    text: str,
    *,
    file: str = "<text>",
    names: Names | None = None,
    rename_cu_includes: bool = False,
    place: Place | None = None,
) -> Translation:
    """Translate one source text.

    With `rename_cu_includes`, `#include "x.cu"` becomes `#include "x.hip"`, for output in a folder.
    `place` is where the text lies among the headers of its project.
    """
    tokens = tokenize(text)
    where = place or Place()
    own = own_names(tokens)
    for header in where.headers(tokens):
        own |= names_of_header(header, where.project)
    for header in where.given_headers(tokens):
        own |= names_of_header(header, ())
    words = [tokens.word(index) for index in tokens.meaningful]
    branches = find_branches(tokens)
    work = _Work(tokens, names or Names(), file, own, words, branches)
    spaces = Namespaces(tokens, words)
    for place_, index in enumerate(tokens.meaningful):
        kind = tokens.kinds[index]
        if kind not in {"word", "include"} or work.is_left_alone(index):
            continue
        if kind == "include":
            _translate_include(work, index, rename_cu_includes, where)
        elif words[place_] in NAMES:
            work.edits.extend(spaces.edits(place_))
        else:
            _translate_word(work, place_)
    work.edits.extend(_launch_edits(tokens, work.names))
    edits = without_overlaps(work.edits)
    return Translation(apply_edits(text, edits), edits, work.findings, own_names(tokens), branches)


def _translate_word(work: _Work, place: int) -> None:
    index, word = work.tokens.meaningful[place], work.words[place]
    if word in _REMOVED:
        work.replace(index, "")
        return
    found = work.names.look_up(word)
    if found is None:
        return
    following, before = work.word(place + 1), work.word(place - 1)
    if before == "##":
        return  # the end of a name that is pasted together is no name
    if isinstance(found, Unknown):
        _report_unknown(work, place, found)
        return
    if following == "(" and _take_form(work, place):
        return
    work.replace(index, found.hip)
    if found.parameters_differ and following == "(":
        what = f"`{found.hip}` takes other parameters than `{word}`"
        work.report("parameters-differ", index, what)
    if word in _VERSIONS and (following in _COMPARISONS or before in _COMPARISONS):
        work.report(
            "cuda-version", index, f"`{word}` counts versions of CUDA, `{found.hip}` of HIP"
        )
    for parameters, opening, closing in (
        (_SYMBOL_PARAMETER, "HIP_SYMBOL(", ")"),
        (_KERNEL_PARAMETER, "reinterpret_cast<const void*>(", ")"),
    ):
        if following == "(" and found.hip in parameters:
            _wrap_argument(work, place, parameters[found.hip], opening, closing)


def _report_unknown(work: _Work, place: int, found: Unknown) -> None:
    """Report a name of CUDA's without a counterpart, unless it is somebody else's."""
    word, before = work.words[place], work.word(place - 1)
    # A member, or what a class or namespace of the project's has.
    is_inner = before in {".", "->"} or (
        before == "::" and work.kind(place - 2) == "word" and work.word(place - 2) != "return"
    )
    is_pasted = work.word(place + 1) == "##"
    if is_pasted and (prefix := work.names.beginning(word)):
        work.replace(work.tokens.meaningful[place], prefix)
        return
    if is_inner or word in work.own_names:
        return
    if _is_sure(word) or work.word(place + 1) == "(":
        what = f"`{word}` has no {found.library} name that this tool knows"
        work.report("unknown-name", work.tokens.meaningful[place], what, found.hint, name=word)


def _is_sure(word: str) -> bool:
    """Say whether a name can be nobody's but CUDA's: `cuX` may be the project's own."""
    return re.match(r"cu[A-Z]", word) is None


def _take_form(work: _Work, place: int) -> bool:
    """Translate a call of which CUDA has several forms, by the number of its arguments."""
    known = forms().get(work.words[place])
    if known is None:
        return False
    tokens, index = work.tokens, work.tokens.meaningful[place]
    arguments = split_arguments(tokens, tokens.meaningful, place + 1)
    form = known.get(len(arguments))
    if form is None:
        any_form = next(iter(known.values()))
        counts = " or ".join(str(count) for count in known)
        what = f"`{work.words[place]}` with {len(arguments)} arguments: HIP's takes {counts}"
        work.replace(index, any_form.hip)
        work.report("parameters-differ", index, what, "write the call as HIP's header declares it")
        return True
    work.replace(index, form.hip)
    if form.added:
        at, text = form.added
        if at < len(arguments):
            start = tokens.starts[arguments[at][0]]
            work.edits.append(Edit(start, start, f"{text}, "))
        else:
            end = tokens.starts[arguments[-1][1] + 1]
            work.edits.append(Edit(end, end, f", {text}"))
    return True


def _translate_include(work: _Work, index: int, rename_cu_includes: bool, where: Place) -> None:
    found = INCLUDE.match(work.tokens.raw(index))
    if found is None:
        return
    header, quoted = found[2], found[3] == '"'
    is_own = find_header(header, quoted, where.own, where.project) is not None
    row = None if is_own else includes().get(header)
    if row is not None and not row.hip:
        work.report("unknown-header", index, f"`{header}` has no counterpart in HIP", row.hint)
        return
    target = row.hip if row is not None else "" if is_own else _from_tree(header)
    if not target and rename_cu_includes and header.endswith(".cu") and quoted:
        target = header.removesuffix(".cu") + ".hip"
    if target:
        work.replace(index, f"{found[1]}{target}{found[3]}")
        return
    given = find_header(header, quoted, where.own, where.given) is not None
    if not (is_own or given) and re.match(r"(?:cuda|cutlass|cute)/", header):
        work.report("unknown-header", index, f"`{header}` has no counterpart in HIP")


def _from_tree(header: str) -> str:
    if torch := torch_header(header):
        return torch
    for prefix, target in _INCLUDE_TREES:
        if header.startswith(prefix):
            if target.endswith("/"):
                return target + header.removeprefix(prefix)
            return target
    return ""


def _wrap_argument(work: _Work, place: int, wanted: int, before: str, after: str) -> None:
    arguments = split_arguments(work.tokens, work.tokens.meaningful, place + 1)
    if wanted >= len(arguments):
        return
    first, last = arguments[wanted]
    # A cast or a macro that is already there says that the author took care.
    if work.tokens.word(first) in {"(", "HIP_SYMBOL", "reinterpret_cast", "static_cast"}:
        return
    start, end = work.tokens.starts[first], work.tokens.starts[last + 1]
    work.edits.append(Edit(start, start, before))
    work.edits.append(Edit(end, end, after))


def _launch_edits(tokens: Tokens, names: Names) -> Iterator[Edit]:
    """Yield the edits that turn CUDA's blocks in `__launch_bounds__` into HIP's waves.

    `kernel<<<...>>>(...)` is HIP too and stays. The second number of `__launch_bounds__` counts
    blocks of a multiprocessor for CUDA, and waves of an execution unit for HIP.
    Source: HIP documentation, "C++ language extensions", launch bounds.
    """
    meaningful = tokens.meaningful
    for place, index in enumerate(meaningful):
        if tokens.kinds[index] != "word" or tokens.word(index) != "__launch_bounds__":
            continue
        arguments = split_arguments(tokens, meaningful, place + 1)
        if len(arguments) < 2 or _is_ours(tokens, arguments[1]):
            continue
        # What is written of the blocks stays where it is, between two new pieces.
        first, last = arguments[1]
        begin, end = tokens.starts[first], tokens.starts[last + 1]
        threads = _translated(tokens, names, arguments[0])
        waves = f") * ({threads}) + {_LANES_OF_A_UNIT - 1}) / {_LANES_OF_A_UNIT}"
        # CUDA's third number is the size of a cluster, which AMD GPUs do not have.
        dropped = tokens.starts[arguments[-1][1] + 1]
        yield Edit(begin, begin, "((")
        yield Edit(end, dropped, waves + "\n" * tokens.text.count("\n", end, dropped))


def _translated(tokens: Tokens, names: Names, span: Span) -> str:
    """Return an argument once more, in one line, without comments, with HIP's names."""
    words = []
    for index in range(span[0], span[1] + 1):
        if tokens.kinds[index] in {"space", "comment"}:
            continue
        word = tokens.word(index)
        found = names.look_up(word) if tokens.kinds[index] == "word" else None
        words.append(found.hip if isinstance(found, Rename) else word)
    return " ".join(words)


def _is_ours(tokens: Tokens, span: Span) -> bool:
    return text_of(tokens, span).endswith(f"/ {_LANES_OF_A_UNIT}")
