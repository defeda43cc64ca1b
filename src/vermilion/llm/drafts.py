"""Tokens that are read before they are chosen, so that several cost one step of the decoder.

What is guessed is what followed the last tokens where they stood before in the text: answers repeat
their prompts where they summarise, correct or quote. A guess changes no token: each is chosen from
its own logits as if it had been read alone, and where that is another, the rest is forgotten. The
idea is A. Saxena's, "Prompt Lookup Decoding", 2023.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
Logits = NDArray[np.float32]

# Tokens that must have stood before for what followed them to be a guess; as many as agree count.
_LEAST_SAME, _MOST_SAME = 2, 8
_FIRST_WIDTH, _LEAST_WIDTH = 4, 2


class Drafts:
    """What was read ahead of one sequence. `most(length)` tokens are read at once, at most."""

    def __init__(self, most: Callable[[int], int], longest: int) -> None:
        self.read_ahead = 0  # tokens that were guessed and read, in all
        self.taken = 0  # of those, tokens that were chosen
        self._most, self._longest = most, longest
        self._tokens = np.zeros(0, np.int32)
        self._logits = np.zeros((0, 0), np.float32)
        self._width = _FIRST_WIDTH

    @property
    def pending(self) -> int:
        """Tokens that the decoder has read and nobody chose."""
        return len(self._tokens)

    def take(self, token: int) -> Logits | None:
        """Return the logits after a token that was chosen, where it is the one that was read."""
        if not self.pending or int(self._tokens[0]) != token:
            return None
        logits: Logits = self._logits[0]
        self._tokens, self._logits = self._tokens[1:], self._logits[1:]
        self.taken += 1
        return logits

    def forget(self) -> int:
        """Leave what is pending; return how many tokens the decoder is to forget."""
        count = self.pending
        if count:
            self._width = _LEAST_WIDTH
            self._tokens = self._tokens[:0]
        return count

    def guess(self, text: Tokens, new: int) -> Tokens:
        """Return what may follow a text of which the last `new` tokens are still to be read."""
        room = min(self._most(len(text) - new) - new, self._longest - len(text))
        found = follow(text, min(room, self._width)) if room > 0 else text[:0]
        if found.size:
            self._width = min(2 * self._width, max(self._most(len(text)), 1))
        return found

    def keep(self, tokens: Tokens, logits: Logits) -> None:
        """Keep a guess that was read, with the logits after each of its tokens."""
        self._tokens, self._logits = tokens, logits
        self.read_ahead += len(tokens)


def follow(text: Tokens, count: int) -> Tokens:
    """Return up to `count` tokens that followed where the end of a text stood before.

    Of several places the one where most tokens before it agree, and of those the last.
    """
    nothing = text[:0]
    if count < 1 or len(text) <= _LEAST_SAME:
        return nothing
    same = text[:-1] == text[-1]  # where the last token stood before
    places = np.flatnonzero(same)
    length = 1
    while places.size and length < _MOST_SAME:
        longer = places[places >= length]
        longer = longer[text[longer - length] == text[-1 - length]]
        if not longer.size:
            break
        places, length = longer, length + 1
    if length < _LEAST_SAME or not places.size:
        return nothing
    begin = int(places[-1]) + 1
    return text[begin : begin + count]
