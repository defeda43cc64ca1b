"""Texts that end an answer: what may be the beginning of one is held back until it is known."""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Lets a text through up to the first of the given ones, which itself is left out."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found = False

    def take(self, piece: str) -> str:
        """Return what of the text so far is sure to belong to it."""
        if self.found:
            return ""
        text = self._held + piece
        places = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        kept = max((_beginning(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> str:
        """Return what was held back, once nothing follows."""
        held, self._held = self._held, ""
        return "" if self.found else held


def _beginning(text: str, stop: str) -> int:
    """Return the length of the longest beginning of `stop` that ends `text`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
