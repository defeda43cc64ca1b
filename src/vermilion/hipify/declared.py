"""The names that a source declares itself, so that none of them is taken for one of CUDA's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from vermilion.hipify.headers import project_headers
from vermilion.hipify.tokens import Tokens, tokenize

# A project's header behind a header is followed this far.
_MAX_DEPTH = 16
MAX_HEADER_BYTES = 4 * 1024 * 1024

_AFTER_A_NAME = frozenset({"(", "=", ";", ",", ")", "[", "{", ":"})
_AFTER_A_DECLARATOR = frozenset({"=", ";", ",", "[", "(", "{", ":"})
_BEGINS_A_TYPE_NAME = frozenset({"struct", "class", "enum", "union", "using", "namespace"})
_TEMPLATE_KINDS = frozenset({"class", "typename", "auto"})
# Words that can stand before an expression, so that a name behind them is no declaration.
_BEFORE_EXPRESSIONS = frozenset(
    {
        "return", "else", "case", "throw", "co_return", "co_await", "co_yield", "do", "new",
        "delete", "goto", "sizeof", "not", "and", "or", "xor", "in", "operator", "typeid",
    }
)  # fmt: skip


def own_names(tokens: Tokens) -> frozenset[str]:
    """Return the names that a source declares: macros, functions, variables, types, parameters."""
    return frozenset(_declared(tokens))


def _declared(tokens: Tokens) -> Iterator[str]:
    meaningful = tokens.meaningful
    words = [tokens.word(index) for index in meaningful]
    kinds = [tokens.kinds[index] for index in meaningful]
    # Whether this statement has declared something, at which depth of parentheses.
    declaring: int | None = None
    depth = 0
    declared_at = -1  # the last name that began or went on with a declaration
    braces = 0  # of first values, as of `int a{1}, b;`
    for place, word in enumerate(words):
        begins = word == "{" and declared_at == place - 1 and declaring == depth
        if word in {"(", "["} or begins:
            depth += 1
            braces += begins
        elif word in {")", "]"} or (word == "}" and braces):
            depth -= 1
            braces -= word == "}"
        elif word in {";", "{", "}"}:
            declaring = None
            if word != ";":
                depth = braces = 0
        elif word == "template" and _at(words, place + 1) == "<":
            yield from _template_parameters(words, kinds, place + 1)
        elif word == "enum":
            yield from _enumerators(words, kinds, place)
        elif word == "define":
            yield from _macro(tokens, meaningful, place)
        elif word == "auto":
            yield from _bindings(words, place)
        if kinds[place] != "word" or place == 0:
            continue
        before, after = words[place - 1], _at(words, place + 1)
        if before in _BEGINS_A_TYPE_NAME and after in {"{", ":", "=", ";", "final"}:
            yield word
        elif after in _AFTER_A_NAME and _ends_a_type(tokens, meaningful, words, kinds, place):
            # A label of a `case` and the second half of `a ? b : c` look like bit fields.
            if after != ":" or before not in {"*", "&", "?", ">"}:
                yield word
                declaring, declared_at = depth, place
        elif after in _AFTER_A_DECLARATOR and declaring is not None and declaring == depth:
            if _is_second(words, place) and (depth == 0 or _is_for_header(words, place)):
                yield word
                declared_at = place
        elif (before == "}" and after in {";", ",", "=", "["}) or (
            before in {";", "{", "}"} and after == ":"
        ):
            yield word  # of a structure just defined, or a label
        elif before == "*" and after == ")" and _at(words, place - 2) == "(":
            yield word  # a pointer to a function


def _at(words: Sequence[str], place: int) -> str:
    return words[place] if 0 <= place < len(words) else ""


def _ends_a_type(
    tokens: Tokens, meaningful: Sequence[int], words: Sequence[str], kinds: Sequence[str],
    place: int,
) -> bool:  # fmt: skip
    """Say whether what stands before a place can be the type of what is declared there."""
    before = words[place - 1]
    if kinds[place - 1] == "word":
        return before not in _BEFORE_EXPRESSIONS and _at(words, place - 2) != "#"
    if before not in {"*", "&", "&&", ">"}:
        return False
    # `a * b` is a product and `a* b` declares: a space on both sides is an operator.
    start, end = tokens.starts[meaningful[place - 1]], tokens.starts[meaningful[place - 1] + 1]
    spaced = tokens.text[start - 1].isspace() and tokens.text[end].isspace()
    return not spaced and kinds[place - 2] in {"word", "punctuation"} and place >= 2


def _is_second(words: Sequence[str], place: int) -> bool:
    """Say whether a comma stands before a name and its `*`."""
    at = place - 1
    while at > 0 and words[at] in {"*", "&"}:
        at -= 1
    return words[at] == ","


def _is_for_header(words: Sequence[str], place: int) -> bool:
    for at in range(place, max(0, place - 60), -1):
        if words[at] == "(":
            return words[at - 1] == "for"
        if words[at] in {";", "{", "}"}:
            return False
    return False


def _template_parameters(words: Sequence[str], kinds: Sequence[str], opening: int) -> Iterator[str]:
    depth = 0
    for place in range(opening, min(opening + 400, len(words))):
        word = words[place]
        depth += {"<": 1, ">": -1, ">>": -2, "(": 1, ")": -1}.get(word, 0)
        named = depth == 1 or (depth <= 0 and word in {">", ">>"})
        if named and word in {",", "=", ">", ">>"} and kinds[place - 1] == "word":
            before = words[place - 2]
            if before in _TEMPLATE_KINDS | {"..."} or kinds[place - 2] == "word":
                yield words[place - 1]
        if depth <= 0 or word in {";", "{"}:
            return


def _bindings(words: Sequence[str], place: int) -> Iterator[str]:
    """Yield the names of `auto& [first, second]`."""
    opening = place + 1
    while _at(words, opening) in {"&", "&&", "const"}:
        opening += 1
    if _at(words, opening) != "[":
        return
    for word in words[opening + 1 :]:
        if word == "]":
            return
        if word.isidentifier():
            yield word


def _enumerators(words: Sequence[str], kinds: Sequence[str], place: int) -> Iterator[str]:
    opening = place + 1
    while opening < place + 10 and _at(words, opening) not in {"{", ";", "(", ""}:
        opening += 1
    if _at(words, opening) != "{":
        return
    depth = 0
    for at in range(opening, len(words)):
        word = words[at]
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(word, 0)
        if depth == 0:
            return
        if depth == 1 and word in {"{", ","} and kinds[at + 1 : at + 2] == ["word"]:
            yield words[at + 1]


def _macro(tokens: Tokens, meaningful: Sequence[int], place: int) -> Iterator[str]:
    """Yield a macro's name and its parameters."""
    if place + 1 >= len(meaningful):
        return
    yield tokens.word(meaningful[place + 1])
    end = tokens.starts[meaningful[place + 1] + 1]
    if tokens.text[end : end + 1] != "(":
        return
    for at in range(place + 3, len(meaningful)):
        if tokens.word(meaningful[at]) == ")":
            return
        if tokens.kinds[meaningful[at]] == "word":
            yield tokens.word(meaningful[at])


@lru_cache(maxsize=4096)
def names_of_header(path: Path, folders: tuple[Path, ...], depth: int = 0) -> frozenset[str]:
    """Return the names that a project's header and the project's headers behind it declare."""
    try:
        if depth > _MAX_DEPTH or path.stat().st_size > MAX_HEADER_BYTES:
            return frozenset()
        text = path.read_bytes().decode("utf-8", errors="surrogateescape")
    except OSError:
        return frozenset()
    tokens = tokenize(text)
    found = set(own_names(tokens))
    for header in project_headers(tokens, path.parent, folders):
        found |= names_of_header(header, folders, depth + 1)
    return frozenset(found)
