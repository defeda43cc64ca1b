"""CUDA's namespaces become HIP's; those that a source makes itself keep their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from vermilion.hipify.finding import Edit
from vermilion.hipify.tokens import Tokens

_RENAMED = {"cub": "hipcub"}
_TYPE_WORDS = frozenset({"struct", "class", "enum", "union", "using", "typename"})
_KEYWORDS = frozenset(
    {
        "return", "namespace", "typename", "using", "const", "throw", "case", "else", "new",
        "template", "constexpr", "static", "inline",
    }
)  # fmt: skip
NAMES = frozenset({"cub", "nvcuda", "thrust"})


@dataclass(frozen=True)
class Namespaces:
    """What a source says about names of namespaces, and the edits that follow."""

    tokens: Tokens
    words: Sequence[str]

    def edits(self, place: int) -> Iterator[Edit]:
        """Yield the change of one of `NAMES` at a place, if it is CUDA's there."""
        word = self.words[place]
        if word == "thrust":
            if self._after(place, 3) == ["::", "cuda", "::"] and not self._is_inner(place):
                yield self._edit(place + 2, "hip")
            if self._after(place, 5) == ["::", "system", "::", "cuda", "::"] and (
                not self._is_inner(place)
            ):
                yield self._edit(place + 4, "hip")
        elif word == "cub":
            if self._is_cub(place):
                yield self._edit(place, _RENAMED[word])
        else:
            yield from self._wmma(place)

    def _is_cub(self, place: int) -> bool:
        """Say whether `cub` stands for the library's namespace here."""
        before, after = self._word(place - 1), self._word(place + 1)
        if self._is_inner(place) or before in {".", "->", "goto"}:
            return False
        if before == "namespace":
            # `namespace cub = x;` gives a name of the source's own to x; `namespace cub {` adds to
            # the library, unless it stands within another namespace.
            return after in {"{", "::", ";"} and not self._within_namespace(place)
        is_alias = self._word(self._before_scope(place)) == "="
        if is_alias and self._word(self._before_scope(place) - 2) == "namespace":
            return True
        if after == ";" and self._is_using(place):
            return True
        if self._is_macro_body(place):
            return True
        return after == "::" and not (self._is_type or self._is_alias_of_hipcub)

    @cached_property
    def _is_alias_of_hipcub(self) -> bool:
        """Say whether the source calls HIP's library `cub` itself."""
        return any(
            list(self.words[place - 1 : place + 2]) == ["namespace", "cub", "="]
            and "hipcub" in self._after(place, 3)
            for place, word in enumerate(self.words)
            if word == "cub"
        )

    @cached_property
    def _is_type(self) -> bool:
        """Say whether the source has a type called `cub`; `typename cub::Sum` names the library."""
        return any(
            word == "cub" and self.words[place - 1] in _TYPE_WORDS and self._word(place + 1) != "::"
            for place, word in enumerate(self.words)
            if place
        )

    def _is_inner(self, place: int) -> bool:
        """Say whether a name is qualified by another: `tools::cub` is the project's."""
        if self._word(place - 1) != "::":
            return False
        index = self.tokens.meaningful[place - 2] if place > 1 else -1
        outer = self._word(place - 2)
        if index < 0 or self.tokens.kinds[index] != "word":
            return outer == ">"
        # `return ::cub::Sum()`: a keyword qualifies nothing.
        return outer not in _KEYWORDS

    def _before_scope(self, place: int) -> int:
        return place - 2 if self._word(place - 1) == "::" else place - 1

    def _is_using(self, place: int) -> bool:
        at = self._before_scope(place)
        return self._word(at) == "namespace" and self._word(at - 1) == "using"

    def _is_macro_body(self, place: int) -> bool:
        """Say whether a macro stands for this name alone: `#define NS cub`."""
        at = self._before_scope(place)
        return self._word(at - 1) == "define" and not self._on_one_line(place, place + 1)

    def _on_one_line(self, place: int, other: int) -> bool:
        if other >= len(self.words):
            return False
        index, next_index = self.tokens.meaningful[place], self.tokens.meaningful[other]
        between = self.tokens.text[self.tokens.starts[index + 1] : self.tokens.starts[next_index]]
        return "\n" not in between.replace("\\\n", "").replace("\\\r\n", "")

    def _within_namespace(self, place: int) -> bool:
        """Say whether a place stands between the braces of a namespace that has a name."""
        depth = 0
        for at in range(place - 1, 0, -1):
            if self.words[at] == "}":
                depth += 1
            elif self.words[at] == "{":
                if depth:
                    depth -= 1
                elif self._opens_namespace(at):
                    return True
        return False

    def _opens_namespace(self, brace: int) -> bool:
        at = brace - 1
        while at > brace - 16 and (self._word(at) == "::" or self._word(at).isidentifier()):
            if self._word(at) == "namespace":
                return at < brace - 1
            at -= 1
        return False

    def _wmma(self, place: int) -> Iterator[Edit]:
        after = self._after(place, 2)
        if after == ["::", "wmma"]:
            # One name where there were two.
            for step, text in ((0, "rocwmma"), (1, ""), (2, "")):
                yield self._edit(place + step, text)
        elif self._is_using(place) and self._word(place - 1) == "namespace" and after[:1] == [";"]:
            # `wmma::` is what the source says from here on: namespace wmma = rocwmma;
            for step, text in ((-2, "namespace"), (-1, "wmma ="), (0, "rocwmma")):
                yield self._edit(place + step, text)

    def _word(self, place: int) -> str:
        return self.words[place] if 0 <= place < len(self.words) else ""

    def _after(self, place: int, count: int) -> list[str]:
        return list(self.words[place + 1 : place + 1 + count])

    def _edit(self, place: int, text: str) -> Edit:
        index = self.tokens.meaningful[place]
        return Edit(self.tokens.starts[index], self.tokens.starts[index + 1], text)
