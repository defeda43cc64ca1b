"""Which texts are written in a step: they join and leave between two of them.

A prompt is read in chunks, so that those that are being written are not kept waiting. A text is
let in when the cache has room for all that it may become. What prompts begin with alike is
computed once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vermilion.errors import VermilionError, first_line
from vermilion.llm.pool import Pool
from vermilion.serve.refusals import FaultError
from vermilion.serve.sequence import Event, Text

# Rooms of texts that have ended, kept for what others begin with alike.
_MOST_KEPT = 64


@dataclass(eq=False)
class _Kept:
    room: Any
    prompt: list[int]


@dataclass
class Counts:
    """What an iteration did."""

    read: int = 0
    cached: int = 0
    step: int = 0
    step_s: float = 0.0


class Scheduler:
    """Texts of all requests in one cache. Not for several threads."""

    def __init__(self, pool: Pool, *, most: int, chunk: int, keeps: bool) -> None:
        """Write at most `most` texts at a time; `keeps`: for what prompts begin with alike."""
        self._pool, self._most, self._chunk, self._keeps = pool, most, chunk, keeps
        self._waiting: deque[Text] = deque()
        self._running: list[Text] = []
        self._kept: deque[_Kept] = deque()

    @property
    def running(self) -> int:
        """Texts that have a room."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Texts that wait for one."""
        return len(self._waiting)

    def add(self, texts: Sequence[Text]) -> None:
        """Let a request's texts wait."""
        self._waiting += texts

    def remove(self, request: str) -> None:
        """Forget a request: nobody waits for it."""
        self._waiting = deque(text for text in self._waiting if text.request != request)
        for text in [text for text in self._running if text.request == request]:
            self._leave(text)

    def advance(self) -> tuple[list[Event], Counts]:
        """Let in who fits, read a chunk of a prompt, and write a token of all others."""
        events, counts = self._admit(), Counts()
        unread = next((text for text in self._running if not text.is_read), None)
        if unread is not None:
            self._read(unread, events, counts)
        ready = [text for text in self._running if text.is_read and text is not unread]
        if ready:
            begin = time.perf_counter()
            rows = self._pool.step([text.room for text in ready], [text.made[-1] for text in ready])
            for text, row in zip(ready, rows, strict=True):
                if text in self._running:  # no other text of its request was refused meanwhile
                    self._take(text, row, events)
            counts.step, counts.step_s = len(ready), time.perf_counter() - begin
        return events, counts

    def _admit(self) -> list[Event]:
        events: list[Event] = []
        while self._waiting and len(self._running) < self._most:
            text = self._waiting[0]
            try:
                room = self._pool.take(len(text.prompt), text.wish.new)
            except VermilionError as error:
                self._waiting.popleft()
                events.append(refusal(text.request, error))
                continue
            if room is None:
                if not self._kept:
                    break
                self._pool.give_back(self._kept.popleft().room)
                continue
            self._waiting.popleft()
            text.room = room
            self._running.append(text)
        return events

    def _read(self, text: Text, events: list[Event], counts: Counts) -> None:
        if text.read == 0 and self._keeps:
            text.read = self._copied(text)
            counts.cached += text.read
        chunk = text.prompt[text.read : text.read + self._chunk]
        is_last = text.read + len(chunk) == len(text.prompt)
        logits = self._pool.read(text.room, chunk, is_last=is_last)
        text.read += len(chunk)
        counts.read += len(chunk)
        if logits is not None:
            self._take(text, logits, events)

    def _copied(self, text: Text) -> int:
        """Begin as another prompt does; return how many tokens that saves."""
        others: list[tuple[Any, list[int], int]] = [
            (one.room, one.prompt, len(one.prompt)) for one in self._kept
        ]
        others += [(one.room, one.prompt, one.read) for one in self._running if one is not text]
        best, most = None, 0
        for room, prompt, read in others:
            same = alike(prompt, text.prompt, read)
            if same > most:
                best, most = room, same
        # The last token is read in any case: what follows it is not in the cache.
        return self._pool.copy(best, text.room, min(most, len(text.prompt) - 1)) if best else 0

    def _take(self, text: Text, row: Any, events: list[Event]) -> None:
        try:
            event = text.take(row)
        except VermilionError as error:
            self._refuse(text, error, events)
            return
        except Exception as error:  # of its form, say: it costs this request alone
            self._refuse(text, fault_of(error), events)
            return
        if event is not None:
            events.append(event)
        if text.finish:
            self._leave(text)

    def _refuse(self, text: Text, error: VermilionError, events: list[Event]) -> None:
        """Write no more for a text's request."""
        self.remove(text.request)
        events.append(refusal(text.request, error))

    def _leave(self, text: Text) -> None:
        self._running.remove(text)
        if not (self._keeps and text.read):
            self._pool.give_back(text.room)
            return
        self._kept.append(_Kept(text.room, text.prompt[: text.read]))
        while len(self._kept) > _MOST_KEPT:
            self._pool.give_back(self._kept.popleft().room)


def alike(first: Sequence[int], second: Sequence[int], most: int) -> int:
    """Return how many tokens two prompts begin with alike, at most so many."""
    most = min(most, len(first), len(second))
    return next((at for at in range(most) if first[at] != second[at]), most)


def fault_of(error: Exception) -> FaultError:
    """Return what is told of an exception that nothing of ours should have raised."""
    return FaultError(f"the text cannot be written: {type(error).__name__}: {first_line(error)}")


def refusal(request: str, error: VermilionError) -> Event:
    """Return what is told of a request that cannot be carried out."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, VermilionError)]
    words = {"message": error.message, "hint": error.hint}
    return {"request": request, "refused": {"kinds": kinds, **words}}
