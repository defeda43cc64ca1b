"""What to raise above 8 bits, for the fewest operations, so that less noise is left."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from vermilion.quantize.sensitivity import Damage


def widened_for(
    damage: Sequence[Damage], aim: float, wide_possible: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Choose what to raise so that the rest does no more than `aim`.

    Gives tensors for 16 bits and nodes for float. What removes most damage for each operation
    that leaves 8 bits goes first.
    """
    whole = sum(row.operations for row in damage) or 1

    def price(row: Damage) -> float:
        # Free ones (that no product reads) cost a thousandth, so that small ones wait their turn.
        return row.operations / whole + 1e-3

    possible = [row for row in damage if row.kind == "weight" or wide_possible]
    ranked = sorted(possible, key=lambda row: -row.noise / price(row))
    # One large layer that passes the aim by far may cost more than several small ones do.
    sets = (
        _until([row for row in ranked if row.operations <= most], damage, aim)
        for most in sorted({row.operations for row in ranked})
    )
    chosen = min(
        (rows for rows in sets if rows is not None),
        key=lambda rows: sum(map(price, rows)),
        default=ranked,
    )
    wide = (row.names for row in chosen if row.kind != "weight")
    nodes = (row.names for row in chosen if row.kind == "weight")
    return tuple(itertools.chain(*wide)), tuple(itertools.chain(*nodes))


def _until(ranked: Sequence[Damage], damage: Sequence[Damage], aim: float) -> list[Damage] | None:
    """Take from the front until no more than `aim` is left; None where all is not enough."""
    left = sum(row.noise for row in damage)
    taken = list[Damage]()
    for row in ranked:
        if left <= aim:
            return taken
        taken.append(row)
        left -= row.noise
    return taken if left <= aim else None
