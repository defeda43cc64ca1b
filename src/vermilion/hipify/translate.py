"""CUDA source → HIP source, token by token: whatever is not a name of CUDA's stays as it is.

Lines stay lines, so that a compiler's message about the result points into the source too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from vermilion.hipify.finding import Edit, Finding, apply_edits, without_overlaps
from vermilion.hipify.names import Names, Rename, Unknown, includes
from vermilion.hipify.rules.catalogue import RULES
from vermilion.hipify.tokens import Span, Tokens, split_arguments, text_of, tokenize

_INCLUDE = re.compile(r'(#[ \t]*\w+[ \t]*[<"])([^>"]+)([>"])')
# Everything below these is the counterpart of one header.
_INCLUDE_TREES = (("cub/", "hipcub/hipcub.hpp"), ("thrust/system/cuda/", "thrust/system/hip/"))
# Conventions of calls, which are empty on Linux and which HIP does not name.
_REMOVED = frozenset({"CUDART_CB", "CUDARTAPI"})
_NAMESPACES = {"cub": "hipcub", "nvcuda": ""}
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


@dataclass
class _Work:
    tokens: Tokens
    names: Names
    file: str
    own_names: frozenset[str]
    edits: list[Edit] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

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
    text: str, *, file: str = "<text>", names: Names | None = None, rename_cu_includes: bool = False
) -> Translation:
    """Translate one source text.

    With `rename_cu_includes`, `#include "x.cu"` becomes `#include "x.hip"`, for output in a folder.
    """
    tokens = tokenize(text)
    work = _Work(tokens, names or Names(), file, own_names(tokens))
    meaningful = tokens.meaningful
    for place, index in enumerate(meaningful):
        kind = tokens.kinds[index]
        if kind == "word":
            _translate_word(work, meaningful, place)
        elif kind == "include":
            _translate_include(work, index, rename_cu_includes)
    work.edits.extend(launch_edits(tokens, work.names))
    edits = without_overlaps(work.edits)
    return Translation(apply_edits(text, edits), edits, work.findings, work.own_names)


_AFTER_A_NAME = frozenset({"(", "=", ";", ",", ")", "[", "{"})


def own_names(tokens: Tokens) -> frozenset[str]:
    """Return the names that a source declares itself: macros, functions, variables, types."""
    own: set[str] = set()
    meaningful = tokens.meaningful
    for before, index, after in zip(meaningful, meaningful[1:], meaningful[2:], strict=False):
        if tokens.kinds[index] != "word":
            continue
        previous, following = tokens.word(before), tokens.word(after)
        defines_macro = previous == "define"
        defines_type = previous in {"struct", "class", "enum", "using", "typename", "namespace"}
        declares = following in _AFTER_A_NAME and _ends_a_type(tokens, before)
        if defines_macro or (defines_type and following in "{=:;") or declares:
            own.add(tokens.word(index))
    return frozenset(own)


def _ends_a_type(tokens: Tokens, index: int) -> bool:
    """Say whether a token can stand before the name of a function that is declared."""
    word = tokens.word(index)
    if tokens.kinds[index] == "word":
        return word not in {"return", "else", "case", "throw", "co_return", "do"}
    return word in {"*", "&", "&&", ">"} and tokens.text[tokens.starts[index + 1]].isspace()


def _translate_word(work: _Work, meaningful: list[int], place: int) -> None:
    index = meaningful[place]
    word = work.tokens.word(index)
    following = work.tokens.word(meaningful[place + 1]) if place + 1 < len(meaningful) else ""
    before = work.tokens.word(meaningful[place - 1]) if place else ""
    if word in _REMOVED:
        work.replace(index, "")
        return
    if word in _NAMESPACES or word == "thrust":
        _translate_namespace(work, meaningful, place)
        return
    found = work.names.look_up(word)
    if found is None:
        return
    if isinstance(found, Unknown):
        is_member = before in {".", "->"}
        if not is_member and word not in work.own_names and (_is_sure(word) or following == "("):
            what = f"`{word}` has no {found.library} name that this tool knows"
            work.report("unknown-name", index, what, found.hint, name=word)
        return
    work.replace(index, found.hip)
    if found.parameters_differ and following == "(":
        what = f"`{found.hip}` takes other parameters than `{word}`"
        work.report("parameters-differ", index, what)
    for parameters, before, after in (
        (_SYMBOL_PARAMETER, "HIP_SYMBOL(", ")"),
        (_KERNEL_PARAMETER, "reinterpret_cast<const void*>(", ")"),
    ):
        if following == "(" and found.hip in parameters:
            _wrap_argument(work, meaningful, place, parameters, found.hip, before, after)


def _is_sure(word: str) -> bool:
    """Say whether a name can be nobody's but CUDA's: `cuX` may be the project's own."""
    return re.match(r"cu[A-Z]", word) is None


