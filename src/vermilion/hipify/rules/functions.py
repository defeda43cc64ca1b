"""The functions of a source, and which of them belong together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from vermilion.hipify.rules.source import Source

_CONTROL = frozenset(
    {"if", "for", "while", "switch", "catch", "return", "sizeof", "decltype", "alignas",
     "__launch_bounds__", "__attribute__", "noexcept", "requires"}
)  # fmt: skip
_QUALIFIERS = frozenset(
    {"const", "noexcept", "override", "final", "mutable", "volatile", "&", "&&"}
)


@dataclass(frozen=True)
class Function:
    """A function with a body; places count in the meaningful tokens."""

    name: str
    start: int
    parameters: int  # the place of its `(`
    body: int
    end: int
    on_device: bool


@dataclass(frozen=True)
class Functions:
    """All functions of a source."""

    source: Source

    @cached_property
    def every(self) -> tuple[Function, ...]:
        """Return the functions in the order of the text."""
        return tuple(self._found())

    def around(self, place: int) -> Function | None:
        """Return the function that a place is in."""
        at = bisect_right([function.start for function in self.every], place) - 1
        if at < 0 or place > self.every[at].end:
            return None
        return self.every[at]

    def family(self, place: int) -> tuple[Function, ...]:
        """Return the functions of the source that belong to the one around a place.

        Those are it, what calls it, and what all of these call, at any distance.
        """
        function = self.around(place)
        if function is None:
            return ()
        return tuple(
            one for name in sorted(self._family(function.name)) for one in self._by_name[name]
        )

    def callees(self, name: str) -> tuple[Function, ...]:
        """Return a function of the source and all that it calls."""
        if name not in self._by_name:
            return ()
        names = _reached({name}, lambda one: self._calls.get(one, frozenset()))
        return tuple(one for called in sorted(names) for one in self._by_name[called])

    def _found(self) -> Iterator[Function]:
        source, place = self.source, 0
        braces = source.places.get("{", [])
        for brace in braces:
            if brace < place:
                continue
            head = self._head(brace)
            if head is not None:
                end = source.closing(brace)
                start = self._start(head[0])
                words = source.words[start : head[0]]
                device = not {"__device__", "__global__"}.isdisjoint(words)
                yield Function(source.word(head[0]), start, head[1], brace, end, device)
                place = end

    def _head(self, brace: int) -> tuple[int, int] | None:
        """Return the places of the name and of the `(` of the function that a `{` begins."""
        source, at = self.source, brace - 1
        while at > 0 and source.word(at) in _QUALIFIERS:
            at -= 1
        if source.word(at) != ")":
            # `auto f(int x) -> float {`
            for back in range(at, max(0, at - 12), -1):
                if source.word(back) == "->" and source.word(back - 1) == ")":
                    at = back - 1
                    break
                if source.word(back) in {";", "{", "}", "=", ")"}:
                    return None
        opening = source.opening(at)
        name = opening - 1
        if name < 0 or source.kind(name) != "word" or source.word(name) in _CONTROL:
            return None
        # `template <> void f<4>(...)` has an angle before the bracket; a lambda has `]`.
        return name, opening

    def _start(self, name: int) -> int:
        for at in range(name, -1, -1):
            if self.source.word(at) in {";", "}", "{"}:
                return at + 1
        return 0

    @cached_property
    def _by_name(self) -> dict[str, list[Function]]:
        found: dict[str, list[Function]] = {}
        for function in self.every:
            found.setdefault(function.name, []).append(function)
        return found

    @cached_property
    def _calls(self) -> dict[str, frozenset[str]]:
        names = self._by_name.keys()
        return {
            name: frozenset(
                word
                for function in functions
                for word in self.source.words[function.body : function.end]
                if word in names
            )
            for name, functions in self._by_name.items()
        }

    def _family(self, name: str) -> frozenset[str]:
        """Return a function, what it calls, and what calls it, at any distance."""
        callers: dict[str, set[str]] = {}
        for caller, called in self._calls.items():
            for one in called:
                callers.setdefault(one, set()).add(caller)
        above = _reached({name}, lambda one: callers.get(one, set()))
        return _reached(above, lambda one: self._calls.get(one, frozenset()))


def _reached(
    start: set[str] | frozenset[str], following: Callable[[str], Collection[str]]
) -> frozenset[str]:
    found = set(start)
    waiting = list(start)
    while waiting:
        for name in following(waiting.pop()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return frozenset(found)
