"""Rounds: each of several engines has a turn, one after the other, in an order that favours none.

What slows the machine down for longer than a round slows all of them, so a ratio is taken within a
round; and each round begins with another engine, so that nobody always runs after the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from vermilion.progress import Progress, no_progress

Engine = TypeVar("Engine")
Taken = TypeVar("Taken")


def in_rounds(
    engines: Sequence[Engine],
    turn: Callable[[Engine, int], Taken],
    rounds: int,
    *,
    warm_up: int = 0,
    progress: Progress = no_progress,
) -> list[list[Taken]]:
    """Call `turn` with each engine and the number of the round; return what each engine's gave.

    The results of the first `warm_up` rounds are left out; `rounds` come after them.
    """
    found: list[list[Taken]] = [[] for _ in engines]
    for number in range(warm_up + rounds):
        for index in turn_order(len(engines), number):
            taken = turn(engines[index], number)
            if number >= warm_up:
                found[index].append(taken)
        progress("take turns", number + 1, warm_up + rounds)
    return found


def turn_order(engines: int, number: int) -> Sequence[int]:
    """Return the engines in the order of a round.

    Each round begins with another, and goes round the other way every second time.
    """
    start = (number // 2) % engines
    rotated = [(start + step) % engines for step in range(engines)]
    return rotated if number % 2 == 0 else rotated[::-1]
