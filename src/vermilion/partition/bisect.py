"""Finding the smallest run of nodes that still makes a backend fail, as a model of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from vermilion.partition.cut import Extractor
from vermilion.progress import Progress, no_progress

Fails = Callable[[ir.Model], str]
"""Gives the reason why a model fails, empty where it does not."""


@dataclass(frozen=True)
class Culprit:
    """The smallest failing model, its reason, the nodes it consists of, and the tries it took."""

    model: ir.Model
    reason: str
    positions: tuple[int, ...]  # of its nodes in the whole
    node_names: tuple[str, ...]
    tries: int


def bisect(
    model: ir.Model, fails: Fails, *, max_tries: int = 60, progress: Progress = no_progress
) -> Culprit | None:
    """Return the smallest part of `model` that fails in the same way.

    None where the whole does not.

    Halves are tried first, then smaller and smaller pieces left out (Zeller and Hildebrandt,
    "Simplifying and Isolating Failure-Inducing Input", 2002). Another reason is another fault: a
    part counts only where its reason begins like the whole's.
    """
    reason = fails(model)
    if not reason:
        return None
    search = _Search(model, fails, _kind(reason), reason, max_tries, progress)
    kept = search.smallest(list(range(len(model.graph))))
    names = [node.name or node.outputs[0].name or "?" for node in model.graph]
    return Culprit(
        model=search.extractor.extract("culprit", kept),
        reason=search.reason,
        positions=tuple(kept),
        node_names=tuple(names[position] for position in kept),
        tries=search.tries,
    )


def _kind(reason: str) -> str:
    """Return what is alike in two reasons of one fault.

    Its words up to the first number or name.
    """
    head = reason.partition("`")[0]
    return "".join(c for c in head if not c.isdigit())[:40]


class _Search:
    """One search: what was tried, and the reason of the last failure."""

    def __init__(
        self,
        model: ir.Model,
        fails: Fails,
        kind: str,
        reason: str,
        max_tries: int,
        progress: Progress,
    ) -> None:
        self.extractor = Extractor(model)
        self.reason = reason
        self.tries = 1
        self._fails = fails
        self._kind = kind
        self._max_tries = max_tries
        self._progress = progress
        self._seen: dict[tuple[int, ...], bool] = {}

    def smallest(self, positions: list[int]) -> list[int]:
        pieces = 2
        while len(positions) > 1 and self.tries < self._max_tries:
            shorter = self._shorter(positions, pieces)
            if shorter is not None:
                positions, pieces = shorter, max(2, pieces - 1)
            elif pieces >= len(positions):
                break
            else:
                pieces = min(len(positions), 2 * pieces)
        return positions

    def _shorter(self, positions: list[int], pieces: int) -> list[int] | None:
        """Return one of `pieces` pieces that fails, or what is left without one."""
        size = -(-len(positions) // pieces)
        starts = range(0, len(positions), size)
        for start in starts:
            if self._still_fails(positions[start : start + size]):
                return positions[start : start + size]
        if pieces > 2:
            for start in starts:
                rest = positions[:start] + positions[start + size :]
                if self._still_fails(rest):
                    return rest
        return None

    def _still_fails(self, positions: list[int]) -> bool:
        key = tuple(positions)
        if not key or self.tries >= self._max_tries:
            return False
        if key not in self._seen:
            self.tries += 1
            self._progress("bisect", self.tries, self._max_tries)
            reason = self._fails(self.extractor.extract("part", positions))
            self._seen[key] = _kind(reason) == self._kind if reason else False
            if self._seen[key]:
                self.reason = reason
        return self._seen[key]
