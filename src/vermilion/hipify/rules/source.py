"""What a rule sees: the meaningful tokens of a translated source, and ways to find things in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from vermilion.hipify.finding import Edit
from vermilion.hipify.tokens import Span, Tokens, closing, split_arguments, text_of

_NUMBER = re.compile(r"(0[xX][0-9a-fA-F']+|0[bB][01']+|[0-9][0-9']*)([uUlLzZ]*)")
_ARITHMETIC = re.compile(r"[-+*/%()<>|&^~0-9xXa-fA-F\s]+")


# Words that can stand before a call.
_BEFORE_CALLS = frozenset(
    {"return", "else", "do", "case", "throw", "co_return", "and", "or", "not", "new", "goto"}
)


@dataclass(frozen=True)
class Hit:
    """A place that breaks a rule: `place` counts in the meaningful tokens."""

    rule: str
    place: int
    message: str
    hint: str = ""
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True)
class Source:
    """A text for the rules to look at."""

    tokens: Tokens

    @cached_property
    def words(self) -> list[str]:
        """Return the meaningful tokens as the compiler sees them."""
        return [self.tokens.word(index) for index in self.tokens.meaningful]

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """Return, for each word, where it stands."""
        found: dict[str, list[int]] = {}
        for place, word in enumerate(self.words):
            found.setdefault(word, []).append(place)
        return found

    @cached_property
    def is_operator(self) -> bool:
        """Say whether this is an ONNX Runtime custom operator."""
        names = {"OrtKernelContext", "CustomOpBase", "KernelContext", "OrtApi", "OrtKernelInfo",
                 "Ort"}  # fmt: skip
        return not names.isdisjoint(self.places) or any(
            re.search(r"onnxruntime|core/providers/", self.tokens.raw(index))
            for index in self.tokens.meaningful
            if self.tokens.kinds[index] == "include"
        )

    def kind(self, place: int) -> str:
        """Return the kind of a token."""
        return self.tokens.kinds[self.tokens.meaningful[place]]

    def word(self, place: int) -> str:
        """Return a token, empty past either end."""
        return self.words[place] if 0 <= place < len(self.words) else ""

    def find(self, pattern: str) -> Iterator[tuple[int, str]]:
        """Yield each place of each word that matches a pattern as a whole."""
        expression = re.compile(pattern)
        hits = [
            (place, word)
            for word, places in self.places.items()
            if expression.fullmatch(word)
            for place in places
            if self.kind(place) == "word"
        ]
        yield from sorted(hits)

    def calls(self, pattern: str) -> Iterator[tuple[int, str, list[Span]]]:
        """Yield each call of a function whose name matches: place, name, arguments."""
        for place, word in self.find(pattern):
            if self.word(place + 1) == "(" and not self.is_declared(place):
                yield place, word, self.arguments(place + 1)

    def is_declared(self, place: int) -> bool:
        """Say whether a function is declared at its name: a type stands before it."""
        if place == 0 or self.kind(place - 1) != "word":
            return False
        # In a macro's line, the word before is most often its name.
        is_macro = self.word(place - 2) == "define" or self.word(place - 1) == "define"
        return not is_macro and self.word(place - 1) not in _BEFORE_CALLS

    def arguments(self, opening: int) -> list[Span]:
        """Return the arguments of the call whose `(` is at `opening`."""
        return split_arguments(self.tokens, self.tokens.meaningful, opening)

    def closing(self, opening: int) -> int:
        """Return the place of the bracket that ends the one at `opening`."""
        return closing(self.tokens, self.tokens.meaningful, opening)

    def opening(self, closing_place: int) -> int:
        """Return the place of the bracket that the one at a place ends; 0 if none does."""
        depth = 0
        for place in range(closing_place, 0, -1):
            word = self.words[place]
            depth += (word in {")", "]", "}"}) - (word in {"(", "[", "{"})
            if depth == 0:
                return place
        return 0

    def on_one_line(self, place: int, other: int) -> bool:
        """Say whether no line ends between two places, splices counted as no end."""
        starts, meaningful = self.tokens.starts, self.tokens.meaningful
        between = self.tokens.text[starts[meaningful[place]] : starts[meaningful[other]]]
        return "\n" not in between.replace("\\\n", "").replace("\\\r\n", "")

    def text(self, span: Span) -> str:
        """Return a piece of source as it is written."""
        return text_of(self.tokens, span)

    def edit(self, first: int, last: int, text: str) -> Edit:
        """Return the change of the tokens from `first` to `last`, places both."""
        meaningful = self.tokens.meaningful
        start, end = self.tokens.starts[meaningful[first]], self.tokens.starts[meaningful[last] + 1]
        missing = self.tokens.text.count("\n", start, end) - text.count("\n")
        return Edit(start, end, text + "\n" * missing)

    def place_of(self, index: int) -> int:
        """Return the place of a token that is counted in all tokens."""
        return self._place_by_index[index]

    @cached_property
    def _place_by_index(self) -> dict[int, int]:
        return {index: place for place, index in enumerate(self.tokens.meaningful)}

    @cached_property
    def constants(self) -> dict[str, tuple[int, int]]:
        """Return the integers that names stand for: name → (value, place of the number)."""
        found: dict[str, tuple[int, int]] = {}
        for place, word in enumerate(self.words):
            after_name = self.word(place - 1)
            is_macro = self.word(place - 2) == "define"
            is_constant = after_name == "=" and self.kind(place - 2) == "word" and place > 2
            if self.kind(place) != "number" or not (is_macro or is_constant):
                continue
            value = integer(word)
            ends = self.word(place + 1) in {";", ",", "}"} or is_macro
            if value is not None and ends:
                name = after_name if is_macro else self.word(place - 2)
                if is_macro or self._is_constant(place - 2):
                    found[name] = (value, place)
        return found

    def _is_constant(self, name_place: int) -> bool:
        before = self.words[max(0, name_place - 4) : name_place]
        recent = self.words[max(0, name_place - 40) : name_place]
        in_enum = before[-1:] in (["{"], [","]) and "enum" in recent
        return in_enum or bool({"const", "constexpr"} & set(before))

    def value(self, span: Span) -> int | None:
        """Compute a constant expression, None where something in it is not known."""
        parts = []
        for index in range(span[0], span[1] + 1):
            word = self.tokens.word(index)
            kind = self.tokens.kinds[index]
            if kind == "number":
                number = integer(word)
                if number is None:
                    return None
                parts.append(str(number))
            elif kind == "word":
                if word not in self.constants:
                    return None
                parts.append(str(self.constants[word][0]))
            elif kind == "punctuation":
                parts.append("//" if word == "/" else word)
        return _compute(" ".join(parts))


def integer(word: str) -> int | None:
    """Read an integer of C++, None if it is none."""
    found = _NUMBER.fullmatch(word)
    if found is None:
        return None
    digits = found[1].replace("'", "")
    try:
        return int(digits, 8 if re.fullmatch(r"0[0-7]+", digits) else 0)
    except ValueError:  # `0128` is no number in any base
        return None


def is_64_bit(word: str) -> bool:
    """Say whether an integer is 64 bits wide by its suffix or its size."""
    found = _NUMBER.fullmatch(word)
    value = integer(word)
    return found is not None and ("ll" in found[2].lower() or (value or 0) > 0xFFFFFFFF)


def _compute(expression: str) -> int | None:
    """Compute +, -, *, /, <<, >> and parentheses over integers."""
    if not expression or len(expression) > 200 or _ARITHMETIC.fullmatch(expression) is None:
        return None
    import ast

    try:
        return _value_of(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _value_of(node: object) -> int:
    import ast

    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value_of(operand)
        case ast.BinOp(left=left, op=operation, right=right):
            one, two = _value_of(left), _value_of(right)
            match operation:
                case ast.Add():
                    return one + two
                case ast.Sub():
                    return one - two
                case ast.Mult():
                    return one * two
                case ast.FloorDiv():
                    return one // two
                case ast.LShift() if 0 <= two < 64:
                    return one << two
                case ast.RShift() if 0 <= two < 64:
                    return one >> two
    raise ValueError("not arithmetic on integers")