def _translate_namespace(work: _Work, meaningful: list[int], place: int) -> None:
    words = [work.tokens.word(i) for i in meaningful[max(0, place - 3) : place + 6]]
    at = min(place, 3)
    before, rest = words[:at], words[at + 1 :]
    word = words[at]
    if word == "thrust":
        if rest[:3] == ["::", "cuda", "::"]:
            work.replace(meaningful[place + 2], "hip")
        return
    opens = before[-1:] == ["namespace"] or (before[-1:] == ["="] and before[:1] == ["namespace"])
    qualified = rest[:1] == ["::"]
    if not (opens or qualified):
        return
    if word == "cub":
        work.replace(meaningful[place], "hipcub")
    elif before[-2:] == ["using", "namespace"] and rest[:1] == [";"]:
        # `wmma::` is what the source says from here on: namespace wmma = rocwmma;
        for step, text in ((-2, "namespace"), (-1, "wmma ="), (0, "rocwmma")):
            work.replace(meaningful[place + step], text)
    elif rest[:2] == ["::", "wmma"]:
        # One name where there were two.
        for step, text in ((0, "rocwmma"), (1, ""), (2, "")):
            work.replace(meaningful[place + step], text)


def _translate_include(work: _Work, index: int, rename_cu_includes: bool) -> None:
    found = _INCLUDE.match(work.tokens.raw(index))
    if found is None:
        return
    header = found[2]
    row = includes().get(header)
    if row is not None and not row.hip:
        work.report("unknown-header", index, f"`{header}` has no counterpart in HIP", row.hint)
        return
    target = row.hip if row is not None else _from_tree(header)
    if not target and rename_cu_includes and header.endswith(".cu") and found[3] == '"':
        target = header.removesuffix(".cu") + ".hip"
    if target:
        work.replace(index, f"{found[1]}{target}{found[3]}")
    elif re.match(r"(?:cuda|cutlass|cute)/", header):
        work.report("unknown-header", index, f"`{header}` has no counterpart in HIP")


def _from_tree(header: str) -> str:
    for prefix, target in _INCLUDE_TREES:
        if header.startswith(prefix):
            if target.endswith("/"):
                return target + header.removeprefix(prefix)
            return target
    return ""


def _wrap_argument(
    work: _Work,
    meaningful: list[int],
    place: int,
    parameters: Mapping[str, int],
    name: str,
    before: str,
    after: str,
) -> None:
    arguments = split_arguments(work.tokens, meaningful, place + 1)
    wanted = parameters[name]
    if wanted >= len(arguments):
        return
    first, last = arguments[wanted]
    # A cast or a macro that is already there says that the author took care.
    if work.tokens.word(first) in {"(", "HIP_SYMBOL", "reinterpret_cast", "static_cast"}:
        return
    start, end = work.tokens.starts[first], work.tokens.starts[last + 1]
    work.edits.append(Edit(start, start, before))
    work.edits.append(Edit(end, end, after))


# 4 execution units of 64 lanes in a CDNA compute unit: `blocks` of `threads` need
# blocks * threads / 256 waves on each. An RDNA unit needs more; the number is a lower bound.
LANES_OF_A_UNIT = 256


def launch_edits(tokens: Tokens, names: Names) -> Iterator[Edit]:
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
        waves = f") * ({threads}) + {LANES_OF_A_UNIT - 1}) / {LANES_OF_A_UNIT}"
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
    return text_of(tokens, span).endswith(f"/ {LANES_OF_A_UNIT}")
